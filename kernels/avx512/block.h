// A block of a quantised panel in registers: a vector of codes for each of its 8 column groups, and its scales.
// Compiled into the AVX-512 and AMX levels: all in an anonymous namespace.
#pragma once
#include "kernels/avx512/intrinsics.h"
#include "kernels/lanes/matmul.h"

namespace ellm::kernels {
namespace {

/// Asks for what stands further on, first from memory, then from the second-level cache: HACKING.md, "The tile".
template <WeightType type, uint32_t P>
ELLM_INLINE void prefetch_ahead(Bytes panel, size_t panel_bytes, size_t done) {
  prefetch_block<type, P, 6144, 2>(panel, panel_bytes, done);
  prefetch_block<type, P, 1536>(panel, panel_bytes, done);
}

ELLM_INLINE __m512i load(Bytes p) { return _mm512_loadu_si512(p); }
ELLM_INLINE __m512 load_halves(Bytes p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ELLM_INLINE __m512 load_brain(Bytes p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
ELLM_INLINE __m512 load_u8(Bytes p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
ELLM_INLINE __m512 load_i8(Bytes p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
/// The low 16 bits of every lane from `low`, the high ones from `high`.
ELLM_INLINE __m512i merge(__m512i low, __m512i high) {
  constexpr int kSelect = 0xca;  // mask ? low : high
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0xffff), low, high, kSelect);
}
ELLM_INLINE __m512 negated(__m512 v) {
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MIN)));
}

/// The weights of a codebook plus their offset: unsigned.
template <WeightType type>
ELLM_INLINE __m512i codebook() {
  constexpr QuantLayout l = quant_layout(type);
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(l.codebook));
  return _mm512_add_epi8(_mm512_broadcast_i32x4(values), _mm512_set1_epi8(static_cast<char>(l.offset)));
}

/// Pieces [0, n) of the codes of column group g of a block. A 16-bit shift carries foreign bits into other places only.
template <int bits, int g, int n>
ELLM_INLINE __m512i pieces(Bytes planes) {
  constexpr PlanePiece p = plane_pieces(bits, g).piece[n - 1];
  constexpr int up = p.to - p.bit, mask = ((1 << p.width) - 1) << p.to;
  __m512i v = load(planes + 64 * p.vector);
  if constexpr (up > 0) v = _mm512_slli_epi16(v, up);
  if constexpr (up < 0) v = _mm512_srli_epi16(v, -up);
  if constexpr (p.width == 8) return v;
  const __m512i here = _mm512_set1_epi8(static_cast<char>(mask));
  if constexpr (n == 1) {
    return _mm512_and_si512(v, here);
  } else {
    const __m512i others = pieces<bits, g, n - 1>(planes);
    return _mm512_ternarylogic_epi32(others, v, here, 0xf8);  // others | (v & here)
  }
}

/// Codes of column group g of a block, or what the codebook has for them.
template <WeightType type, int g>
ELLM_INLINE __m512i group(Bytes planes) {
  constexpr QuantLayout l = quant_layout(type);
  const __m512i code = pieces<l.bits, g, plane_pieces(l.bits, g).count>(planes);
  if constexpr (l.codebook != nullptr) return _mm512_shuffle_epi8(codebook<type>(), code);
  return code;
}

/// Weight scales of a block: both halves (equal but for Q6_K), and the minima (equal but for Q2_K). Q2_K and Q3_K have
/// integer scales, as 16-bit pairs (columns 0…15, 16…31).
struct Scales {
  __m512 d[2], m[2];
  __m512i pairs;
};
template <WeightType type>
ELLM_INLINE Scales scales_of(Bytes header, Bytes block) {
  Scales s;
  s.m[0] = s.m[1] = _mm512_setzero_ps();
  s.pairs = _mm512_setzero_si512();
  if constexpr (type == WeightType::q2_k) {
    const __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block)));
    const __m512i minima = _mm512_srli_epi16(both, 4);
    const __m512 m = negated(load_halves(header + 32));
    s.pairs = _mm512_and_si512(both, _mm512_set1_epi16(15));
    s.d[0] = s.d[1] = load_halves(header);
    s.m[0] = _mm512_mul_ps(m, _mm512_cvtepi32_ps(_mm512_and_si512(minima, _mm512_set1_epi32(15))));
    s.m[1] = _mm512_mul_ps(m, _mm512_cvtepi32_ps(_mm512_srli_epi32(minima, 16)));
  } else if constexpr (type == WeightType::q3_k) {
    s.pairs = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block)));
    s.d[0] = s.d[1] = load_halves(header);
  } else if constexpr (type == WeightType::q4_k || type == WeightType::q5_k) {
    s.d[0] = s.d[1] = _mm512_mul_ps(load_halves(header), load_u8(block));
    s.m[0] = s.m[1] = negated(_mm512_mul_ps(load_halves(header + 32), load_u8(block + 16)));
  } else if constexpr (type == WeightType::q6_k) {
    s.d[0] = _mm512_mul_ps(load_halves(header), load_i8(block));
    s.d[1] = _mm512_mul_ps(load_halves(header), load_i8(block + 16));
  } else if constexpr (type == WeightType::iq4_xs) {
    s.d[0] = s.d[1] = _mm512_mul_ps(load_halves(header), load_i8(block));
  } else if constexpr (type == WeightType::mxfp4) {
    s.d[0] = s.d[1] = load_brain(block);
  } else {
    s.d[0] = s.d[1] = load_halves(block);
    if constexpr (quant_layout(type).has_minimum) s.m[0] = s.m[1] = load_halves(block + 32);
  }
  return s;
}

/// Codes times their half's scale, in 16-bit products that stay within their bytes. Q2_K: up to 45. Q3_K: with -128 <=
/// scale * (code - 4) <= 124, plus 128: unsigned.
template <WeightType type>
ELLM_INLINE void fold_scales(__m512i* w, __m512i pairs) {
  if constexpr (quant_layout(type).halves_in_dot) {
    const __m512i scale[2] = {merge(pairs, _mm512_slli_epi32(pairs, 16)), merge(_mm512_srli_epi32(pairs, 16), pairs)};
    unrolled<2>([&](auto half) ELLM_INLINE_LAMBDA {
      const __m512i start = _mm512_sub_epi16(_mm512_set1_epi16(128), _mm512_slli_epi16(scale[half], 2));
      const __m512i both = _mm512_or_si512(start, _mm512_slli_epi16(start, 8));
      unrolled<4>([&](auto g) ELLM_INLINE_LAMBDA {
        __m512i& code = w[4 * half + g];
        code = _mm512_mullo_epi16(code, scale[half]);
        if constexpr (type == WeightType::q3_k) code = _mm512_add_epi16(code, both);
      });
    });
  }
}

}  // namespace
}  // namespace ellm::kernels
