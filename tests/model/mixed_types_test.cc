// One model in which every matrix has another weight type, also within one layer's q, k and v, against a float64 pass
// over the same weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "daemon/runtime/cpu_features.h"
#include "kernels/blocks.h"
#include "tests/kernels/twin.h"
#include "tests/support/generated_model.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/memory_file.h"
#include "tests/support/model_runner.h"

namespace ellm::tests {
namespace {

using kernels::WeightType;

constexpr uint32_t kEmbedding = 256, kKeys = 64, kFeedForward = 512, kTokens = 40, kLayers = 3;

void put_half(std::byte* p, float v) {
  const uint16_t h = kernels::f32_to_f16(v);
  std::memcpy(p, &h, 2);
}

/// Random GGUF rows whose weights are about 1 / 16: what keeps a layer's values near 1.
std::vector<std::byte> random_matrix(WeightType type, uint32_t rows, uint32_t cols, std::mt19937& rng) {
  std::vector<std::byte> data = twin::random_rows(type, rows, cols, rng);
  if (!kernels::is_quantised(type)) return data;
  const size_t block = kernels::block_shape(type).bytes;
  const auto [d, m] = twin::scale_place(type);
  for (int pass = 0, i = 0; pass < 2; ++pass, i = 0) {
    double squares = 0;
    for (float w : twin::weights(type, data.data(), cols)) squares += double{w} * w;
    const float scale = pass == 0 ? 1.0f / 64 : static_cast<float>(1.0 / 64 / 16 / std::sqrt(squares / cols));
    for (size_t at = 0; at < data.size(); at += block, ++i) {
      if (d >= 0) put_half(&data[at + d], scale);
      if (m >= 0) put_half(&data[at + m], scale * (i % 3 == 0 ? -1.0f : 1.0f));
      if (type == WeightType::mxfp4) data[at] = static_cast<std::byte>(120 + i % 3);
    }
  }
  return data;
}

class Patchwork {
 public:
  Patchwork() {
    std::vector<std::string> tokens;
    for (char c = 'A'; tokens.size() < kTokens; ++c) tokens.emplace_back(1, c);
    for (GgufBuilder* b : {&quantised_, &floats_}) {
      b->string("general.architecture", "llama").u32("llama.block_count", kLayers);
      b->u32("llama.embedding_length", kEmbedding).u32("llama.feed_forward_length", kFeedForward);
      b->u32("llama.context_length", 256).u32("llama.attention.head_count", 8).u32("llama.attention.head_count_kv", 2);
      b->f32("llama.attention.layer_norm_rms_epsilon", 1e-6f);
      b->string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt-2");
      b->strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", {"A B"});
      b->tensor_f32("output_norm.weight", {kEmbedding}, 1);
    }
    matrix("token_embd.weight", kTokens, kEmbedding);
    matrix("output.weight", kTokens, kEmbedding);
    for (uint32_t i = 0; i < kLayers; ++i) layer("blk." + std::to_string(i) + ".");
    if (next_ < std::size(kernels::kWeightTypes)) throw std::logic_error("a weight type is not among the matrices");
  }
  std::string quantised() const { return quantised_.bytes(); }
  std::string floats() const { return floats_.bytes(); }

 private:
  void layer(const std::string& l) {
    for (GgufBuilder* b : {&quantised_, &floats_}) {
      b->tensor_f32(l + "attn_norm.weight", {kEmbedding}, 1).tensor_f32(l + "ffn_norm.weight", {kEmbedding}, 1);
    }
    matrix(l + "attn_q.weight", kEmbedding, kEmbedding);
    matrix(l + "attn_k.weight", kKeys, kEmbedding);
    matrix(l + "attn_v.weight", kKeys, kEmbedding);
    matrix(l + "attn_output.weight", kEmbedding, kEmbedding);
    matrix(l + "ffn_gate.weight", kFeedForward, kEmbedding);
    matrix(l + "ffn_up.weight", kFeedForward, kEmbedding);
    matrix(l + "ffn_down.weight", kEmbedding, kFeedForward);
  }
  void matrix(const std::string& name, uint32_t rows, uint32_t cols) {
    const WeightType type = kernels::kWeightTypes[next_++ % std::size(kernels::kWeightTypes)];
    const std::vector<std::byte> data = random_matrix(type, rows, cols, rng_);
    quantised_.tensor(name, {cols, rows}, static_cast<uint32_t>(type),
                      std::string(reinterpret_cast<const char*>(data.data()), data.size()));
    std::string widened;
    for (uint32_t r = 0; r < rows; ++r) {
      const std::vector<float> w = twin::weights(type, &data[data.size() / rows * r], cols);
      widened.append(reinterpret_cast<const char*>(w.data()), w.size() * sizeof(float));
    }
    floats_.tensor(name, {cols, rows}, 0, std::move(widened));
  }

  GgufBuilder quantised_, floats_;
  std::mt19937 rng_{5};
  size_t next_ = 0;
};

std::shared_ptr<const model::Model> load(const std::string& bytes) {
  MemoryFile file;
  file.fill(bytes, bytes.size());
  return load_model(file.path());
}

class MixedTypes : public testing::Test {
 protected:
  MixedTypes() {
    std::mt19937 rng(6);
    for (uint32_t& t : tokens_) t = rng() % kTokens;
  }
  static const Patchwork& patchwork() {
    static const Patchwork p;
    return p;
  }
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(45);
};

// The pass in float64 rounds activations to 8 bits as we do, and nothing else: what is left (0.0008) is codes that fall
// on the other side by a rounding error of floats. A pass that does not round is 0.14 of the logits' size away: random
// weights of types with a minimum have a mean, which makes scores large and what they choose sensitive.
TEST_F(MixedTypes, EqualsAFloat64PassThatRoundsActivations) {
  ModelRunner mixed(load(patchwork().quantised()), {.kv_type = shm::KvType::f32});
  const auto got = mixed.logits(tokens_);
  const TempDir dir;
  const std::string out = (dir.path() / "logits").string();
  const std::string floats = dir.write("floats.gguf", patchwork().floats());
  const auto pass = [&](const std::string& how) {
    float64_pass(how + " '" + floats + "' " + comma_separated(tokens_) + " '" + out + "'");
    return read_values<double>(out);
  };
  const double rounded =
      relative_error(got, pass("rounded '" + dir.write("mixed.gguf", patchwork().quantised()) + "'"));
  const double exact = relative_error(got, pass("model"));
  std::printf("relative error %.2g, %.2g of it without rounding\n", rounded, exact);
  EXPECT_LT(rounded, 5e-3);
}

TEST_F(MixedTypes, TheSameBitsAtEveryLevelAndInChunks) {
  const auto model = load(patchwork().quantised());
  ModelRunner scalar(model, {.kernels = "scalar"});
  const auto want = scalar.logits(tokens_, 512);
  const auto cpu = runtime::detect_cpu();
  const std::pair<std::string, bool> levels[] = {
      {"avx2", cpu.runs_avx2()}, {"avx512", cpu.runs_avx512()}, {"amx", cpu.runs_amx()}};
  for (const auto& [level, runs] : levels) {
    if (!runs) continue;  // tests/kernels runs it emulated
    ModelRunner runner(model, {.kernels = level});
    for (uint32_t chunk : {512u, 1u, 7u}) {
      const auto got = runner.logits(tokens_, chunk);
      ASSERT_EQ(got.size(), want.size());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << level << " " << chunk;
    }
  }
}

}  // namespace
}  // namespace ellm::tests
