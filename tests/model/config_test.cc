// Hyper-parameters: what is read from valid files, and the message for each thing that can be wrong.
#include "daemon/model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "daemon/model/rope.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

namespace ellm::model {
namespace {

using format::FormatError;
using format::Gguf;
using tests::GgufBuilder;
using tests::tiny_model;

ModelConfig config_of(const GgufBuilder& builder) {
  tests::TempDir dir;
  return read_config(*Gguf::open(dir.write("file.gguf", builder.bytes())));
}

/// The refusal without the folder: "file.gguf: key …".
std::string refusal(const GgufBuilder& builder) {
  try {
    config_of(builder);
  } catch (const FormatError& error) {
    const std::string text = error.what();
    return text.substr(text.find("file.gguf"));
  }
  return "(accepted)";
}

TEST(Config, Tiny) {
  const ModelConfig config = config_of(tiny_model());
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.layers, 2u);
  EXPECT_EQ(config.embedding, 32u);
  EXPECT_EQ(config.feed_forward, 64u);
  EXPECT_EQ(config.heads, 4u);
  EXPECT_EQ(config.kv_heads, 2u);
  EXPECT_EQ(config.head_dim, 8u);
  EXPECT_EQ(config.context, 256u);
  EXPECT_EQ(config.vocabulary, 40u);
  EXPECT_EQ(config.norm_epsilon, 1e-6f);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_TRUE(config.tied_output);
  EXPECT_FALSE(config.rope.neox);
  EXPECT_EQ(config.rope.dimensions, 8u);
  EXPECT_EQ(config.rope.base, 10000);
  EXPECT_EQ(config.rope.scaling, RopeScaling::none);
  EXPECT_EQ(config.size_label, "20K");  // 40*32 + 32 + 2*(32 + 32*32 + 2*32*16 + 32*32 + 32 + 3*32*64) = 19,872
}

TEST(Config, Qwen2) {
  GgufBuilder b = tiny_model("qwen2");
  b.tensor_f32("output.weight", {32, 40}).f32("qwen2.rope.freq_base", 1e6f).remove("general.name");
  const ModelConfig config = config_of(b);
  EXPECT_TRUE(config.rope.neox);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.tied_output);
  EXPECT_EQ(config.rope.base, 1e6);
  EXPECT_EQ(config.name, "file");
  EXPECT_EQ(refusal(b.remove_tensor("blk.1.attn_k.bias")), "file.gguf: tensor 'blk.1.attn_k.bias' is missing");
}

TEST(Config, LlamaMayHaveBiases) {
  GgufBuilder b = tiny_model();
  b.tensor_f32("blk.0.attn_v.bias", {16}).tensor_f32("blk.0.attn_output.bias", {32});
  EXPECT_TRUE(config_of(b).qkv_bias);
}

TEST(Config, OwnHeadSize) {
  GgufBuilder b = tiny_model();
  b.u32("llama.attention.key_length", 16).u32("llama.attention.value_length", 16).u32("llama.rope.dimension_count", 10);
  for (const std::string l : {"blk.0.", "blk.1."}) {
    b.tensor_f32(l + "attn_q.weight", {32, 64}).tensor_f32(l + "attn_k.weight", {32, 32});
    b.tensor_f32(l + "attn_v.weight", {32, 32}).tensor_f32(l + "attn_output.weight", {64, 32});
  }
  const ModelConfig config = config_of(b);
  EXPECT_EQ(config.head_dim, 16u);
  EXPECT_EQ(config.rope.dimensions, 10u);
  b.u32("llama.attention.value_length", 8);
  EXPECT_EQ(refusal(b), "file.gguf: key 'llama.attention.value_length': 8, expected 16 to 16");
}

TEST(Config, RopeScaling) {
  GgufBuilder b = tiny_model();
  b.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4);
  EXPECT_EQ(config_of(b).rope.scaling, RopeScaling::linear);
  EXPECT_EQ(config_of(b).rope.factor, 4);

  GgufBuilder legacy = tiny_model();
  legacy.f32("llama.rope.scale_linear", 2);
  EXPECT_EQ(config_of(legacy).rope.scaling, RopeScaling::linear);
  EXPECT_EQ(config_of(legacy).rope.factor, 2);

  b.string("llama.rope.scaling.type", "none");
  EXPECT_EQ(config_of(b).rope.scaling, RopeScaling::none);
  EXPECT_EQ(make_rope_table(config_of(b).rope).frequency[0], 1);

  b.string("llama.rope.scaling.type", "yarn").u32("llama.rope.scaling.original_context_length", 64);
  b.f32("llama.rope.scaling.yarn_beta_fast", 16).f32("llama.rope.scaling.attn_factor", 0.5f);
  const RopeConfig yarn = config_of(b).rope;
  EXPECT_EQ(yarn.scaling, RopeScaling::yarn);
  EXPECT_EQ(yarn.original_context, 64u);
  EXPECT_EQ(yarn.yarn_beta_fast, 16);
  EXPECT_EQ(yarn.yarn_beta_slow, 1);
  EXPECT_EQ(yarn.yarn_attention_factor, 0.5);
  EXPECT_EQ(yarn.yarn_extrapolation, 1);
  EXPECT_EQ(refusal(b.remove("llama.rope.scaling.factor")),
            "file.gguf: key 'llama.rope.scaling.factor': is missing, yarn scaling needs it");

  b.string("llama.rope.scaling.type", "longrope");
  EXPECT_EQ(refusal(b), "file.gguf: tensor 'rope_factors_long.weight' is missing, longrope scaling needs it");
  b.string("llama.rope.scaling.type", "dynamic");
  EXPECT_EQ(refusal(b),
            "file.gguf: key 'llama.rope.scaling.type': unknown scaling 'dynamic', expected none, linear, yarn or "
            "longrope");

  GgufBuilder llama3 = tiny_model();
  llama3.tensor_f32("rope_freqs.weight", {4}, 8.0f);
  EXPECT_EQ(config_of(llama3).rope.scaling, RopeScaling::llama3);
  EXPECT_EQ(make_rope_table(config_of(llama3).rope).frequency[0], 0.125);
  llama3.tensor_f32("rope_freqs.weight", {3}, 8.0f);
  EXPECT_EQ(refusal(llama3), "file.gguf: tensor 'rope_freqs.weight': 3 values, expected 4, one for each rotated pair");
  llama3.tensor_f32("rope_freqs.weight", {4}, 0.0f);
  EXPECT_EQ(refusal(llama3), "file.gguf: tensor 'rope_freqs.weight': a factor is 0.000000, expected 0.001 to 1e6");
}

TEST(Config, Refusals) {
  const auto with_u32 = [](const std::string& key, uint32_t x) { return refusal(tiny_model().u32("llama." + key, x)); };
  EXPECT_EQ(
      refusal(tiny_model("mamba")),
      "file.gguf: key 'general.architecture': unknown architecture 'mamba', expected one of gemma2, gemma3, llama, phi3, "
      "qwen2, qwen2moe, qwen3, qwen3moe");
  EXPECT_EQ(refusal(GgufBuilder{}), "file.gguf: key 'general.architecture' is missing");
  EXPECT_EQ(with_u32("block_count", 0), "file.gguf: key 'llama.block_count': 0, expected 1 to 65536");
  EXPECT_EQ(with_u32("block_count", 3), "file.gguf: tensor 'blk.2.attn_norm.weight' is missing");
  EXPECT_EQ(with_u32("block_count", 1),
            "file.gguf: tensor 'blk.1.attn_norm.weight': architecture llama with 1 layer has no such tensor");
  EXPECT_EQ(with_u32("attention.head_count", 6),
            "file.gguf: key 'llama.attention.head_count': an embedding of 32 in 6 heads, expected heads of 8 to 256 "
            "values without a rest");
  EXPECT_EQ(with_u32("attention.head_count_kv", 3),
            "file.gguf: key 'llama.attention.head_count_kv': 3 does not divide the head count 4");
  EXPECT_EQ(with_u32("rope.dimension_count", 7),
            "file.gguf: key 'llama.rope.dimension_count': 7, expected an even number");
  EXPECT_EQ(with_u32("rope.dimension_count", 10), "file.gguf: key 'llama.rope.dimension_count': 10, expected 2 to 8");
  EXPECT_EQ(with_u32("expert_count", 8),
            "file.gguf: key 'llama.expert_count': mixtures of experts are not supported in "
            "architecture llama");
  EXPECT_EQ(with_u32("expert_count", 0), "(accepted)");
  EXPECT_EQ(refusal(tiny_model().remove("llama.context_length")), "file.gguf: key 'llama.context_length': is missing");
  EXPECT_EQ(refusal(tiny_model().f32("llama.attention.layer_norm_rms_epsilon", -1)),
            "file.gguf: key 'llama.attention.layer_norm_rms_epsilon': -1, expected 1e-20 to 1");
  EXPECT_EQ(refusal(tiny_model().f32("llama.rope.freq_base", std::nanf(""))),
            "file.gguf: key 'llama.rope.freq_base': nan, expected 2 to 1e+15");
  EXPECT_EQ(refusal(tiny_model().strings("tokenizer.ggml.tokens", {"a", "b"})),
            "file.gguf: key 'tokenizer.ggml.tokens': 2 tokens, expected 40, the rows of tensor 'token_embd.weight'");
}

TEST(Config, TensorRefusals) {
  EXPECT_EQ(refusal(tiny_model().tensor_f32("blk.0.ffn_up.weight", {64, 32})),
            "file.gguf: tensor 'blk.0.ffn_up.weight': its shape is 64 x 32, expected 32 x 64");
  EXPECT_EQ(refusal(tiny_model().tensor_f32("blk.1.attn_norm.weight", {16, 2})),
            "file.gguf: tensor 'blk.1.attn_norm.weight': its shape is 16 x 2, expected 32");
  EXPECT_EQ(refusal(tiny_model().tensor("blk.1.attn_k.weight", {32, 16}, 9, std::string(16 * 36, '\0'))),
            "file.gguf: tensor 'blk.1.attn_k.weight': type Q8_1 is not supported for a weight matrix, expected one of "
            "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, MXFP4");
  EXPECT_EQ(
      refusal(tiny_model().tensor("output_norm.weight", {32}, 8, std::string(34, '\0'))),
      "file.gguf: tensor 'output_norm.weight': type Q8_0 is not supported for a vector, expected one of F32, F16, "
      "BF16");
  EXPECT_EQ(refusal(tiny_model().tensor("output_norm.weight", {32}, 1, std::string(64, '\0'))), "(accepted)");
  EXPECT_EQ(refusal(tiny_model().tensor_f32("blk.0.attn_q_norm.weight", {8})),
            "file.gguf: tensor 'blk.0.attn_q_norm.weight': architecture llama with 2 layers has no such tensor");
  EXPECT_EQ(refusal(tiny_model().remove_tensor("token_embd.weight")),
            "file.gguf: tensor 'token_embd.weight' is missing");
}

TEST(ConfigReference, Models) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const ModelConfig stories = read_config(*Gguf::open(*data + "/models/stories260K.gguf"));
  EXPECT_EQ(stories.layers, 5u);
  EXPECT_EQ(stories.embedding, 64u);
  EXPECT_EQ(stories.feed_forward, 172u);
  EXPECT_EQ(stories.heads, 8u);
  EXPECT_EQ(stories.kv_heads, 4u);
  EXPECT_EQ(stories.head_dim, 8u);
  EXPECT_EQ(stories.vocabulary, 512u);
  for (const char* name :
       {"models/stories260K-Q4_K_M.gguf", "models/stories260K-split-00001-of-00003.gguf", "synth/llama-gqa-f32.gguf",
        "synth/qwen2-f32.gguf", "synth/qwen2-tied-f32.gguf", "synth/llama256-Q8_0.gguf", "synth/llama256-Q6_K.gguf"})
    EXPECT_NO_THROW(read_config(*Gguf::open(*data + "/" + name))) << name;
  EXPECT_TRUE(read_config(*Gguf::open(*data + "/synth/qwen2-tied-f32.gguf")).tied_output);
  EXPECT_FALSE(read_config(*Gguf::open(*data + "/synth/qwen2-f32.gguf")).tied_output);
  const ModelConfig gemma2 = read_config(*Gguf::open(*data + "/synth/gemma2-f32.gguf"));
  EXPECT_EQ(gemma2.attention_soft_cap, 50);
  EXPECT_EQ(gemma2.logit_soft_cap, 30);
  EXPECT_EQ(gemma2.embedding_scale, 8);
  EXPECT_EQ(gemma2.attention_scale, 1 / std::sqrt(32.0f));
  EXPECT_EQ(gemma2.window, 16u);
  EXPECT_TRUE(gemma2.windowed(0));
  EXPECT_FALSE(gemma2.windowed(1));
  const ModelConfig gemma3 = read_config(*Gguf::open(*data + "/synth/gemma3-f32.gguf"));
  EXPECT_EQ(gemma3.attention_soft_cap, 0);
  EXPECT_TRUE(gemma3.windowed(4));
  EXPECT_FALSE(gemma3.windowed(5));
  EXPECT_TRUE(gemma3.windowed(6));
  EXPECT_EQ(gemma3.rope.base, 1e6);
  EXPECT_EQ(gemma3.window_rope->base, 10000);
  // Heads of 4 values.
  EXPECT_THROW(read_config(*Gguf::open(*data + "/models/llama-2-tiny-random.f16.gguf")), FormatError);
}

}  // namespace
}  // namespace ellm::model
