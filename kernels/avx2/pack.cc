// Activations into tiles at the AVX2 level: a block of 32 values is four registers.
#include <immintrin.h>

#include "kernels/avx2/level.h"
#include "kernels/block_sums.h"

#define ELLM_INLINE inline __attribute__((always_inline))

namespace ellm::kernels::avx2 {
namespace {

/// Values of a block, missing ones 0.
struct Block {
  __m256 v[4];
};
ELLM_INLINE Block load_block(const float* x, uint32_t n) {
  if (n >= kBlock) {
    return {{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)}};
  }
  Block b;
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t left = n > 8 * i ? n - 8 * i : 0;
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(left)), lanes);
    b.v[i] = left == 0 ? _mm256_setzero_ps() : _mm256_maskload_ps(x + 8 * i, mask);
  }
  return b;
}

/// |v|, NaN as 0 (the second operand is what a NaN leaves).
ELLM_INLINE __m256 magnitude(__m256 v) {
  return _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v), _mm256_setzero_ps());
}
ELLM_INLINE float largest(__m256 v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/// v * factor within ±127, NaN as -127.
ELLM_INLINE __m256i rounded(__m256 v, __m256 factor) {
  const __m256 least = _mm256_max_ps(_mm256_mul_ps(v, factor), _mm256_set1_ps(-127));
  return _mm256_cvtps_epi32(_mm256_min_ps(least, _mm256_set1_ps(127)));
}
/// 16 numbers to bytes, in order.
ELLM_INLINE __m128i narrow(__m256i a, __m256i b) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
/// Columns 0 … 3 of every four.
ELLM_INLINE __m128i fours(__m256i v) {
  return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
/// Of a block's 32 numbers.
ELLM_INLINE PairSums pair_sums(__m256i q0, __m256i q1, __m256i q2, __m256i q3) {
  PairSums sums;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums.of),
                   _mm_hadd_epi32(fours(_mm256_add_epi32(q0, q1)), fours(_mm256_add_epi32(q2, q3))));
  return sums;
}

/// The 16-lane tree: lane j with lane j + half.
ELLM_INLINE float tree_sum(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace

void pack_q8(const Activations& dst, uint32_t row, const float* x, uint32_t first_block, uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; ++b, x += kBlock) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    const size_t i = size_t{tile.first} * dst.blocks() + in_tile;
    __m128i* q = reinterpret_cast<__m128i*>(dst.q + size_t{tile.first} * dst.padded_cols() + in_tile * kBlock);
    const Block x32 = load_block(x, dst.cols - b * kBlock);
    const float a = largest(_mm256_max_ps(_mm256_max_ps(magnitude(x32.v[0]), magnitude(x32.v[1])),
                                          _mm256_max_ps(magnitude(x32.v[2]), magnitude(x32.v[3]))));
    if (a < 1e-30f) {
      _mm_storeu_si128(q, _mm_setzero_si128());
      _mm_storeu_si128(q + 1, _mm_setzero_si128());
      store_sums(dst, i, 0, {});
      continue;
    }
    const __m256 factor = _mm256_set1_ps(127 / a);
    const __m256i q0 = rounded(x32.v[0], factor), q1 = rounded(x32.v[1], factor);
    const __m256i q2 = rounded(x32.v[2], factor), q3 = rounded(x32.v[3], factor);
    _mm_storeu_si128(q, narrow(q0, q1));
    _mm_storeu_si128(q + 1, narrow(q2, q3));
    const __m256 f0 = _mm256_cvtepi32_ps(q0), f1 = _mm256_cvtepi32_ps(q1), f2 = _mm256_cvtepi32_ps(q2),
                 f3 = _mm256_cvtepi32_ps(q3);
    const float xq = tree_sum(_mm256_fmadd_ps(x32.v[2], f2, _mm256_mul_ps(x32.v[0], f0)),
                              _mm256_fmadd_ps(x32.v[3], f3, _mm256_mul_ps(x32.v[1], f1)));
    const float qq =
        tree_sum(_mm256_fmadd_ps(f2, f2, _mm256_mul_ps(f0, f0)), _mm256_fmadd_ps(f3, f3, _mm256_mul_ps(f1, f1)));
    store_sums(dst, i, fitted_scale(xq, qq, a), pair_sums(q0, q1, q2, q3));
  }
}

void pack_f32(const Activations& dst, uint32_t row, const float* x, uint32_t first_block,
              uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; ++b, x += kBlock) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    float* to = dst.f32 + size_t{tile.first} * dst.padded_cols() + in_tile * kBlock;
    const Block x32 = load_block(x, dst.cols - b * kBlock);
    for (int i = 0; i < 4; ++i) _mm256_storeu_ps(to + 8 * i, x32.v[i]);
  }
}

}  // namespace ellm::kernels::avx2
