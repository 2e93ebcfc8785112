// The dimensions of a real model without its weights: well-known ones by name, any by JSON. Immutable data; any thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace ellm::bench {

struct Shape {
  std::string name;
  std::string architecture;  // llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3
  uint32_t layers = 0, embedding = 0, feed_forward = 0;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  uint32_t vocabulary = 0, context = 0;
  double rope_base = 10000;
  bool tied = false;         // the output matrix is the embedding table
  double llama3_factor = 0;  // of Llama 3's RoPE scaling; 0: none
  uint32_t experts = 0, experts_used = 0, expert_feed_forward = 0;
  uint32_t window = 0;  // tokens that the architecture's windowed layers see; 0: all see everything
};

/// What --shape asks for: a shape and the mix of weight types.
struct ShapeRequest {
  Shape shape;
  std::string mix;  // "q4_k_m"
  std::string label() const { return shape.name + ":" + mix; }
};

std::span<const Shape> named_shapes();  // by family, in the order of their sizes
std::string shape_names();              // with commas

/// "llama-3.2-1b:q4_0", a JSON object with Shape's fields and "type", or "@FILE" with one; the object may name a shape
/// whose fields it changes ("base"). Throws std::runtime_error that says what is wrong and what would be right.
ShapeRequest parse_shape(const std::string& text);

}  // namespace ellm::bench
