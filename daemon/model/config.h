// The hyper-parameters of a model as its file states them, checked against its tensors; and the table of architectures.
// Adding an architecture is one file and one line in the table (architectures.cc).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/format/gguf.h"
#include "kernels/weight_type.h"
#include "shm/geometry.h"

namespace ellm::model {

enum class RopeScaling : uint8_t { none, linear, yarn, llama3, longrope };

struct RopeConfig {
  uint32_t dimensions = 0;  // rotated dimensions of a head (even)
  double base = 10000;
  bool neox = false;  // pairs (i, i + n/2) instead of (2i, 2i + 1)
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  uint32_t original_context = 0;  // yarn, llama3
  double yarn_beta_fast = 32, yarn_beta_slow = 1, yarn_attention_factor = 1, yarn_extrapolation = 1;
  // Frequencies are divided by these: tensor rope_freqs.weight (llama3), rope_factors_long or _short.weight (longrope).
  std::vector<float> frequency_factors;
  bool long_factors = false;  // longrope: of the two sets, the one for long contexts
};

enum class Activation : uint8_t { silu, gelu };  // gelu: its form with tanh

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // general.name, or the file's stem
  uint32_t layers = 0, embedding = 0, feed_forward = 0;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  uint32_t context = 0;  // tokens the model was trained for
  uint32_t vocabulary = 0;
  uint32_t experts = 0, experts_used = 0;  // of each layer, by each token; 0: a plain feed-forward network
  uint32_t expert_feed_forward = 0;
  uint32_t shared_feed_forward = 0;  // of the expert that every token uses; 0: none
  bool normalise_experts = false;    // the chosen experts' weights add up to 1
  float norm_epsilon = 1e-5f;
  bool qkv_bias = false;     // also true where the file carries biases
  bool tied_output = false;  // no output.weight: token_embd serves
  RopeConfig rope;
  Activation activation = Activation::silu;
  float embedding_scale = 1;                         // token embeddings are multiplied by this
  float attention_scale = 0;                         // scores are multiplied by this; 1 / sqrt(head_dim), usually
  float attention_soft_cap = 0, logit_soft_cap = 0;  // 0: none
  uint32_t window = 0;                               // tokens that a windowed layer sees; 0: no layer is windowed
  uint32_t window_period = 0;                        // the last of so many layers sees everything; 0: none does
  std::optional<RopeConfig> window_rope;             // of the windowed layers, where it differs
  std::string size_label;                            // "135M"

  bool windowed(uint32_t layer) const {
    return window != 0 && (window_period == 0 || layer % window_period != window_period - 1);
  }
};

/// A page of the model's KV.
inline shm::PageGeometry page_geometry(const ModelConfig& c, shm::KvTypes types) {
  return {c.layers, c.kv_heads, c.head_dim, types.k, types.v};
}

/// Reads and checks hyper-parameters, required tensors and their shapes and types. Throws format::FormatError: an
/// unknown architecture, a missing or impossible value, a missing or misshapen tensor, a weight type that the kernels
/// lack; each named with what was expected. `context`: the most tokens that a request may have, by which some RoPE
/// scalings choose their factors; 0: as many as the model was trained for.
ModelConfig read_config(const format::Gguf& file, uint32_t context = 0);

/// The kernels' name for a file's type; absent where the kernels cannot compute on it.
std::optional<kernels::WeightType> weight_type(const format::TensorType& type);

}  // namespace ellm::model
