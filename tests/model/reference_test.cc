// The forward pass against what others computed: float64 passes over the same files, and llama.cpp's outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "tests/support/json_file.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

using boost::json::value;

std::vector<float> read_npy_f32(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  const std::string bytes = s.str();
  const size_t header = 10 + static_cast<unsigned char>(bytes.at(8)) + 256u * static_cast<unsigned char>(bytes.at(9));
  std::vector<float> out((bytes.size() - header) / sizeof(float));
  std::memcpy(out.data(), bytes.data() + header, out.size() * sizeof(float));
  return out;
}

#define NEED_DATA()              \
  const auto data = test_data(); \
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set"

// ---- small models -------------------------------------------------------------------------------------------------

TEST(Reference, Stories260kLogitsEqualAFloat64Pass) {
  NEED_DATA();
  ModelRunner runner(load_model(*data + "/models/stories260K.gguf"), {.kv_type = shm::KvType::f32});
  const value gold = read_json(*data + "/reference/stories260K_gold.json");
  const auto tokens = numbers<uint32_t>(gold.at("tokens"));
  const auto expected = read_npy_f32(*data + "/reference/stories260K_gold_logits_f32.npy");
  const auto logits = runner.logits(tokens, 512);
  ASSERT_EQ(logits.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) worst = std::max<double>(worst, std::abs(logits[i] - expected[i]));
  EXPECT_LT(worst, 1e-3);
}

class Synth : public testing::TestWithParam<const char*> {
 protected:
  /// Runs the common text; calls `each` with the expected and our row at the listed positions.
  void run(const std::string& data, shm::KvType kv,
           const std::function<void(const std::vector<double>&, std::span<const float>)>& each) {
    ModelRunner runner(load_model(data + "/synth/" + GetParam() + ".gguf"), {.kv_type = kv});
    const value all = read_json(data + "/synth/reference_logits.json");
    expected_ = all.at("models").at(GetParam());
    tokens_ = numbers<uint32_t>(all.at("tokens"));
    logits_ = runner.logits(tokens_, 512);
    vocabulary_ = runner.vocabulary();
    for (const auto& [position, row] : expected_.at("logits").as_object()) {
      each(numbers<double>(row), row_of(logits_, std::stoul(position), vocabulary_));
    }
  }
  value expected_;
  std::vector<uint32_t> tokens_;
  std::vector<float> logits_;
  uint32_t vocabulary_ = 0;
};

class SynthFloat : public Synth {};

TEST_P(SynthFloat, LogitsEqualThePeersWithin1e3) {
  NEED_DATA();
  const bool gemma =
      std::string_view(GetParam()).starts_with("gemma");  // the peer looks its GELU up in a table of halves
  double worst = 0;
  run(*data, shm::KvType::f32, [&](const auto& want, auto got) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
  });
  std::printf("%s: largest difference %.2g\n", GetParam(), worst);
  EXPECT_LT(worst, gemma ? 5e-3 : 1e-3);
}
INSTANTIATE_TEST_SUITE_P(Reference, SynthFloat,
                         testing::Values("llama-gqa-f32", "qwen2-f32", "qwen2-tied-f32", "qwen3-f32", "gemma2-f32",
                                         "gemma3-f32"));

class SynthQuantised : public Synth {};

/// The peer rounds activations, too, in its own way: argmax equal where its two best are clearly apart, and the text's
/// mean log-likelihood within 1 % (random weights: a perplexity of about 25,000, within a tenth). Every published mix
/// of K-quants is among them: Q2_K (with Q3_K, Q6_K), Q3_K_M (Q3_K, Q4_K, Q5_K, Q6_K), Q4_K_M, Q5_K_M (with Q6_K),
/// IQ4_XS (with Q6_K).
TEST_P(SynthQuantised, AgreesWithThePeer) {
  NEED_DATA();
  run(*data, shm::KvType::f16, [&](std::vector<double> want, auto got) {
    const uint32_t best = static_cast<uint32_t>(std::ranges::max_element(want) - want.begin());
    std::ranges::sort(want, std::greater());
    if (want[0] - want[1] > 0.5) {
      EXPECT_EQ(best_of(got), best);
    }
  });
  const double expected = expected_.at("mean_nll").to_number<double>();
  EXPECT_NEAR(mean_nll(logits_, tokens_, vocabulary_), expected, 0.01 * expected);
}
INSTANTIATE_TEST_SUITE_P(Reference, SynthQuantised,
                         testing::Values("llama256-Q2_K", "llama256-Q3_K_M", "llama256-Q4_0", "llama256-Q4_K_M",
                                         "llama256-Q5_K_M", "llama256-Q6_K", "llama256-Q8_0", "llama256-IQ4_XS"));

// ---- stories260K in all its weight types --------------------------------------------------------------------------

std::string stories(const std::string& data, const std::string& name) { return data + "/models/" + name + ".gguf"; }

TEST(Reference, StoriesPerplexities) {
  NEED_DATA();
  std::ifstream sample(*data + "/text/tinystories_sample.txt");
  std::stringstream text;
  text << sample.rdbuf();
  std::ifstream lines(*data + "/reference/ppl_tinystories_sample.txt");
  int checked = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string file, word;
    words >> file;
    double expected = 0;
    size_t full = 0, used = 0;
    while (words >> word) {
      if (word == "ppl") words >> expected;
      if (word == "tokens_full") words >> full;
      if (word == "used") words >> used;
    }
    ModelRunner runner(load_model(*data + "/" + file), {});
    auto tokens = runner.model().tokenizer()->encode(text.str());
    EXPECT_EQ(tokens.size(), full) << file;
    tokens.resize(used);
    const double perplexity = std::exp(mean_nll(runner.logits(tokens), tokens, runner.vocabulary()));
    EXPECT_NEAR(perplexity / expected, 1, 0.005) << file << ": " << perplexity << ", expected " << expected;
    ++checked;
  }
  EXPECT_EQ(checked, 11);
}

TEST(Reference, StoriesGreedyTexts) {
  NEED_DATA();
  const value all = read_json(*data + "/reference/greedy_stories260K.json");
  std::string open;
  std::unique_ptr<ModelRunner> runner;
  for (const value& run : all.at("runs").as_array()) {
    const std::string name(run.at("model").as_string());
    if (name != open) runner = std::make_unique<ModelRunner>(load_model(stories(*data, name)), RunnerOptions{});
    open = name;
    const auto prompt = numbers<uint32_t>(run.at("prompt_tokens"));
    EXPECT_EQ(runner->model().tokenizer()->encode(run.at("prompt").as_string()), prompt);
    const auto want = numbers<uint32_t>(run.at("out_tokens"));
    // teacher-forced: every choice equals the peer's, for quantised weights up to our first narrow one
    std::vector<uint32_t> tokens = prompt;
    tokens.insert(tokens.end(), want.begin(), want.end());
    const auto logits = runner->logits(tokens, 512);
    const bool exact = name == "stories260K" || name == "stories260K-F16";
    for (size_t i = 0; i < want.size(); ++i) {
      const auto row = row_of(logits, prompt.size() - 1 + i, runner->vocabulary());
      if (!exact && margin_of(row) < 0.5) break;
      ASSERT_EQ(best_of(row), want[i]) << name << ", prompt '" << run.at("prompt").as_string() << "', token " << i;
    }
    if (exact) {
      EXPECT_EQ(runner->greedy(prompt, static_cast<uint32_t>(want.size())), want);
    }
  }
}

}  // namespace
}  // namespace ellm::tests
