// One token's K or V into its slot of a block (kernels/kv_block.h), once for all levels. Everything of the slot is
// written, padding too (zeros), so that equal inputs make equal bytes.
#pragma once
#include <string.h>

#include "kernels/kv_block.h"
#include "kernels/lanes/attention_bytes.h"
#include "kernels/lanes/quantise.h"
#include "kernels/lanes/rotation.h"

namespace ellm::kernels {
namespace {

/// A row of f16 or f32: value d at block + d * step.
template <class L>
ELLM_INLINE void store_floats(KvType type, const float* x, uint32_t n, uint32_t padded, std::byte* block,
                              uint32_t step) {
  for (uint32_t d = 0; d < padded; d += 16) {
    const L values = values_from<L>(x, d, n);
    const uint32_t count = padded - d < 16 ? padded - d : 16;
    if (type == KvType::f16) {
      uint16_t halves[16];
      values.store_halves(halves);
      for (uint32_t i = 0; i < count; ++i) memcpy(block + (d + i) * step, &halves[i], 2);
    } else {
      float floats[16];
      values.store(floats);
      for (uint32_t i = 0; i < count; ++i) memcpy(block + (d + i) * step, &floats[i], 4);
    }
  }
}

/// Sixteen codes as bytes.
template <class L>
ELLM_INLINE void store_bytes(L codes, uint8_t* to) {
  int16_t rounded[16];
  codes.store_integers(rounded);
  for (uint32_t i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(rounded[i] & 255);
}

/// What rounding left of x, from `code * scale + least`, in parts of scale / 254; 0 where there is no scale.
template <class L>
ELLM_INLINE void store_rest(L x, L code, float scale, float least, uint8_t* rest) {
  const float factor = scale > 0.0f ? kRestParts / scale : 0.0f;
  const L left = sub(x, fma(code, L::broadcast(scale), L::broadcast(least)));
  store_bytes(limited(left, L::broadcast(factor), 127), rest);
}

/// A row's codes as bytes (a multiple of 16 is written), and their rest.
template <class L>
ELLM_INLINE float int8_codes(const float* x, uint32_t n, uint8_t* codes, uint8_t* rest) {
  const CodeScale s = code_scale<L>(x, n, 127);
  for (uint32_t d = 0; d < n; d += 16) {
    const L values = values_from<L>(x, d, n), code = limited(values, L::broadcast(s.factor), 127);
    store_bytes(code, codes + d);
    store_rest(values, nearest(code), s.scale, 0.0f, rest + d);
  }
  return s.scale;
}

/// The same for int4, with scale and minimum of each 32 dimensions at ranges + b * 64 and 32 halves behind it.
template <class L>
ELLM_INLINE void int4_codes(const float* x, uint32_t n, uint8_t* codes, uint8_t* rest, std::byte* ranges,
                            uint32_t slot) {
  for (uint32_t b = 0; b * kKvBlock < n; ++b) {
    const float* from = x + b * kKvBlock;
    const uint32_t count = n - b * kKvBlock < kKvBlock ? n - b * kKvBlock : kKvBlock;
    const Int4Range r = int4_range<L>(from, count);
    for (uint32_t d = 0; d < count; d += 16) {
      const L values = values_from<L>(from, d, count), code = limited(values, r);
      const uint32_t left = count - d < 16 ? count - d : 16;
      uint8_t bytes[16];
      store_bytes(code, bytes);
      memcpy(codes + b * kKvBlock + d, bytes, left);
      store_rest(values, nearest(code), r.scale, r.least, bytes);
      memcpy(rest + b * kKvBlock + d, bytes, left);
    }
    std::byte* to = ranges + b * 2 * kPageTokens * 2 + slot * 2;
    memcpy(to, &r.scale_half, 2);
    memcpy(to + kPageTokens * 2, &r.least_half, 2);
  }
}

template <class L>
ELLM_INLINE void store_k_slot(KvType type, uint32_t head_dim, const float* k, std::byte* block, uint32_t slot) {
  if (type == KvType::f16)
    return store_floats<L>(type, k, head_dim, (head_dim + 3) / 4 * 4, block + slot * 2, kPageTokens * 2);
  if (type == KvType::f32)
    return store_floats<L>(type, k, head_dim, (head_dim + 3) / 4 * 4, block + slot * 4, kPageTokens * 4);
  const size_t rest_bytes = kv_rest_bytes(type, head_dim);
  float rotated[kMaxHeadDim];
  memcpy(rotated, k, head_dim * sizeof(float));
  rotate<L>(rotated, head_dim);
  uint8_t codes[kMaxHeadDim + 16] = {}, rest[kMaxHeadDim + 16] = {};
  if (type == KvType::int8) {
    const float scale = int8_codes<L>(rotated, head_dim, codes, rest);
    for (uint32_t d = 0; d < head_dim; d += 4) memcpy(block + (d / 4 * kPageTokens + slot) * 4, codes + d, 4);
    memcpy(block + (head_dim + 3) / 4 * 4 * kPageTokens + slot * 4, &scale, 4);
  } else {
    std::byte* ranges = block + (head_dim + 7) / 8 * 4 * kPageTokens;
    int4_codes<L>(rotated, head_dim, codes, rest, ranges, slot);
    for (uint32_t d = 0; d < head_dim; d += 8) {
      uint8_t pairs[4];
      for (uint32_t i = 0; i < 4; ++i) pairs[i] = static_cast<uint8_t>(codes[d + i] | codes[d + 4 + i] << 4);
      memcpy(block + (d / 8 * kPageTokens + slot) * 4, pairs, 4);
    }
  }
  if (slot == 0) memcpy(block + k_block_bytes(type, head_dim) - rest_bytes, rest, rest_bytes);
}

template <class L>
ELLM_INLINE void store_v_slot(KvType type, uint32_t head_dim, const float* v, std::byte* block, uint32_t slot) {
  const uint32_t padded = (head_dim + 15) / 16 * 16;
  if (type == KvType::f16) return store_floats<L>(type, v, head_dim, padded, block + slot * padded * 2, 2);
  if (type == KvType::f32) return store_floats<L>(type, v, head_dim, padded, block + slot * padded * 4, 4);
  const size_t rest_bytes = kv_rest_bytes(type, head_dim);
  uint8_t codes[kMaxHeadDim + 16] = {}, rest[kMaxHeadDim + 16] = {};
  if (type == KvType::int8) {
    const float scale = int8_codes<L>(v, head_dim, codes, rest);
    std::byte* to = block + slot / 4 * padded * 4 + slot % 4;
    for (uint32_t d = 0; d < padded; ++d) to[d * 4] = static_cast<std::byte>(codes[d]);
    memcpy(block + padded * kPageTokens + slot * 4, &scale, 4);
  } else {
    const uint32_t blocks = kv_blocks(head_dim);
    int4_codes<L>(v, head_dim, codes, rest, block + blocks * 16 * kPageTokens, slot);
    for (uint32_t b = 0; b < blocks; ++b) {
      std::byte* to = block + (slot / 4 * blocks + b) * 64 + slot % 4;
      const uint8_t* from = codes + b * kKvBlock;
      for (uint32_t i = 0; i < 16; ++i) to[i * 4] = static_cast<std::byte>(from[i] | from[i + 16] << 4);
    }
  }
  if (slot == 0) memcpy(block + v_block_bytes(type, head_dim) - rest_bytes, rest, rest_bytes);
}

}  // namespace
}  // namespace ellm::kernels
