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

/// A row's codes as bytes, `padded` of them (a multiple of 16 is written).
template <class L>
ELLM_INLINE float int8_codes(const float* x, uint32_t n, uint8_t* codes) {
  const CodeScale s = code_scale<L>(x, n, 127);
  for (uint32_t d = 0; d < n; d += 16) {
    int16_t rounded[16];
    limited(values_from<L>(x, d, n), L::broadcast(s.factor), 127).store_integers(rounded);
    for (uint32_t i = 0; i < 16; ++i) codes[d + i] = static_cast<uint8_t>(rounded[i] & 255);
  }
  return s.scale;
}

/// The same for int4, with scale and minimum of each 32 dimensions at ranges + b * 64 and 32 halves behind it.
template <class L>
ELLM_INLINE void int4_codes(const float* x, uint32_t n, uint8_t* codes, std::byte* ranges, uint32_t slot) {
  for (uint32_t b = 0; b * kKvBlock < n; ++b) {
    const float* from = x + b * kKvBlock;
    const uint32_t count = n - b * kKvBlock < kKvBlock ? n - b * kKvBlock : kKvBlock;
    const Int4Range r = int4_range<L>(from, count);
    for (uint32_t d = 0; d < count; d += 16) {
      int16_t rounded[16];
      limited(values_from<L>(from, d, count), r).store_integers(rounded);
      for (uint32_t i = 0; i < 16 && d + i < count; ++i) codes[b * kKvBlock + d + i] = static_cast<uint8_t>(rounded[i]);
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
  float rotated[kMaxHeadDim];
  memcpy(rotated, k, head_dim * sizeof(float));
  rotate(rotated, head_dim);
  uint8_t codes[kMaxHeadDim + 16] = {};
  if (type == KvType::int8) {
    const float scale = int8_codes<L>(rotated, head_dim, codes);
    for (uint32_t d = 0; d < head_dim; d += 4) memcpy(block + (d / 4 * kPageTokens + slot) * 4, codes + d, 4);
    memcpy(block + (head_dim + 3) / 4 * 4 * kPageTokens + slot * 4, &scale, 4);
  } else {
    std::byte* ranges = block + (head_dim + 7) / 8 * 4 * kPageTokens;
    int4_codes<L>(rotated, head_dim, codes, ranges, slot);
    for (uint32_t d = 0; d < head_dim; d += 8) {
      uint8_t pairs[4];
      for (uint32_t i = 0; i < 4; ++i) pairs[i] = static_cast<uint8_t>(codes[d + i] | codes[d + 4 + i] << 4);
      memcpy(block + (d / 8 * kPageTokens + slot) * 4, pairs, 4);
    }
  }
}

template <class L>
ELLM_INLINE void store_v_slot(KvType type, uint32_t head_dim, const float* v, std::byte* block, uint32_t slot) {
  const uint32_t padded = (head_dim + 15) / 16 * 16;
  if (type == KvType::f16) return store_floats<L>(type, v, head_dim, padded, block + slot * padded * 2, 2);
  if (type == KvType::f32) return store_floats<L>(type, v, head_dim, padded, block + slot * padded * 4, 4);
  uint8_t codes[kMaxHeadDim + 16] = {};
  if (type == KvType::int8) {
    const float scale = int8_codes<L>(v, head_dim, codes);
    std::byte* to = block + slot / 4 * padded * 4 + slot % 4;
    for (uint32_t d = 0; d < padded; ++d) to[d * 4] = static_cast<std::byte>(codes[d]);
    memcpy(block + padded * kPageTokens + slot * 4, &scale, 4);
  } else {
    const uint32_t blocks = kv_blocks(head_dim);
    int4_codes<L>(v, head_dim, codes, block + blocks * 16 * kPageTokens, slot);
    for (uint32_t b = 0; b < blocks; ++b) {
      std::byte* to = block + (slot / 4 * blocks + b) * 64 + slot % 4;
      const uint8_t* from = codes + b * kKvBlock;
      for (uint32_t i = 0; i < 16; ++i) to[i * 4] = static_cast<std::byte>(from[i] | from[i + 16] << 4);
    }
  }
}

}  // namespace
}  // namespace ellm::kernels
