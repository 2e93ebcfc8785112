// How one page's K and V of one layer and KV head lie in memory: 32 tokens, always.
//   K f16:  [head_dim][32 tokens] half                       one lane per token
//   K int8: [head_dim / 4][32 tokens][4] int8, [32] f32 scale (head_dim padded to a multiple of 4)
//   K int4: [head_dim / 8][32 tokens][4] bytes: byte j holds dimension 8g + j (low nibble) and 8g + 4 + j (high) of
//   group g;
//           then for each 32 dimensions (the last: what is left) [32] half scale, [32] half minimum. Padded to 8.
//   K f32, V f32: as f16, the values as they are (for measuring what the other types cost)
//   V f16:  [32 tokens][head_dim] half                       one lane per output dimension, head_dim padded to 16
//   V int8: [8 groups][head_dim][4 tokens] int8, [32] f32 scale
//   V int4: [8 groups][head_dim / 32][16][4 tokens] bytes: dimension 32b + i of block b and lane i (low nibble) and
//           32b + 16 + i (high); then scales and minima as in K. Padded to 32.
//   int8 and int4, K and V, at the end: [head_dim padded to 64] int8, what rounding left of the token in slot 0, in
//           parts of 1/254 of the scale. Used of a context's first token alone (HACKING.md, "KV types").
// int8 and int4 K are stored rotated (kernels/lanes/rotation.h). A byte belongs to one token: rows of a step are stored
// by several threads. Sizes are multiples of 64 bytes. shm/geometry.h holds the same sizes; a test holds the two equal.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ellm::kernels {

enum class KvType : uint8_t { f16, int8, f32, int4 };

/// Integers with scales: K rotated, products of integers.
constexpr bool is_quantised(KvType type) { return type == KvType::int8 || type == KvType::int4; }

inline constexpr uint32_t kPageTokens = 32;
inline constexpr uint32_t kAttentionSegment = 512;  // tokens; long contexts are cut here, whoever works on them
inline constexpr uint32_t kSegmentPages = kAttentionSegment / kPageTokens;
inline constexpr uint32_t kKvBlock = 32;      // dimensions that share a scale and a minimum in int4
inline constexpr uint32_t kMaxHeadDim = 256;  // a precondition of attention: its scratch memory is of fixed size

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

constexpr uint32_t kv_blocks(uint32_t head_dim) { return (head_dim + kKvBlock - 1) / kKvBlock; }

/// Bytes of the scales (and minima) at the end of an int8 or int4 block.
constexpr size_t kv_scale_bytes(KvType type, uint32_t head_dim) {
  return size_t{kPageTokens} * 4 * (type == KvType::int4 ? kv_blocks(head_dim) : 1);
}
/// Bytes of what rounding left of a block's first token, behind the scales.
constexpr size_t kv_rest_bytes(KvType type, uint32_t head_dim) {
  return is_quantised(type) ? round_up(head_dim, 64) : 0;
}
/// Bytes of a block with `values` (padded) dimensions, with the scales of its tokens, but without the rest.
constexpr size_t kv_values_bytes(KvType type, size_t values, uint32_t head_dim) {
  switch (type) {
    case KvType::f16: return kPageTokens * values * 2;
    case KvType::int8: return kPageTokens * (values + 4);
    case KvType::int4: return kPageTokens * (values / 2 + size_t{kv_blocks(head_dim)} * 4);
    case KvType::f32: break;
  }
  return kPageTokens * values * 4;
}
constexpr size_t k_block_bytes(KvType type, uint32_t head_dim) {
  return kv_values_bytes(type, round_up(head_dim, type == KvType::int4 ? 8 : 4), head_dim) +
         kv_rest_bytes(type, head_dim);
}
constexpr size_t v_block_bytes(KvType type, uint32_t head_dim) {
  return kv_values_bytes(type, round_up(head_dim, type == KvType::int4 ? 32 : 16), head_dim) +
         kv_rest_bytes(type, head_dim);
}
/// Floats of one partial result: maximum, sum, then the accumulated values (padded to 16).
constexpr size_t attention_partial_floats(uint32_t head_dim) { return 16 + round_up(head_dim, 16); }

}  // namespace ellm::kernels
