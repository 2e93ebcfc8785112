// Activations into tiles at the AVX-512 level: a block of 32 values is two registers.
#include "kernels/avx512/intrinsics.h"
#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AVX512 {
namespace {

/// Values of a block, missing ones 0.
struct Block {
  __m512 low, high;
};
ELLM_INLINE Block load_block(const float* x, uint32_t n) {
  if (n >= kBlock) return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
  const uint32_t mask = (1u << n) - 1;
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask & 0xffff), x);
  return {low, n > 16 ? _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + 16) : _mm512_setzero_ps()};
}

/// Blocks that are packed together, each in a lane of its own.
constexpr uint32_t kGroup = 16;

/// What is stored of a group, block after block.
struct Group {
  alignas(64) int8_t q[kGroup][kBlock];
  float scale[kGroup], scaled_sum[kGroup], scaled_halves[kGroup][2];
  int32_t minus_sum8[kGroup], minus_sum16[kGroup], minus_sum128[kGroup], minus_halves32[kGroup][2];
  int16_t half_sums[kGroup][2];
};

/// |v|, NaN as `least` (the second operand of max is what a NaN leaves).
ELLM_INLINE __m512 magnitude(const float* v, __m512 least) {
  return _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(v)), least);
}

/// v * factor, NaN as `least`: v is at most 127 / factor, so that nothing else leaves ±127.
ELLM_INLINE __m512i rounded(__m512 v, float factor, float least) {
  return _mm512_cvtps_epi32(_mm512_max_ps(_mm512_mul_ps(v, _mm512_set1_ps(factor)), _mm512_set1_ps(least)));
}

/// The sums over the four parts of each of four vectors, one vector's after the other's.
ELLM_INLINE __m512i part_sums(const __m512i* v) {
  const auto halves = [](__m512i a, __m512i b) ELLM_INLINE_LAMBDA {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  };
  const __m512i ab = halves(v[0], v[1]), cd = halves(v[2], v[3]);
  return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

/// The sum of the two numbers of each block: a has those of blocks 0 … 7, b of 8 … 15.
ELLM_INLINE __m512i block_sums(__m512i a, __m512i b) {
  const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_permutex2var_epi32(a, first, b), _mm512_permutex2var_epi32(a, second, b));
}

ELLM_INLINE __m512i negated(__m512i v) { return _mm512_sub_epi32(_mm512_setzero_si512(), v); }

/// The first n blocks of a group, those behind them all zeros. Bytes and 32-bit sums of bytes are exact, so that only
/// the products x q need the order of the 16 lanes.
void quantise(const float* x, uint32_t n, Group& to) {
  const __m512 largest = Avx512Lanes::fold16<Avx512Lanes::Max>([x](auto block) ELLM_INLINE_LAMBDA -> Avx512Lanes {
                           const float* v = x + block * kBlock;
                           return {magnitude(v, magnitude(v + 16, _mm512_setzero_ps()))};
                         }).v;
  const __mmask16 any = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_GE_OQ);
  alignas(64) float factor[kGroup], least[kGroup];
  _mm512_store_ps(factor, _mm512_maskz_div_ps(any, _mm512_set1_ps(127), largest));
  _mm512_store_ps(least, _mm512_maskz_mov_ps(any, _mm512_set1_ps(-127)));

  __m512 xq[kGroup];
  __m512i sums[kGroup / 2], squares[kGroup / 2];  // of four columns each: a part has two blocks' low and high halves
  for (uint32_t pair = 0; 2 * pair < n; ++pair) {
    __m512i words[2];
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t block = 2 * pair + i;
      const __m512 low = _mm512_loadu_ps(x + block * kBlock), high = _mm512_loadu_ps(x + block * kBlock + 16);
      const __m512i ql = rounded(low, factor[block], least[block]), qh = rounded(high, factor[block], least[block]);
      xq[block] = _mm512_fmadd_ps(high, _mm512_cvtepi32_ps(qh), _mm512_mul_ps(low, _mm512_cvtepi32_ps(ql)));
      words[i] = _mm512_packs_epi32(ql, qh);
    }
    const __m512i bytes = _mm512_packs_epi16(words[0], words[1]), size = _mm512_abs_epi8(bytes);
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_store_si512(to.q[2 * pair], _mm512_permutexvar_epi32(in_order, bytes));
    sums[pair] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
    squares[pair] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), size, size);
  }

  for (uint32_t pair = (n + 1) / 2; pair < kGroup / 2; ++pair) {
    xq[2 * pair] = xq[2 * pair + 1] = _mm512_setzero_ps();
    sums[pair] = squares[pair] = _mm512_setzero_si512();
  }

  const __m512 products =
      Avx512Lanes::fold16<Avx512Lanes::Sum>([&xq](auto b) ELLM_INLINE_LAMBDA -> Avx512Lanes { return {xq[b]}; }).v;
  const __m512 fitted =
      _mm512_div_ps(products, _mm512_cvtepi32_ps(block_sums(part_sums(squares), part_sums(squares + 4))));
  const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(fitted), _mm512_set1_ps(3.402823466e38f), _CMP_LE_OQ);
  const __m512 scale =
      _mm512_maskz_mov_ps(any, _mm512_mask_blend_ps(finite, _mm512_div_ps(largest, _mm512_set1_ps(127)), fitted));
  _mm512_storeu_ps(to.scale, scale);

  const __m512i halves[2] = {part_sums(sums), part_sums(sums + 4)};
  const __m512i sum = block_sums(halves[0], halves[1]);
  _mm512_storeu_ps(to.scaled_sum, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum)));
  _mm512_storeu_si512(to.minus_sum8, _mm512_slli_epi32(negated(sum), 3));
  _mm512_storeu_si512(to.minus_sum16, _mm512_slli_epi32(negated(sum), 4));
  _mm512_storeu_si512(to.minus_sum128, _mm512_slli_epi32(negated(sum), 7));
  for (int i = 0; i < 2; ++i) {
    const __m512i twice =
        _mm512_add_epi32(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), _mm512_set1_epi32(8 * i));
    _mm512_storeu_ps(to.scaled_halves[8 * i],
                     _mm512_mul_ps(_mm512_permutexvar_ps(twice, scale), _mm512_cvtepi32_ps(halves[i])));
    _mm512_storeu_si512(to.minus_halves32[8 * i], _mm512_slli_epi32(negated(halves[i]), 5));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.half_sums[8 * i]), _mm512_cvtepi32_epi16(halves[i]));
  }
}

/// Entry k of the group becomes entry k * step of an array, of `Size` bytes each.
template <size_t Size>
ELLM_INLINE void spread(const void* from, void* to, uint32_t n, size_t step) {
  auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  for (; n > 0; --n, source += Size, target += step * Size) __builtin_memcpy(target, source, Size);
}

}  // namespace

void pack_q8(const Activations& dst, uint32_t row, const float* x, uint32_t first_block, uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; b += kGroup, x += kGroup * kBlock) {
    const uint32_t n = last_block - b < kGroup ? last_block - b : kGroup;
    const uint32_t left = dst.cols - b * kBlock, values = left < n * kBlock ? left : n * kBlock;
    const float* from = x;
    alignas(64) float padded[kGroup * kBlock];
    if (values < kGroup * kBlock) {
      for (uint32_t c = 0; c < kGroup * kBlock; c += 16) {
        _mm512_store_ps(padded + c, c < values ? Avx512Lanes::load_first(from + c, values - c).v : _mm512_setzero_ps());
      }
      from = padded;
    }
    Group group;
    quantise(from, n, group);
    const size_t i = size_t{tile.first} * dst.blocks() + size_t{b} * tile.width + (row - tile.first);
    const size_t w = tile.width;
    spread<kBlock>(group.q, dst.q + i * kBlock, n, w);
    spread<4>(group.scale, dst.scale + i, n, w);
    spread<4>(group.scaled_sum, dst.scaled_sum + i, n, w);
    spread<8>(group.scaled_halves, dst.scaled_halves + 2 * i, n, w);
    spread<4>(group.half_sums, dst.half_sums + 2 * i, n, w);
    spread<4>(group.minus_sum8, dst.minus_sum8 + i, n, w);
    spread<4>(group.minus_sum16, dst.minus_sum16 + i, n, w);
    spread<4>(group.minus_sum128, dst.minus_sum128 + i, n, w);
    spread<8>(group.minus_halves32, dst.minus_halves32 + 2 * i, n, w);
  }
}

void pack_f32(const Activations& dst, uint32_t row, const float* x, uint32_t first_block,
              uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; ++b, x += kBlock) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    float* to = dst.f32 + size_t{tile.first} * dst.padded_cols() + in_tile * kBlock;
    const Block v = load_block(x, dst.cols - b * kBlock);
    _mm512_storeu_ps(to, v.low);
    _mm512_storeu_ps(to + 16, v.high);
  }
}

}  // namespace ellm::kernels::ELLM_AVX512
