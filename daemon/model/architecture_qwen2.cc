// Qwen2 and Qwen2.5: Q, K and V carry biases; RoPE pairs the two halves of a head.
#include "daemon/model/architectures.h"

namespace ellm::model::architectures {
namespace {

using enum Extent;
using enum Need;

constexpr TensorSpec kModel[] = {
    {"token_embd.weight", embedding, vocabulary, required},
    {"output_norm.weight", embedding, none, required},
    {"output.weight", embedding, vocabulary, optional},
    {"rope_freqs.weight", rope_pairs, none, optional},
};

constexpr TensorSpec kLayer[] = {
    {"attn_norm.weight", embedding, none, required},
    {"attn_q.weight", embedding, queries, required},
    {"attn_k.weight", embedding, keys, required},
    {"attn_v.weight", embedding, keys, required},
    {"attn_output.weight", queries, embedding, required},
    {"attn_q.bias", queries, none, required},
    {"attn_k.bias", keys, none, required},
    {"attn_v.bias", keys, none, required},
    {"attn_output.bias", embedding, none, optional},
    {"ffn_norm.weight", embedding, none, required},
    {"ffn_gate.weight", embedding, feed_forward, required},
    {"ffn_up.weight", embedding, feed_forward, required},
    {"ffn_down.weight", feed_forward, embedding, required},
};

}  // namespace

extern const Architecture qwen2;
const Architecture qwen2 = {"qwen2", true, kModel, kLayer};

}  // namespace ellm::model::architectures
