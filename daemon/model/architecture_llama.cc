// Llama 1 to 3, Mistral, SmolLM2 and their like. Conversion to GGUF permutes the rows of Q and K, so that RoPE works on
// neighbouring values. Biases are rare but exist (attention_bias in the original configuration).
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
    {"attn_q.bias", queries, none, optional},
    {"attn_k.bias", keys, none, optional},
    {"attn_v.bias", keys, none, optional},
    {"attn_output.bias", embedding, none, optional},
    {"ffn_norm.weight", embedding, none, required},
    {"ffn_gate.weight", embedding, feed_forward, required},
    {"ffn_up.weight", embedding, feed_forward, required},
    {"ffn_down.weight", feed_forward, embedding, required},
};

}  // namespace

extern const Architecture llama;
const Architecture llama = {"llama", false, kModel, kLayer};

}  // namespace ellm::model::architectures
