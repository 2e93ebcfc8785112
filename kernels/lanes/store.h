// One token's K or V into its slot of a block (kernels/kv_block.h), once for all levels. Everything of the slot is
// written, padding too (zeros), so that equal inputs make equal bytes.
#pragma once
#include <string.h>

#include "kernels/kv_block.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

/// 16 values from `d` on of `n`, zeros behind the end.
template <class L>
ELLM_INLINE L values_from(const float* x, uint32_t d, uint32_t n) {
  return L::load_first(x + d, n - d < 16 ? n - d : 16);
}

/// max|x| / 127, and the factor that takes x to -127 … 127: both 0 for a row of (almost) zeros.
struct Int8Scale {
  float scale, factor;
};
template <class L>
ELLM_INLINE Int8Scale int8_scale(const float* x, uint32_t n) {
  L largest = L::broadcast(0.0f);
  for (uint32_t d = 0; d < n; d += 16) largest = max(abs(values_from<L>(x, d, n)), largest);
  const float a = L::template fold<typename L::Max>(largest).first();
  if (a < 1e-30f) return {0, 0};
  return {a / 127.0f, 127.0f / a};
}

/// rint(x * factor), clamped, in the low byte of each of 16 words: adding 1.5 * 2^23 rounds to the nearest even integer.
template <class L>
ELLM_INLINE void round_to_words(L x, L factor, uint32_t* words) {
  const L limited = min(max(mul(x, factor), L::broadcast(-127.0f)), L::broadcast(127.0f));
  float shifted[16];
  add(limited, L::broadcast(0x1.8p+23f)).store(shifted);
  memcpy(words, shifted, sizeof shifted);
}

template <class L>
ELLM_INLINE void store_k_slot(KvType type, uint32_t head_dim, const float* k, std::byte* block, uint32_t slot) {
  const uint32_t padded = (head_dim + 3) / 4 * 4;
  const Int8Scale s = type == KvType::int8 ? int8_scale<L>(k, head_dim) : Int8Scale{};
  for (uint32_t d = 0; d < padded; d += 16) {
    const L values = values_from<L>(k, d, head_dim);
    const uint32_t n = padded - d < 16 ? padded - d : 16;
    if (type == KvType::f16) {
      uint16_t halves[16];
      values.store_halves(halves);
      for (uint32_t i = 0; i < n; ++i) memcpy(block + ((d + i) * kPageTokens + slot) * 2, &halves[i], 2);
    } else if (type == KvType::f32) {
      float floats[16];
      values.store(floats);
      for (uint32_t i = 0; i < n; ++i) memcpy(block + ((d + i) * kPageTokens + slot) * 4, &floats[i], 4);
    } else {
      uint32_t words[16];
      round_to_words(values, L::broadcast(s.factor), words);
      for (uint32_t i = 0; i < n; i += 4) {
        const uint32_t group = (words[i] & 255) | (words[i + 1] & 255) << 8 | (words[i + 2] & 255) << 16 | words[i + 3] << 24;
        memcpy(block + ((d + i) / 4 * kPageTokens + slot) * 4, &group, 4);
      }
    }
  }
  if (type == KvType::int8) memcpy(block + padded * kPageTokens + slot * 4, &s.scale, 4);
}

template <class L>
ELLM_INLINE void store_v_slot(KvType type, uint32_t head_dim, const float* v, std::byte* block, uint32_t slot) {
  const uint32_t padded = (head_dim + 15) / 16 * 16;
  const Int8Scale s = type == KvType::int8 ? int8_scale<L>(v, head_dim) : Int8Scale{};
  for (uint32_t d = 0; d < padded; d += 16) {
    const L values = values_from<L>(v, d, head_dim);
    if (type == KvType::f16) {
      uint16_t halves[16];
      values.store_halves(halves);
      memcpy(block + (slot * padded + d) * 2, halves, sizeof halves);
    } else if (type == KvType::f32) {
      float floats[16];
      values.store(floats);
      memcpy(block + (slot * padded + d) * 4, floats, sizeof floats);
    } else {
      uint32_t words[16];
      round_to_words(values, L::broadcast(s.factor), words);
      for (uint32_t i = 0; i < 16; ++i) block[slot * padded + d + i] = static_cast<std::byte>(words[i] & 255);
    }
  }
  if (type == KvType::int8) memcpy(block + padded * kPageTokens + slot * 4, &s.scale, 4);
}

}  // namespace
}  // namespace ellm::kernels
