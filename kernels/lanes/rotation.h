// The rotation of int8 and int4 K, and of the queries that meet them: Hadamard matrices of the largest power of two
// that divides head_dim, side by side. It spreads a few large channels over all, so that one scale fits them.
#pragma once
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

/// Dimensions that one Hadamard matrix mixes.
ELLM_INLINE uint32_t rotation_block(uint32_t head_dim) { return head_dim & (0 - head_dim); }

/// x (n) times the matrices of ±1: strides ascending, (a, b) becomes (a + b, a - b). Twice is rotation_block(n) times
/// x.
ELLM_INLINE void rotate(float* __restrict x, uint32_t n) {
  const uint32_t block = rotation_block(n);
  for (uint32_t stride = 1; stride < block; stride *= 2) {
    for (uint32_t first = 0; first < n; first += 2 * stride) {
      for (uint32_t i = first; i < first + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
}

}  // namespace
}  // namespace ellm::kernels
