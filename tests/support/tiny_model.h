// A llama or qwen2 model of two layers that any test can have without reference data: valid as it is, to be changed.
#pragma once
#include <string>
#include <vector>

#include "tests/support/gguf_builder.h"

namespace ellm::tests {

/// Embedding 32, 4 heads of 8, 2 KV heads, feed-forward 64, 2 layers, 40 tokens of no tokenizer, tied output.
inline GgufBuilder tiny_model(const std::string& architecture = "llama") {
  constexpr uint64_t kEmbedding = 32, kKeys = 16, kFeedForward = 64, kTokens = 40;
  GgufBuilder b;
  const std::string p = architecture + ".";
  b.string("general.architecture", architecture).string("general.name", "tiny");
  b.u32(p + "block_count", 2).u32(p + "embedding_length", kEmbedding).u32(p + "feed_forward_length", kFeedForward);
  b.u32(p + "context_length", 256).u32(p + "attention.head_count", 4).u32(p + "attention.head_count_kv", 2);
  b.f32(p + "attention.layer_norm_rms_epsilon", 1e-6f);
  b.tensor_f32("token_embd.weight", {kEmbedding, kTokens}).tensor_f32("output_norm.weight", {kEmbedding});
  for (const std::string l : {"blk.0.", "blk.1."}) {
    b.tensor_f32(l + "attn_norm.weight", {kEmbedding}).tensor_f32(l + "attn_q.weight", {kEmbedding, kEmbedding});
    b.tensor_f32(l + "attn_k.weight", {kEmbedding, kKeys}).tensor_f32(l + "attn_v.weight", {kEmbedding, kKeys});
    b.tensor_f32(l + "attn_output.weight", {kEmbedding, kEmbedding}).tensor_f32(l + "ffn_norm.weight", {kEmbedding});
    b.tensor_f32(l + "ffn_gate.weight", {kEmbedding, kFeedForward});
    b.tensor_f32(l + "ffn_up.weight", {kEmbedding, kFeedForward});
    b.tensor_f32(l + "ffn_down.weight", {kFeedForward, kEmbedding});
    if (architecture != "qwen2") continue;
    b.tensor_f32(l + "attn_q.bias", {kEmbedding}).tensor_f32(l + "attn_k.bias", {kKeys});
    b.tensor_f32(l + "attn_v.bias", {kKeys});
  }
  return b;
}

/// The llama one with a byte-level tokenizer.
inline GgufBuilder complete_model() {
  std::vector<std::string> tokens;
  for (char c = 'A'; tokens.size() < 40; c++) tokens.emplace_back(1, c);
  GgufBuilder b = tiny_model();
  b.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt-2");
  return b.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", {"A B"});
}

}  // namespace ellm::tests
