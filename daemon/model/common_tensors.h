// Tensors that most architectures have, and how lists of them are joined. For the files architecture_NAME.cc.
#pragma once
#include <array>

#include "daemon/model/architectures.h"

namespace ellm::model::architectures {

using enum Extent;
using enum Need;

inline constexpr std::array kModelTensors = {
    TensorSpec{"token_embd.weight", embedding, vocabulary, required},
    TensorSpec{"output_norm.weight", embedding, none, required},
    TensorSpec{"output.weight", embedding, vocabulary, optional},
    TensorSpec{"rope_freqs.weight", rope_pairs, none, optional},
};

inline constexpr std::array kAttentionTensors = {
    TensorSpec{"attn_norm.weight", embedding, none, required},
    TensorSpec{"attn_q.weight", embedding, queries, required},
    TensorSpec{"attn_k.weight", embedding, keys, required},
    TensorSpec{"attn_v.weight", embedding, keys, required},
    TensorSpec{"attn_output.weight", queries, embedding, required},
};

constexpr std::array<TensorSpec, 4> bias_tensors(Need of_qkv) {
  return {{{"attn_q.bias", queries, none, of_qkv},
           {"attn_k.bias", keys, none, of_qkv},
           {"attn_v.bias", keys, none, of_qkv},
           {"attn_output.bias", embedding, none, optional}}};
}

/// Queries and keys are normalised head by head, before RoPE.
inline constexpr std::array kHeadNormTensors = {
    TensorSpec{"attn_q_norm.weight", head, none, required},
    TensorSpec{"attn_k_norm.weight", head, none, required},
};

inline constexpr std::array kFeedForwardTensors = {
    TensorSpec{"ffn_norm.weight", embedding, none, required},
    TensorSpec{"ffn_gate.weight", embedding, feed_forward, required},
    TensorSpec{"ffn_up.weight", embedding, feed_forward, required},
    TensorSpec{"ffn_down.weight", feed_forward, embedding, required},
};

/// What attention and feed-forward network give is normalised before it is added to the residual stream.
inline constexpr std::array kPostNormTensors = {
    TensorSpec{"post_attention_norm.weight", embedding, none, required},
    TensorSpec{"post_ffw_norm.weight", embedding, none, required},
};

/// A mixture of experts.
inline constexpr std::array kExpertTensors = {
    TensorSpec{"ffn_norm.weight", embedding, none, required},
    TensorSpec{"ffn_gate_inp.weight", embedding, experts, required},
    TensorSpec{"ffn_gate_exps.weight", embedding, expert_feed_forward, required, experts},
    TensorSpec{"ffn_up_exps.weight", embedding, expert_feed_forward, required, experts},
    TensorSpec{"ffn_down_exps.weight", expert_feed_forward, embedding, required, experts},
};

/// The expert that every token uses, and the gate that weighs it.
inline constexpr std::array kSharedExpertTensors = {
    TensorSpec{"ffn_gate_inp_shexp.weight", embedding, none, required},
    TensorSpec{"ffn_gate_shexp.weight", embedding, shared_feed_forward, required},
    TensorSpec{"ffn_up_shexp.weight", embedding, shared_feed_forward, required},
    TensorSpec{"ffn_down_shexp.weight", shared_feed_forward, embedding, required},
};

template <size_t... N>
constexpr auto join(const std::array<TensorSpec, N>&... parts) {
  std::array<TensorSpec, (N + ...)> all{};
  size_t at = 0;
  const auto append = [&](const auto& part) {
    for (const TensorSpec& spec : part) all[at++] = spec;
  };
  (append(parts), ...);
  return all;
}

}  // namespace ellm::model::architectures
