// Activations into tiles at the AVX-512 level: a block of 32 values is two registers.
#include "kernels/avx512/intrinsics.h"
#include "kernels/avx512/level.h"
#include "kernels/block_sums.h"

namespace ellm::kernels::ELLM_AVX512 {
namespace {

/// Values of a block, missing ones 0.
struct Block {
  __m512 low, high;
};
inline __attribute__((always_inline)) Block load_block(const float* x, uint32_t n) {
  if (n >= kBlock) return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
  const uint32_t mask = (1u << n) - 1;
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask & 0xffff), x);
  return {low, n > 16 ? _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + 16) : _mm512_setzero_ps()};
}

inline __attribute__((always_inline)) __m512 magnitude(__m512 v) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MAX)));
}

/// v * factor within ±127, NaN as -127 (the second operand of min and max is what a NaN leaves).
inline __attribute__((always_inline)) __m512i rounded(__m512 v, __m512 factor) {
  const __m512 limit = _mm512_set1_ps(127);
  const __m512 least = _mm512_max_ps(_mm512_mul_ps(v, factor), _mm512_set1_ps(-127));
  return _mm512_cvtps_epi32(_mm512_min_ps(least, limit));
}

/// The 16-lane tree: lane j with lane j + half.
inline __attribute__((always_inline)) float tree_sum(__m512 v) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_castps512_ps256(_mm512_shuffle_f32x4(v, v, 0x4e)));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Columns 0 … 3 of every four.
inline __attribute__((always_inline)) __m128i fours(__m512i v) {
  const __m256i eight =
      _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_castsi512_si256(_mm512_shuffle_i32x4(v, v, 0x4e)));
  return _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
}
/// Of a block's 32 numbers.
inline __attribute__((always_inline)) PairSums pair_sums(__m512i low, __m512i high) {
  PairSums sums;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums.of), _mm_hadd_epi32(fours(low), fours(high)));
  return sums;
}

}  // namespace

void pack_q8(const Activations& dst, uint32_t row, const float* x, uint32_t first_block, uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; ++b) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    const size_t i = size_t{tile.first} * dst.blocks() + in_tile;
    int8_t* q = dst.q + size_t{tile.first} * dst.padded_cols() + in_tile * kBlock;
    const Block v = load_block(x + size_t{b} * kBlock, dst.cols - b * kBlock);
    // A NaN is the first operand each time, and counts as nothing.
    const __m512 zero = _mm512_setzero_ps();
    const __m512 most = _mm512_max_ps(_mm512_max_ps(magnitude(v.low), zero), _mm512_max_ps(magnitude(v.high), zero));
    const float a = _mm512_reduce_max_ps(most);
    if (a < 1e-30f) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_setzero_si128());
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm_setzero_si128());
      store_sums(dst, i, 0, {});
      continue;
    }
    const __m512 factor = _mm512_set1_ps(127 / a);
    const __m512i low = rounded(v.low, factor), high = rounded(v.high, factor);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(high));
    const __m512 ql = _mm512_cvtepi32_ps(low), qh = _mm512_cvtepi32_ps(high);
    const float xq = tree_sum(_mm512_fmadd_ps(v.high, qh, _mm512_mul_ps(v.low, ql)));
    const float qq = tree_sum(_mm512_fmadd_ps(qh, qh, _mm512_mul_ps(ql, ql)));
    store_sums(dst, i, fitted_scale(xq, qq, a), pair_sums(low, high));
  }
}

void pack_f32(const Activations& dst, uint32_t row, const float* x, uint32_t first_block,
              uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; ++b) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    float* to = dst.f32 + size_t{tile.first} * dst.padded_cols() + in_tile * kBlock;
    const Block v = load_block(x + size_t{b} * kBlock, dst.cols - b * kBlock);
    _mm512_storeu_ps(to, v.low);
    _mm512_storeu_ps(to + 16, v.high);
  }
}

}  // namespace ellm::kernels::ELLM_AVX512
