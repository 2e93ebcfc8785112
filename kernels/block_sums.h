// What is stored beside a block's quantised activations, from sums of them. Internal to kernels/.
#pragma once
#include "kernels/activations.h"

namespace ellm::kernels {

/// The scale that brings a block's q nearest to its values: sum(x q) / sum(q q); `largest` / 127 where that is not
/// finite.
static inline __attribute__((always_inline, unused)) float fitted_scale(float xq, float qq, float largest) {
  const float scale = xq / qq;
  return __builtin_fabsf(scale) <= 3.402823466e38f ? scale : largest / 127;
}

/// Sums of a block's q: of each half, columns 0 and 1 of every four, then 2 and 3.
struct PairSums {
  int32_t of[4];
};

/// Fills entry i (block and row) of every array but q (the AVX-512 level does so for many blocks at a time). Static: a
/// level's objects may not share inline functions.
static inline __attribute__((always_inline, unused)) void store_sums(const Activations& x, size_t i, float scale,
                                                                     const PairSums& pairs) {
  const int32_t low = pairs.of[0] + pairs.of[1], high = pairs.of[2] + pairs.of[3], sum = low + high;
  x.scale[i] = scale;
  x.scaled_sum[i] = scale * static_cast<float>(sum);
  x.scaled_halves[2 * i] = scale * static_cast<float>(low);
  x.scaled_halves[2 * i + 1] = scale * static_cast<float>(high);
  x.half_sums[2 * i] = static_cast<int16_t>(low);
  x.half_sums[2 * i + 1] = static_cast<int16_t>(high);
  x.minus_sum8[i] = sum * -8;
  x.minus_sum16[i] = sum * -16;
  x.minus_sum128[i] = sum * -128;
  x.minus_halves32[2 * i] = low * -32;
  x.minus_halves32[2 * i + 1] = high * -32;
  for (size_t p = 0; p < 2; ++p)
    x.minus_pairs16[2 * i + p] = static_cast<int16_t>((pairs.of[p] + pairs.of[p + 2]) * -16);
  for (size_t p = 0; p < 4; ++p) x.minus_pairs32[4 * i + p] = static_cast<int16_t>(pairs.of[p] * -32);
}

}  // namespace ellm::kernels
