// One answer: the logits are the same to the bit however a prompt is cut, on any number of threads, in any company, at
// any kernel level.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <random>

#include "daemon/runtime/cpu_features.h"
#include "tests/kernels/emulated_level.h"
#include "tests/support/generated_model.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

std::vector<uint32_t> random_tokens(size_t n, uint32_t vocabulary, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> out(n);
  for (auto& t : out) t = 3 + random() % (vocabulary - 3);
  return out;
}

::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " logits";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "logit " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

std::vector<std::string> levels() {
  const auto cpu = runtime::detect_cpu();
  std::vector<std::string> out = {"scalar"};
  if (cpu.runs_avx2()) out.push_back("avx2");
  if (cpu.runs_avx512()) out.push_back("avx512");
  if (cpu.runs_amx()) out.push_back("amx");
  return out;
}

struct Subject {
  const char* file;  // of the reference data, or "generated/KIND"
  shm::KvType kv;
};

/// "stories260K_Q4_K_M_int8"
std::string name_of_subject(const testing::TestParamInfo<Subject>& info) {
  const std::string file = info.param.file;
  const size_t slash = file.rfind('/'), dot = std::min(file.rfind('.'), file.size());
  std::string name = file.substr(slash + 1, dot - slash - 1) + "_" + shm::name_of(info.param.kv);
  std::ranges::replace(name, '-', '_');
  return name;
}
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.file; }

class Determinism : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const std::string_view file = GetParam().file;
    if (file.starts_with("generated/")) {
      model_ = load_model(GeneratedModel(std::string(file.substr(10))).path());
      return;
    }
    const auto data = test_data();
    if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
    model_ = load_model(*data + GetParam().file);
  }
  ModelRunner runner(const std::string& kernels = "auto", uint32_t threads = 2) {
    return ModelRunner(model_, {.kernels = kernels, .threads = threads, .kv_type = GetParam().kv});
  }
  std::shared_ptr<const model::Model> model_;
};

TEST_P(Determinism, ChunkedEqualsWhole) {
  auto r = runner();
  const auto tokens = random_tokens(150, r.vocabulary(), 1);
  const auto whole = r.logits(tokens, 512);
  for (uint32_t chunk : {1u, 2u, 7u, 32u, 33u, 64u, 149u})
    EXPECT_TRUE(same_bits(whole, r.logits(tokens, chunk))) << chunk;
}

TEST_P(Determinism, AnyNumberOfThreads) {
  auto one = runner("auto", 1);
  const auto tokens = random_tokens(75, one.vocabulary(), 2);
  const auto expected = one.logits(tokens, 512);
  for (uint32_t threads : {2u, 3u, 4u}) {
    auto many = runner("auto", threads);
    EXPECT_TRUE(same_bits(expected, many.logits(tokens, 512))) << threads;
    EXPECT_TRUE(same_bits(expected, many.logits(tokens, 1))) << threads;
  }
}

// Sequences over one prefix whose pages they share: read once, the same bits as with pages of their own.
TEST_P(Determinism, SharedPagesEqualPrivateOnes) {
  auto r = runner();
  constexpr uint32_t kSharedTokens = 288, kSteps = 20;
  const auto prefix = random_tokens(kSharedTokens, r.vocabulary(), 4);
  ModelRunner::Sequence first;
  r.step({&first, prefix, 0});
  std::vector<ModelRunner::Sequence> sequences(5, first);
  std::vector<std::vector<uint32_t>> texts;
  std::vector<std::vector<float>> shared(sequences.size());
  for (uint32_t i = 0; i < sequences.size(); ++i)
    texts.push_back(random_tokens(kSteps + 15 * i, r.vocabulary(), 20 + i));
  uint64_t alone_bytes = 0;
  for (uint32_t step = 0; step < texts.back().size(); ++step) {
    std::vector<ModelRunner::Feed> feeds;
    for (uint32_t i = 0; i < sequences.size(); ++i) {
      if (step < texts[i].size()) feeds.push_back({&sequences[i], std::span(&texts[i][step], 1), 1});
    }
    const auto logits = r.step(feeds);
    if (step == 0 && r.model().config().window == 0) {  // one page each behind the prefix's nine
      const uint64_t page = r.kv_bytes_read() / (kSharedTokens / 32 + sequences.size());
      EXPECT_EQ(r.kv_bytes_read(), page * (kSharedTokens / 32 + sequences.size()));
      alone_bytes = page * (kSharedTokens / 32 + 1);
    }
    size_t at = 0;
    for (uint32_t i = 0; i < sequences.size(); ++i) {
      if (step >= texts[i].size()) continue;
      shared[i].insert(shared[i].end(), logits.begin() + static_cast<long>(at),
                       logits.begin() + static_cast<long>(at + r.vocabulary()));
      at += r.vocabulary();
    }
  }
  for (uint32_t i = 0; i < sequences.size(); ++i) {
    auto text = prefix;
    text.insert(text.end(), texts[i].begin(), texts[i].end());
    const auto whole = r.logits(text, 512);
    EXPECT_TRUE(same_bits(std::vector(whole.begin() + kSharedTokens * static_cast<long>(r.vocabulary()), whole.end()),
                          shared[i]))
        << i;
  }
  ModelRunner::Sequence single = first;
  r.step({&single, std::span(texts[0]).first(1), 1});
  if (r.model().config().window == 0) {
    EXPECT_EQ(r.kv_bytes_read(), alone_bytes);
  }
}

TEST_P(Determinism, AloneEqualsInABatch) {
  auto r = runner();
  std::mt19937 random(3);
  std::vector<std::vector<uint32_t>> texts;
  std::vector<std::vector<float>> alone;
  for (uint32_t i = 0; i < 7; ++i) {
    texts.push_back(random_tokens(20 + 11 * i, r.vocabulary(), 10 + i));
    alone.push_back(r.logits(texts.back(), 512));
  }
  std::vector<ModelRunner::Sequence> sequences(texts.size());
  std::vector<std::vector<float>> together(texts.size());
  for (bool more = true; more;) {
    more = false;
    std::vector<ModelRunner::Feed> feeds;
    std::vector<size_t> who;
    for (size_t i = 0; i < texts.size(); ++i) {
      const size_t left = texts[i].size() - sequences[i].length;
      if (left == 0) continue;
      more = true;
      const size_t n = std::min<size_t>(left, 1 + random() % (random() % 3 == 0 ? 30 : 1));
      feeds.push_back({&sequences[i], std::span(texts[i]).subspan(sequences[i].length, n), static_cast<uint32_t>(n)});
      who.push_back(i);
    }
    if (!more) break;
    const auto rows = r.step(feeds);
    size_t at = 0;
    for (size_t f = 0; f < feeds.size(); ++f) {
      const size_t n = size_t{feeds[f].logits} * r.vocabulary();
      together[who[f]].insert(together[who[f]].end(), rows.begin() + static_cast<long>(at),
                              rows.begin() + static_cast<long>(at + n));
      at += n;
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_TRUE(same_bits(alone[i], together[i])) << i;
}

TEST_P(Determinism, EveryKernelLevel) {
  auto scalar = runner("scalar");
  const auto tokens = random_tokens(40, scalar.vocabulary(), 4);
  const auto expected = scalar.logits(tokens, 512);
  for (const std::string& level : levels()) {
    auto r = runner(level);
    EXPECT_EQ(r.kernels().name, level);
    EXPECT_TRUE(same_bits(expected, r.logits(tokens, 512))) << level;
    EXPECT_TRUE(same_bits(expected, r.logits(tokens, 5))) << level;
  }
}

INSTANTIATE_TEST_SUITE_P(Generated, Determinism,
                         testing::Values(Subject{"generated/phi3-window", shm::KvType::f16},
                                         Subject{"generated/qwen2moe-q8", shm::KvType::f16},
                                         Subject{"generated/qwen3moe", shm::KvType::int8}),
                         name_of_subject);
INSTANTIATE_TEST_SUITE_P(Reference, Determinism,
                         testing::Values(Subject{"/models/stories260K.gguf", shm::KvType::f16},
                                         Subject{"/models/stories260K-Q4_K_M.gguf", shm::KvType::int8},
                                         Subject{"/models/stories260K-Q5_1.gguf", shm::KvType::f16},
                                         Subject{"/synth/qwen2-f32.gguf", shm::KvType::int8},
                                         Subject{"/synth/gemma3-f32.gguf", shm::KvType::int8},
                                         Subject{"/synth/gemma2-f32.gguf", shm::KvType::f16},
                                         Subject{"/synth/llama256-Q6_K.gguf", shm::KvType::f16},
                                         Subject{"/synth/llama256-Q4_0.gguf", shm::KvType::int8},
                                         Subject{"/synth/llama256-Q2_K.gguf", shm::KvType::int8},
                                         Subject{"/synth/llama256-Q3_K_M.gguf", shm::KvType::f16},
                                         Subject{"/synth/llama256-IQ4_XS.gguf", shm::KvType::f16}),
                         name_of_subject);

/// A long single context, whose attention the workers split by segments: the same as its rows in a chunk, which is not
/// split.
TEST(Determinism, LongContextsSplitOverThreads) {
  for (const char* kind : {"phi3", "phi3-window"}) {
    const auto model = load_model(GeneratedModel(kind).path());
    const auto tokens = random_tokens(1500, model->config().vocabulary, 5);
    const auto last_five = [&](uint32_t threads, uint32_t piece) {
      ModelRunner r(model, {.threads = threads, .pages = 80});
      ModelRunner::Sequence s;
      const auto feed = [&](size_t from, size_t to, uint32_t logits) {
        return r.step({&s, std::span(tokens).subspan(from, to - from), logits});
      };
      for (size_t at = 0; at < 1495; at += 299) feed(at, at + 299, 0);
      std::vector<float> rows;
      for (size_t at = 1495; at < 1500; at += piece) {
        const auto part = feed(at, at + piece, piece);
        rows.insert(rows.end(), part.begin(), part.end());
      }
      return rows;
    };
    const auto expected = last_five(1, 5);
    for (const uint32_t threads : {1u, 4u})
      EXPECT_TRUE(same_bits(expected, last_five(threads, 1))) << kind << ", " << threads;
  }
}

/// Real models, whose dimensions and weight types the small ones have not: a prompt of more than a tile in two chunks,
/// then a token alone.
class RealLevels : public testing::TestWithParam<const char*> {};

TEST_P(RealLevels, SameBits) {
  const std::string path = find_real_model(GetParam());
  if (path.empty()) GTEST_SKIP() << GetParam() << " is not there: ellm pull " << GetParam();
  const auto model = load_model(path);
  const auto run = [&](const kernels::KernelSet& kernels) {
    ModelRunner r(model, {.pages = 2}, kernels);
    constexpr size_t kFirst = 19;
    const auto tokens = random_tokens(kFirst + 3, r.vocabulary(), 6);
    ModelRunner::Sequence s;
    std::vector<float> rows;
    const auto feed = [&](size_t from, size_t count, uint32_t logits) {
      const auto more = r.step({&s, std::span(tokens).subspan(from, count), logits});
      rows.insert(rows.end(), more.begin(), more.end());
    };
    feed(0, kFirst, 1);
    feed(kFirst, 2, 2);
    feed(kFirst + 2, 1, 1);
    return rows;
  };
  const auto scalar = run(model::choose_kernels("scalar"));
  EXPECT_EQ(scalar.size(), 4 * size_t{model->config().vocabulary});
  std::vector<const kernels::KernelSet*> others;
  for (const std::string& level : levels())
    if (level != "scalar") others.push_back(&model::choose_kernels(level));
  const auto cpu = runtime::detect_cpu();
  const bool small = GetParam() == std::string("smollm2");  // the emulation takes twenty seconds of the other
  if (small && cpu.runs_avx2() && !cpu.runs_avx512()) others.push_back(&kernels::emulated_avx512_set());
  std::string ran = "scalar";
  for (const kernels::KernelSet* kernels : others) {
    ran += std::string(", ") + kernels->name;
    EXPECT_TRUE(same_bits(scalar, run(*kernels))) << kernels->name;
  }
  std::printf("%s: %s\n", GetParam(), ran.c_str());
}

INSTANTIATE_TEST_SUITE_P(Pulled, RealLevels, testing::Values("smollm2", "qwen-0.5b"), [](const auto& info) {
  return std::string(info.param).substr(0, std::string(info.param).find('-'));
});

}  // namespace
}  // namespace ellm::tests
