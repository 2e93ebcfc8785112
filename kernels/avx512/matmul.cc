// Matrix products of the AVX-512 level. One zmm register holds a value of each of a panel's 16 rows; a tile is one
// panel times up to 16 tokens, whose f32 accumulators stay in registers over all columns. HACKING.md, "The tile".
#include "kernels/lanes/matmul.h"

#include <string.h>

#include <utility>

#include "kernels/avx512/intrinsics.h"
#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AVX512 {
namespace {

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
/// sum += products of w's bytes (unsigned) with four activations, in every lane. g++ would broadcast by an instruction
/// of its own; as an operand it is free.
ELLM_INLINE void add_products(__m512i& sum, __m512i w, const int8_t* q) {
#ifdef ELLM_EMULATE_AVX512
  int32_t four;
  memcpy(&four, q, 4);
  sum = _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
#else
  using Four = int32_t __attribute__((may_alias, aligned(1)));
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Four*>(q)));
#endif
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

/// Whether a tile of T tokens multiplies the integer scales of halves into its codes: dearer than what each token pays
/// otherwise, but once a block.
template <WeightType type, size_t T>
constexpr bool kFolded = quant_layout(type).halves_in_dot && T >= 4;

/// Codes times their half's scale, in 16-bit products that stay within their bytes. Q2_K: up to 45. Q3_K: with -128 <=
/// scale * (code - 4) <= 124, plus 128: unsigned.
template <WeightType type, size_t T>
ELLM_INLINE void fold_scales(__m512i* w, __m512i pairs) {
  if constexpr (kFolded<type, T>) {
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

template <int... G>
ELLM_INLINE __m512i dot(__m512i sum, const __m512i* w, const int8_t* q, std::integer_sequence<int, G...>) {
  (add_products(sum, w[G], q + 4 * G), ...);
  return sum;
}

/// The integer dot product of a block whose halves have integer scales.
template <WeightType type, uint32_t T>
ELLM_INLINE __m512i scaled_dot(const __m512i* w, const Scales& s, const Tile<type, T>& tile, size_t t) {
  using Half = std::make_integer_sequence<int, 4>;
  const int8_t* q = tile.q + t * kBlock;
  const __m512i zero = _mm512_setzero_si512();
  if constexpr (kFolded<type, T>) {
    const __m512i start = type == WeightType::q3_k ? _mm512_set1_epi32(tile.offset[t]) : zero;
    return dot(dot(start, w, q, Half()), w + 4, q + 16, Half());
  }
  const __m512i low = dot(zero, w, q, Half()), high = dot(zero, w + 4, q + 16, Half());  // within 16 bits
  const __m512i sum = _mm512_madd_epi16(merge(low, _mm512_slli_epi32(high, 16)), s.pairs);
  if constexpr (type == WeightType::q2_k) return sum;
  int32_t sums;
  memcpy(&sums, tile.half_sums + 2 * t, 4);
  const __m512i offset = _mm512_madd_epi16(_mm512_set1_epi32(sums), _mm512_slli_epi16(s.pairs, 2));
  return _mm512_sub_epi32(sum, offset);
}

/// Token t's share of a block.
template <WeightType type, uint32_t T>
ELLM_INLINE void add_token(const __m512i* w, const Scales& s, const Tile<type, T>& tile, size_t t, __m512& acc) {
  constexpr QuantLayout l = quant_layout(type);
  using Half = std::make_integer_sequence<int, 4>;
  const int8_t* q = tile.q + t * kBlock;
  const __m512 d_a = _mm512_set1_ps(tile.scale[t]);
  if constexpr (type == WeightType::q6_k) {
    const __m512i a = dot(_mm512_set1_epi32(tile.offset[2 * t]), w, q, Half());
    const __m512i b = dot(_mm512_set1_epi32(tile.offset[2 * t + 1]), w + 4, q + 16, Half());
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_mul_ps(s.d[0], d_a), acc);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), _mm512_mul_ps(s.d[1], d_a), acc);
    return;
  }
  __m512i sum;
  if constexpr (l.halves_in_dot) {
    sum = scaled_dot(w, s, tile, t);
  } else {
    const __m512i start = l.offset == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(tile.offset[t]);
    sum = dot(dot(start, w, q, Half()), w + 4, q + 16, Half());
  }
  acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s.d[0], d_a), acc);
  if constexpr (type == WeightType::q2_k) {
    acc = _mm512_fmadd_ps(s.m[0], _mm512_set1_ps(tile.scaled_halves[2 * t]), acc);
    acc = _mm512_fmadd_ps(s.m[1], _mm512_set1_ps(tile.scaled_halves[2 * t + 1]), acc);
  } else if constexpr (l.has_minimum) {
    acc = _mm512_fmadd_ps(s.m[0], _mm512_set1_ps(tile.scaled_sum[t]), acc);
  }
}

/// A panel times T tokens.
template <WeightType type, size_t... I, int... G>
ELLM_INLINE void quantised_tile(Bytes panel, const Activations& x, uint32_t first, Avx512Lanes* out,
                                std::index_sequence<I...>, std::integer_sequence<int, G...>) {
  constexpr QuantLayout l = quant_layout(type);
  constexpr uint32_t T = sizeof...(I);
  Tile<type, T> tile(x, first);
  __m512 acc[T] = {((void)I, _mm512_setzero_ps())...};
  uint32_t left = x.blocks();
  do {
    Bytes header = panel;
    panel += l.header;
    for (uint32_t k = 0; k < l.blocks; ++k) {
      const Scales s = scales_of<type>(header, panel);
      __m512i w[8] = {group<type, G>(panel + l.scales)...};
      fold_scales<type, T>(w, s.pairs);
      (add_token<type>(w, s, tile, I, acc[I]), ...);
      panel += l.block();
      tile.next();
    }
    left -= l.blocks;
  } while (left != 0);
  ((out[I].v = acc[I]), ...);
}

template <WeightType type>
ELLM_INLINE __m512 load_column(Bytes p) {
  if constexpr (type == WeightType::f32) return _mm512_loadu_ps(p);
  return type == WeightType::f16 ? load_halves(p) : load_brain(p);
}

/// A panel of floats times T tokens (at most 4: each has four accumulators); the tile has `width` tokens.
template <WeightType type, size_t... I>
ELLM_INLINE void float_tile(Bytes panel, const float* x, uint32_t blocks, uint32_t width, Avx512Lanes* out,
                            std::index_sequence<I...>) {
  constexpr size_t T = sizeof...(I), column = kPanelRows * (type == WeightType::f32 ? 4 : 2);
  __m512 acc[4][T] = {};
  const auto add = [&](int j, const float* at) __attribute__((always_inline)) {
    const __m512 w = load_column<type>(panel + j * column);
    ((acc[j][I] = _mm512_fmadd_ps(w, _mm512_set1_ps(at[I * kBlock]), acc[j][I])), ...);
  };
  for (uint32_t b = 0; b < blocks; ++b, x += width * kBlock) {
    for (uint32_t c = 0; c < kBlock; c += 4, panel += 4 * column) {
      add(0, x + c);
      add(1, x + c + 1);
      add(2, x + c + 2);
      add(3, x + c + 3);
    }
  }
  ((out[I].v = _mm512_add_ps(_mm512_add_ps(acc[0][I], acc[1][I]), _mm512_add_ps(acc[2][I], acc[3][I]))), ...);
}

struct Tiles {
  using Lanes = Avx512Lanes;
  static constexpr size_t kCacheBytes = 256 << 10;

  template <WeightType type, uint32_t T>
  static ELLM_INLINE void tile(Bytes panel, const Activations& x, uint32_t first, Avx512Lanes* acc) {
    if constexpr (is_quantised(type)) {
      quantised_tile<type>(panel, x, first, acc, std::make_index_sequence<T>(), std::make_integer_sequence<int, 8>());
    } else {
      constexpr uint32_t kAtOnce = T < 4 ? T : 4;
      for (uint32_t t = 0; t < T; t += kAtOnce) {
        const float* values = x.f32 + size_t{first} * x.padded_cols() + t * kBlock;
        float_tile<type>(panel, values, x.blocks(), T, acc + t, std::make_index_sequence<kAtOnce>());
      }
    }
  }
};

}  // namespace

void matmul(const MatmulArgs& a) noexcept { multiply_any<Tiles>(a); }

}  // namespace ellm::kernels::ELLM_AVX512
