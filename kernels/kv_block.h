// How one page's K and V of one layer and KV head lie in memory: 32 tokens, always.
//   K f16:  [head_dim][32 tokens] half                       one lane per token
//   K int8: [head_dim / 4][32 tokens][4] int8, [32] f32 scale (head_dim padded to a multiple of 4)
//   K f32, V f32: as f16, the values as they are (for measuring what the other types cost)
//   V f16:  [32 tokens][head_dim] half                       one lane per output dimension, head_dim padded to 16
//   V int8: [32 tokens][head_dim] int8, [32] f32 scale
// Sizes are multiples of 64 bytes. shm/geometry.h holds the same sizes; a test holds the two equal.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ellm::kernels {

enum class KvType : uint8_t { f16, int8, f32 };

inline constexpr uint32_t kPageTokens = 32;
inline constexpr uint32_t kAttentionSegment = 512;   // tokens; long contexts are cut here, whoever works on them
inline constexpr uint32_t kMaxHeadDim = 256;         // a precondition of attention: its scratch memory is of fixed size

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/// Bytes of a block's `values`, with the scales that int8 has for each token.
constexpr size_t kv_values_bytes(KvType type, size_t values) {
  return type == KvType::f16 ? values * 2 : type == KvType::f32 ? values * 4 : values + kPageTokens * 4;
}
constexpr size_t k_block_bytes(KvType type, uint32_t head_dim) {
  const size_t values = round_up(head_dim, 4) * kPageTokens;
  return kv_values_bytes(type, values);
}
constexpr size_t v_block_bytes(KvType type, uint32_t head_dim) {
  const size_t values = round_up(head_dim, 16) * kPageTokens;
  return kv_values_bytes(type, values);
}
/// Floats of one partial result: maximum, sum, then the accumulated values (padded to 16).
constexpr size_t attention_partial_floats(uint32_t head_dim) { return 16 + round_up(head_dim, 16); }

}  // namespace ellm::kernels
