// Real models against exact (float64) forward passes over the same files, by the bounds that a peer's errors set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/json_file.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"
#include "tests/support/texts.h"

namespace ellm::tests {
namespace {

using boost::json::value;

constexpr size_t kFirstCounted = 8;  // the first positions of some models carry huge activations: means begin here
constexpr double kClearMargin = 0.7;

/// KL(exact ‖ ours) over the listed tokens, all others lumped into one.
double lumped_kl(const value& listed, const std::vector<double>& ours) {
  double kl = 0, p_rest = 1, q_rest = 1;
  for (const value& pair : listed.as_array()) {
    const auto id = pair.at(0).to_number<size_t>();
    const double log_p = pair.at(1).to_number<double>();
    kl += std::exp(log_p) * (log_p - ours[id]);
    p_rest -= std::exp(log_p);
    q_rest -= std::exp(ours[id]);
  }
  if (p_rest > 1e-9) kl += p_rest * std::log(p_rest / std::max(q_rest, 1e-12));
  return std::max(kl, 1e-9);
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += std::log(v);
  return std::exp(sum / static_cast<double>(values.size()));
}

class RealReference : public testing::Test {
 protected:
  /// Skips where data or model are missing.
  void open(const std::string& name) {
    const auto folder = test_data();
    if (!folder) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
    data_ = *folder;
    const std::string path = find_real_model(name);
    if (path.empty()) GTEST_SKIP() << name << " is not there: ellm pull " << name;
    reference_ = read_json(data_ + "/reference/real_" + name + ".json");
    runner_ = std::make_unique<ModelRunner>(load_model(path), RunnerOptions{});
  }

  void check_model(const std::string& name) {
    open(name);
    if (IsSkipped()) return;
    std::vector<double> ours_kl, peer_kl;
    for (const value& text : reference_.at("texts").as_array()) check_text(text, ours_kl, peer_kl);
    const double ours = geometric_mean(ours_kl), peer = geometric_mean(peer_kl);
    std::printf("%s (%s): geometric mean KL from exact %.3g, peer %.3g, ratio %.2f\n", name.c_str(),
                runner_->kernels().name, ours, peer, ours / peer);
    EXPECT_LE(ours, 1.25 * peer);
    for (const value& chat : reference_.at("chats").as_array()) check_chat(chat);
  }

  void check_text(const value& text, std::vector<double>& ours_kl, std::vector<double>& peer_kl) {
    const std::string which(text.at("text").as_string());
    const auto tokens = numbers<uint32_t>(text.at("tokens"));
    // the ids are those of the text itself
    auto ids = runner_->model().tokenizer()->encode(reference_text(data_, which), {.add_special = false});
    ASSERT_GE(ids.size(), tokens.size());
    ids.resize(tokens.size());
    EXPECT_EQ(ids, tokens) << which;

    const auto logits = runner_->logits(tokens, 512);
    const auto margin = numbers<double>(text.at("margin"));
    const auto argmax = numbers<uint32_t>(text.at("argmax"));
    const auto peer = numbers<double>(text.at("peer_kl"));
    double nll = 0, worst_miss = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto row = row_of(logits, i, runner_->vocabulary());
      if (i >= kFirstCounted && best_of(row) != argmax[i]) {
        worst_miss = std::max(worst_miss, margin[i]);
        EXPECT_LE(margin[i], kClearMargin) << which << " position " << i;
      }
      if (i + 1 < tokens.size()) nll -= log_softmax(row)[tokens[i + 1]];
    }
    for (const auto& [position, listed] : text.at("top8_every16").as_object()) {
      const size_t i = std::stoul(position);
      ours_kl.push_back(lumped_kl(listed, log_softmax(row_of(logits, i, runner_->vocabulary()))));
      peer_kl.push_back(std::max(peer[i], 1e-9));
    }
    const double perplexity = std::exp(nll / static_cast<double>(tokens.size() - 1));
    const double exact = text.at("perplexity").to_number<double>(),
                 peers = text.at("peer_perplexity").to_number<double>();
    std::printf("  %-6s perplexity %.4f, exact %.4f, peer %.4f; worst miss at margin %.2f\n", which.c_str(), perplexity,
                exact, peers, worst_miss);
    EXPECT_LE(std::abs(perplexity - exact), std::max(1.25 * std::abs(peers - exact), 0.01 * exact)) << which;
  }

  void check_chat(const value& chat) {
    auto tokens = numbers<uint32_t>(chat.at("prompt_tokens"));
    boost::json::object variables{
        {"messages", boost::json::array{boost::json::object{{"role", "user"}, {"content", chat.at("prompt")}}}},
        {"add_generation_prompt", true}};
    const auto& model = runner_->model();
    ASSERT_NE(model.chat_template(), nullptr) << model.chat_template_error();
    EXPECT_EQ(model.tokenizer()->encode(model.chat_template()->render(variables), {.add_special = false}), tokens)
        << chat.at("prompt");
    const size_t begin = tokens.size() - 1;
    const auto answer = numbers<uint32_t>(chat.at("peer_greedy"));
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    const auto logits = runner_->logits(tokens, 512);
    const auto argmax = numbers<uint32_t>(chat.at("argmax"));
    const auto margin = numbers<double>(chat.at("margin"));
    for (size_t i = 0; i < argmax.size(); ++i) {
      if (margin[i] > kClearMargin) {
        EXPECT_EQ(best_of(row_of(logits, begin + i, runner_->vocabulary())), argmax[i])
            << chat.at("prompt") << " answer position " << i;
      }
    }
  }

  std::string data_;
  value reference_;
  std::unique_ptr<ModelRunner> runner_;
};

// What int8 KV adds to the divergence of the served model, whose activations are rounded, too. Measured: 1.23 times.
TEST_F(RealReference, Int8KvAsServed) {
  std::vector<double> f16_kl, int8_kl;
  for (const char* name : {"smollm2", "qwen-0.5b"}) {
    open(name);
    if (IsSkipped()) return;
    const auto model = load_model(find_real_model(name), true);
    ModelRunner int8(model, {.kv_type = shm::KvType::int8});
    for (const value& text : reference_.at("texts").as_array()) {
      const auto tokens = numbers<uint32_t>(text.at("tokens"));
      const auto add = [&](ModelRunner& runner, std::vector<double>& to) {
        const auto logits = runner.logits(tokens, 512);
        for (const auto& [position, listed] : text.at("top8_every16").as_object()) {
          if (std::stoul(position) < kFirstCounted) continue;
          to.push_back(lumped_kl(listed, log_softmax(row_of(logits, std::stoul(position), runner.vocabulary()))));
        }
      };
      add(*runner_, f16_kl);
      add(int8, int8_kl);
    }
  }
  const double f16 = geometric_mean(f16_kl), int8 = geometric_mean(int8_kl);
  std::printf("geometric mean KL from exact: f16 KV %.3g, int8 KV %.3g, ratio %.3f\n", f16, int8, int8 / f16);
  EXPECT_LE(int8, 1.25 * f16);
}

TEST_F(RealReference, Smollm2) { check_model("smollm2"); }
TEST_F(RealReference, Qwen05b) { check_model("qwen-0.5b"); }

/// The peer's own figures (there is no exact pass). The second half lies past the sliding window of 512 tokens.
TEST(RealPeer, Gemma3) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const std::string path = find_real_model("gemma3-270m");
  if (path.empty()) GTEST_SKIP() << "gemma3-270m is not there: $ELLM_TEST_DATA/tools/get-models gemma3-270m";
  const value reference = read_json(*data + "/reference/real_gemma3-270m.json");
  ModelRunner runner(load_model(path), {.max_rows = 64});
  /// Calls f(position, logits) for each token of a text.
  const auto run = [&](const std::vector<uint32_t>& tokens, const auto& f) {
    ModelRunner::Sequence sequence;
    for (size_t at = 0; at < tokens.size(); at += 64) {
      const auto piece = std::span(tokens).subspan(at, std::min<size_t>(64, tokens.size() - at));
      const auto logits = runner.step({&sequence, piece, static_cast<uint32_t>(piece.size())});
      for (size_t i = 0; i < piece.size(); ++i) f(at + i, row_of(logits, i, runner.vocabulary()));
    }
    runner.release(sequence);
  };
  for (const value& text : reference.at("texts").as_array()) {
    const std::string which(text.at("text").as_string());
    const auto tokens = numbers<uint32_t>(text.at("tokens"));
    // the peer's ids, <bos> first, are those of their text
    EXPECT_EQ(runner.model().tokenizer()->encode(runner.model().tokenizer()->decode(tokens)), tokens) << which;
    const auto argmax = numbers<uint32_t>(text.at("peer_argmax"));
    const auto margin = numbers<double>(text.at("peer_margin")), peer = numbers<double>(text.at("peer_nll"));
    double nll[2] = {}, peer_nll[2] = {};
    run(tokens, [&](size_t i, std::span<const float> row) {
      if (i >= kFirstCounted && margin[i] > 2 * kClearMargin) {  // the peer's, who rounds, too
        EXPECT_EQ(runner.kernels().argmax(row.data(), runner.vocabulary()), argmax[i])
            << which << " position " << i << " margin " << margin[i];
      }
      if (i + 1 == tokens.size()) return;
      nll[i / 512] += runner.kernels().log_sum_exp(row.data(), runner.vocabulary()) - row[tokens[i + 1]];
      peer_nll[i / 512] += peer[i];
    });
    const auto expect_near = [&](const char* part, double ours, double peers, double count) {
      ours = std::exp(ours / count), peers = std::exp(peers / count);
      std::printf("  %-6s %s: perplexity %.4f, peer %.4f\n", which.c_str(), part, ours, peers);
      EXPECT_NEAR(ours / peers, 1, 0.01) << which << ", " << part;
    };
    expect_near("the whole", nll[0] + nll[1], peer_nll[0] + peer_nll[1], 1023);
    expect_near("past the window", nll[1], peer_nll[1], 511);
  }
  for (const value& completion : reference.at("completions").as_array()) {
    auto tokens = numbers<uint32_t>(completion.at("prompt_tokens"));
    EXPECT_EQ(runner.model().tokenizer()->encode(completion.at("prompt").as_string()), tokens);
    const size_t prompt = tokens.size();
    const auto answer = numbers<uint32_t>(completion.at("peer_greedy"));
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    run(tokens, [&](size_t i, std::span<const float> row) {
      if (i + 1 >= prompt && i + 1 < tokens.size()) {
        EXPECT_LT(row[best_of(row)] - row[tokens[i + 1]], kClearMargin) << completion.at("prompt") << " position " << i;
      }
    });
  }
}

class RealReferenceSlow : public RealReference {};

TEST_F(RealReferenceSlow, Qwen15b) { check_model("qwen-1.5b"); }

TEST_F(RealReferenceSlow, Qwen05bOver4096Tokens) {
  open("qwen-0.5b");
  if (IsSkipped()) return;
  const value all = read_json(data_ + "/reference/real_qwen-0.5b_long4096.json");
  const value& text = all.at("texts").at(0);
  const auto tokens = numbers<uint32_t>(text.at("tokens"));
  const auto exact = numbers<double>(text.at("nll"));
  ModelRunner runner(load_model(find_real_model("qwen-0.5b")), {.pages = 130});
  ModelRunner::Sequence sequence;
  double nll = 0, exact_nll = 0;
  for (size_t at = 0; at < tokens.size(); at += 512) {
    const auto logits = runner.step({&sequence, std::span(tokens).subspan(at, 512), 512});
    double part = 0, exact_part = 0;
    for (size_t i = 0; i < 512 && at + i + 1 < tokens.size(); ++i) {
      part -= log_softmax(row_of(logits, i, runner.vocabulary()))[tokens[at + i + 1]];
      exact_part += exact[at + i];
    }
    std::printf("  %4zu perplexity %.4f, exact %.4f\n", at, std::exp(part / 512), std::exp(exact_part / 512));
    EXPECT_NEAR(std::exp(part / 512) / std::exp(exact_part / 512), 1, 0.01) << at;
    nll += part;
    exact_nll += exact_part;
  }
  EXPECT_NEAR(nll, exact_nll, 0.01 * 4096);
}

}  // namespace
}  // namespace ellm::tests
