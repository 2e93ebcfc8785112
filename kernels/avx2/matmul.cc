// Matrix products of the AVX2 level. A ymm register holds a value of each of 8 rows, so a panel is two halves; a tile
// is one panel times up to 16 tokens, whose f32 accumulators lie in the L1 cache. Sums of products stay in 16 bits as
// long as the weights' width allows. HACKING.md, "The tile".
#include <immintrin.h>
#include <string.h>

#include <utility>

#include "kernels/avx2/lanes.h"
#include "kernels/avx2/level.h"
#include "kernels/lanes/matmul.h"

namespace ellm::kernels::avx2 {
namespace {

ELLM_INLINE __m256i load(Bytes p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
ELLM_INLINE __m256 load_halves(Bytes p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ELLM_INLINE __m256 load_u8(Bytes p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
ELLM_INLINE __m256 load_i8(Bytes p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
/// Four activations of one token, in every lane.
ELLM_INLINE __m256i four(const int8_t* q) {
  int32_t v;
  memcpy(&v, q, 4);
  return _mm256_set1_epi32(v);
}

/// Codes of column group g of a block, of the 8 rows whose bytes begin at low and high.
template <WeightType type, int g>
ELLM_INLINE __m256i group(Bytes low, Bytes high) {
  constexpr QuantLayout l = quant_layout(type);
  if constexpr (l.low == 512) return load(low + 64 * g);
  const __m256i plane = load(low + 64 * (g % 4));
  const __m256i code = _mm256_and_si256(g < 4 ? plane : _mm256_srli_epi16(plane, 4), _mm256_set1_epi8(15));
  if constexpr (l.high == 0) return code;
  // Bring bit g (or bits 2k, 2k + 1) to bit 4; a 16-bit shift carries foreign bits into other places only.
  constexpr bool pairs = l.high == 128;
  constexpr int from = pairs ? g % 4 * 2 : g;
  const __m256i bits = load(high + (pairs ? g / 4 * 64 : 0));
  const __m256i there = from < 4 ? _mm256_slli_epi16(bits, (4 - from) & 15) : _mm256_srli_epi16(bits, (from - 4) & 15);
  return _mm256_or_si256(code, _mm256_and_si256(there, _mm256_set1_epi8(pairs ? 0x30 : 0x10)));
}

/// Four column groups of a panel's block, [half of the rows][group]: unsigned codes. Q8_0: magnitudes, with the signed
/// weights beside them.
struct Weights {
  __m256i code[2][4];
  __m256i sign[2][4];
};

template <WeightType type, int first, int... G>
ELLM_INLINE void unpack(Bytes low, uint32_t half, Weights& w, std::integer_sequence<int, G...>) {
  low += 32 * half;
  if constexpr (type == WeightType::q8_0) {
    ((w.sign[half][G] = _mm256_xor_si256(load(low + 64 * (first + G)), _mm256_set1_epi8(-128))), ...);
    ((w.code[half][G] = _mm256_abs_epi8(w.sign[half][G])), ...);   // up to 128, unsigned
  } else {
    ((w.code[half][G] = group<type, first + G>(low, low + quant_layout(type).low)), ...);
  }
}

/// How many maddubs results (pairs of products with |q| <= 127) may be added in 16 bits: n * 2 * 127 * code < 32768.
constexpr int sums_in_16_bits(WeightType type) {
  switch (quant_layout(type).high) {
    case 0: return quant_layout(type).low == 512 ? 1 : 8;
    case 64: return 4;
    default: return 2;
  }
}

/// The dot products of groups [first, first + n) with a token's activations x, as 16-bit pairs; n fits 16 bits.
template <WeightType type, int first, int n>
ELLM_INLINE __m256i dot16(const __m256i* code, const __m256i* sign, const __m256i* x) {
  const __m256i q = type == WeightType::q8_0 ? _mm256_sign_epi8(x[first], sign[first]) : x[first];
  const __m256i sum = _mm256_maddubs_epi16(code[first], q);
  if constexpr (n > 1) return _mm256_add_epi16(sum, dot16<type, first + 1, n - 1>(code, sign, x));
  return sum;
}
/// The same as 32-bit sums, any n.
template <WeightType type, int first, int n>
ELLM_INLINE __m256i dot32(const __m256i* code, const __m256i* sign, const __m256i* x) {
  constexpr int part = n < sums_in_16_bits(type) ? n : sums_in_16_bits(type);
  const __m256i sum = _mm256_madd_epi16(dot16<type, first, part>(code, sign, x), _mm256_set1_epi16(1));
  if constexpr (part < n) return _mm256_add_epi32(sum, dot32<type, first + part, n - part>(code, sign, x));
  return sum;
}

/// Weight scales of 8 rows of a block: of columns 0…15 and 16…31 (equal but for Q6_K), and the minimum.
struct Scales {
  __m256 d[2], m;
};
/// Of a super-block: d and -dmin.
struct Header {
  __m256 d, m;
};
template <WeightType type>
ELLM_INLINE Header header_of(Bytes header, uint32_t half) {
  Header h{_mm256_setzero_ps(), _mm256_setzero_ps()};
  if constexpr (quant_layout(type).header != 0) h.d = load_halves(header + 16 * half);
  if constexpr (type == WeightType::q4_k) h.m = _mm256_xor_ps(load_halves(header + 32 + 16 * half), _mm256_set1_ps(-0.0f));
  return h;
}
template <WeightType type>
ELLM_INLINE Scales scales_of(const Header& header, Bytes block, uint32_t half) {
  Scales s;
  s.m = _mm256_setzero_ps();
  if constexpr (type == WeightType::q4_k) {
    s.d[0] = s.d[1] = _mm256_mul_ps(header.d, load_u8(block + 8 * half));
    s.m = _mm256_mul_ps(header.m, load_u8(block + 16 + 8 * half));
  } else if constexpr (type == WeightType::q6_k) {
    s.d[0] = _mm256_mul_ps(header.d, load_i8(block + 8 * half));
    s.d[1] = _mm256_mul_ps(header.d, load_i8(block + 16 + 8 * half));
  } else {
    s.d[0] = s.d[1] = load_halves(block + 16 * half);
    if constexpr (quant_layout(type).has_minimum) s.m = load_halves(block + 32 + 16 * half);
  }
  return s;
}

/// Rows and tokens of a tile, in the L1 cache: f32 accumulators and what a block's first half of the columns gave.
template <uint32_t T>
struct Sums {
  __m256 acc[T][2];        // (tokens, halves of the rows)
  __m256i first[T][2];
};

/// Columns 16 * part … 16 * part + 15 of a block times T tokens. Both halves of the rows share the loads of a token's
/// activations. Q6_K's scales end here; the other types' first part is kept (in 16 bits, if all fits) for the second.
template <WeightType type, uint32_t T, int part>
ELLM_INLINE void add_columns(const Weights& w, const Scales* s, const Tile<type, T>& tile, Sums<T>& sums) {
  constexpr QuantLayout l = quant_layout(type);
  constexpr bool whole = sums_in_16_bits(type) == 8, ends = type == WeightType::q6_k || part == 1;
  constexpr bool offset = l.offset() != 0 && type != WeightType::q8_0;
  for (uint32_t t = 0; t < T; ++t) {
    const int8_t* q = tile.q + t * kBlock + 16 * part;
    const __m256i x[4] = {four(q), four(q + 4), four(q + 8), four(q + 12)};
    const auto half = [&](int h) __attribute__((always_inline)) {
      __m256i sum;
      if constexpr (whole) {
        sum = dot16<type, 0, 4>(w.code[h], w.sign[h], x);
        if constexpr (part == 1) sum = _mm256_madd_epi16(_mm256_add_epi16(sum, sums.first[t][h]), _mm256_set1_epi16(1));
      } else {
        sum = dot32<type, 0, 4>(w.code[h], w.sign[h], x);
        if constexpr (part == 1 && type != WeightType::q6_k) sum = _mm256_add_epi32(sum, sums.first[t][h]);
      }
      if constexpr (ends) {
        constexpr uint32_t n = Tile<type, T>::kOffsets;
        if constexpr (offset) sum = _mm256_add_epi32(sum, _mm256_set1_epi32(tile.offset[n * t + (n == 2 ? part : 0)]));
        const __m256 scale = _mm256_mul_ps(s[h].d[part], _mm256_set1_ps(tile.scale[t]));
        __m256 acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, sums.acc[t][h]);
        if constexpr (l.has_minimum) acc = _mm256_fmadd_ps(s[h].m, _mm256_set1_ps(tile.scaled_sum[t]), acc);
        sums.acc[t][h] = acc;
      } else {
        sums.first[t][h] = sum;
      }
    };
    half(0);
    half(1);
  }
}

/// A panel times T tokens; out (tokens).
template <WeightType type, uint32_t T>
ELLM_INLINE void quantised_tile(Bytes panel, const Activations& x, uint32_t first, Avx2Lanes* out) {
  constexpr QuantLayout l = quant_layout(type);
  using Groups = std::make_integer_sequence<int, 4>;
  Tile<type, T> tile(x, first);
  Sums<T> sums;
  for (uint32_t t = 0; t < T; ++t) sums.acc[t][0] = sums.acc[t][1] = _mm256_setzero_ps();
  uint32_t left = x.blocks();
  do {
    const Header header[2] = {header_of<type>(panel, 0), header_of<type>(panel, 1)};
    panel += l.header;
    for (uint32_t k = 0; k < l.blocks; ++k) {
      const Scales s[2] = {scales_of<type>(header[0], panel, 0), scales_of<type>(header[1], panel, 1)};
      Weights w;
      unpack<type, 0>(panel + l.scales, 0, w, Groups());
      unpack<type, 0>(panel + l.scales, 1, w, Groups());
      add_columns<type, T, 0>(w, s, tile, sums);
      unpack<type, 4>(panel + l.scales, 0, w, Groups());
      unpack<type, 4>(panel + l.scales, 1, w, Groups());
      add_columns<type, T, 1>(w, s, tile, sums);
      panel += l.block();
      tile.next();
    }
    left -= l.blocks;
  } while (left != 0);
  for (uint32_t t = 0; t < T; ++t) out[t] = {sums.acc[t][0], sums.acc[t][1]};
}

template <WeightType type>
ELLM_INLINE __m256 load_column(Bytes p) {
  if constexpr (type == WeightType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if constexpr (type == WeightType::f16) return load_halves(p);
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

template <WeightType type>
constexpr size_t kColumnBytes = kPanelRows * (type == WeightType::f32 ? 4 : 2);

ELLM_INLINE __m256 fold(const __m256* a) { return _mm256_add_ps(_mm256_add_ps(a[0], a[1]), _mm256_add_ps(a[2], a[3])); }

/// A panel of floats times one token: all accumulators in registers.
template <WeightType type>
ELLM_INLINE void float_row(Bytes panel, const float* x, uint32_t blocks, Avx2Lanes* out) {
  __m256 a[2][4] = {};
  for (uint32_t c = 0; c < blocks * kBlock; c += 4, panel += 4 * kColumnBytes<type>) {
    const auto add = [&](int j) __attribute__((always_inline)) {
      const __m256 value = _mm256_set1_ps(x[c + j]);
      Bytes column = panel + j * kColumnBytes<type>;
      a[0][j] = _mm256_fmadd_ps(load_column<type>(column), value, a[0][j]);
      a[1][j] = _mm256_fmadd_ps(load_column<type>(column + kColumnBytes<type> / 2), value, a[1][j]);
    };
    add(0);
    add(1);
    add(2);
    add(3);
  }
  out[0] = {fold(a[0]), fold(a[1])};
}

/// A panel of floats times T >= 2 tokens. The accumulators lie in memory; for one block of 32 columns and one of the
/// four accumulators, those of up to 4 tokens are in registers.
template <WeightType type, uint32_t T, size_t... I>
ELLM_INLINE void float_tile(Bytes panel, const float* x, uint32_t blocks, Avx2Lanes* out,
                            std::index_sequence<I...>) {
  constexpr uint32_t kAtOnce = sizeof...(I);
  __m256 acc[T][2][4] = {};
  for (uint32_t b = 0; b < blocks; ++b, panel += kBlock * kColumnBytes<type>, x += T * kBlock) {
    for (uint32_t t = 0; t < T; t += kAtOnce) {
      for (uint32_t j = 0; j < 4; ++j) {
        __m256 low[kAtOnce] = {acc[t + I][0][j]...}, high[kAtOnce] = {acc[t + I][1][j]...};
        for (uint32_t c = j; c < kBlock; c += 4) {
          const __m256 w0 = load_column<type>(panel + c * kColumnBytes<type>);
          const __m256 w1 = load_column<type>(panel + c * kColumnBytes<type> + kColumnBytes<type> / 2);
          const float* at = x + t * kBlock + c;
          ((low[I] = _mm256_fmadd_ps(w0, _mm256_set1_ps(at[I * kBlock]), low[I]),
            high[I] = _mm256_fmadd_ps(w1, _mm256_set1_ps(at[I * kBlock]), high[I])),
           ...);
        }
        ((acc[t + I][0][j] = low[I], acc[t + I][1][j] = high[I]), ...);
      }
    }
  }
  for (uint32_t t = 0; t < T; ++t) out[t] = {fold(acc[t][0]), fold(acc[t][1])};
}

struct Tiles {
  using Lanes = Avx2Lanes;
  static constexpr size_t kCacheBytes = 128 << 10;

  template <WeightType type, uint32_t T>
  static ELLM_INLINE void tile(Bytes panel, const Activations& x, uint32_t first, Avx2Lanes* acc) {
    if constexpr (is_quantised(type)) {
      quantised_tile<type, T>(panel, x, first, acc);
    } else {
      const float* values = x.f32 + size_t{first} * x.padded_cols();
      if constexpr (T == 1) {
        float_row<type>(panel, values, x.blocks(), acc);
      } else {
        float_tile<type, T>(panel, values, x.blocks(), acc, std::make_index_sequence<T < 4 ? T : 4>());
      }
    }
  }
};

}  // namespace

void matmul(const MatmulArgs& a) noexcept { multiply_any<Tiles>(a); }

}  // namespace ellm::kernels::avx2
