// The rotation of int8 and int4 K, and of the queries that meet them: Hadamard matrices of the largest power of two
// that divides head_dim, side by side. It spreads a few large channels over all, so that one scale fits them.
#pragma once
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

/// Dimensions that one Hadamard matrix mixes.
ELLM_INLINE uint32_t rotation_block(uint32_t head_dim) { return head_dim & (0 - head_dim); }

/// The strides 1 … 16 of 32 values. Each step puts the sums of neighbours first and their differences behind, so the next
/// stride's pairs are neighbours in their turn; after five all stand where they stood.
template <class L>
ELLM_INLINE void rotate_32(float* x) {
  L a = L::load(x), b = L::load(x + 16);
  unrolled<5>([&](auto) ELLM_INLINE_LAMBDA {
    L even, odd;
    L::deinterleave(a, b, even, odd);
    a = add(even, odd);
    b = sub(even, odd);
  });
  a.store(x);
  b.store(x + 16);
}

/// x (n) times the matrices of ±1: strides ascending, (a, b) becomes (a + b, a - b). Twice is rotation_block(n) times
/// x.
template <class L>
ELLM_INLINE void rotate(float* __restrict x, uint32_t n) {
  const uint32_t block = rotation_block(n);
  uint32_t stride = 1;
  if (block >= 32) {
    for (uint32_t i = 0; i < n; i += 32) rotate_32<L>(x + i);
    stride = 32;
  }
  for (; stride < block; stride *= 2) {
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
