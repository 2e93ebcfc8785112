// The table of architectures: which tensors a model must and may have, how its RoPE pairs its values, and what else its
// file says. A new architecture is a file architecture_NAME.cc that defines its row and a line in architectures.cc.
// Immutable data.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ellm::model {

class ConfigReader;
struct ModelConfig;

/// What a tensor's dimension is made of.
enum class Extent : uint8_t {
  none,  // a vector has no rows
  embedding,
  vocabulary,
  queries,              // heads * head_dim
  keys,                 // kv_heads * head_dim
  queries_keys_values,  // in one tensor, in this order
  feed_forward,
  twice_feed_forward,  // gate and up in one tensor
  expert_feed_forward,
  shared_feed_forward,
  experts,
  head,        // head_dim
  rope_pairs,  // rotated dimensions / 2
};

enum class Need : uint8_t { required, optional };

/// A weight matrix (rows, columns), a vector of `columns` values, or `depth` matrices.
struct TensorSpec {
  const char* name;  // in a layer: without its "blk.N."
  Extent columns, rows;
  Need need;
  Extent depth = Extent::none;
};

struct Architecture {
  const char* name;                   // general.architecture, and the prefix of its keys
  bool neox;                          // RoPE pairs (i, i + n/2) instead of (2i, 2i + 1)
  std::span<const TensorSpec> model;  // once
  std::span<const TensorSpec> layer;  // in each layer
  void (*read)(const ConfigReader& reader, ModelConfig& config) = nullptr;  // keys of its own, after the common ones
};

/// Null where the name is unknown.
const Architecture* find_architecture(std::string_view name);

/// "gemma2, gemma3, llama, …"
std::string architecture_names();

}  // namespace ellm::model
