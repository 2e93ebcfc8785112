// Matrix products of the AVX2 level. A ymm register holds a value of each of 8 rows, so a panel is two halves; a tile
// is one panel times up to 16 tokens, whose f32 accumulators lie in the L1 cache. Sums of products stay in 16 bits as
// long as the weights' width allows. HACKING.md, "The tile".
#include "kernels/lanes/matmul.h"

#include <immintrin.h>
#include <string.h>

#include <utility>

#include "kernels/avx2/lanes.h"
#include "kernels/avx2/level.h"

namespace ellm::kernels::avx2 {
namespace {

/// How far behind a block stand the lines that are asked for while it is computed.
constexpr size_t ahead(uint32_t tokens) { return tokens == 1 ? 1536 : 6144; }

ELLM_INLINE __m256i load(Bytes p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
ELLM_INLINE __m256 load_halves(Bytes p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ELLM_INLINE __m256 load_brain(Bytes p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
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

/// Types of 8-bit weights: they multiply as magnitudes, with the sign moved to the activation.
constexpr bool has_signs(WeightType type) { return quant_layout(type).offset == 128; }

/// The weights of a codebook, unsigned by their offset where they do not multiply as magnitudes.
template <WeightType type>
ELLM_INLINE __m256i codebook() {
  constexpr QuantLayout l = quant_layout(type);
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(l.codebook));
  const int offset = has_signs(type) ? 0 : l.offset;
  return _mm256_add_epi8(_mm256_broadcastsi128_si256(values), _mm256_set1_epi8(static_cast<char>(offset)));
}

/// Pieces [0, n) of the codes of column group g of a block, of the 8 rows whose bytes begin at `planes`. A 16-bit shift
/// carries foreign bits into other places only.
template <int bits, int g, int n>
ELLM_INLINE __m256i pieces(Bytes planes) {
  constexpr PlanePiece p = plane_pieces(bits, g).piece[n - 1];
  constexpr int up = p.to - p.bit, mask = ((1 << p.width) - 1) << p.to;
  __m256i v = load(planes + 64 * p.vector);
  if constexpr (up > 0) v = _mm256_slli_epi16(v, up);
  if constexpr (up < 0) v = _mm256_srli_epi16(v, -up);
  if constexpr (p.width == 8) return v;
  v = _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
  if constexpr (n > 1) v = _mm256_or_si256(v, pieces<bits, g, n - 1>(planes));
  return v;
}

/// Codes of column group g of a block, what the codebook has for them, or the signed weights of 8 bits.
template <WeightType type, int g>
ELLM_INLINE __m256i group(Bytes planes) {
  constexpr QuantLayout l = quant_layout(type);
  const __m256i code = pieces<l.bits, g, plane_pieces(l.bits, g).count>(planes);
  if constexpr (l.codebook != nullptr) return _mm256_shuffle_epi8(codebook<type>(), code);
  if constexpr (l.bits == 8) return _mm256_xor_si256(code, _mm256_set1_epi8(-128));
  return code;
}

/// Four column groups of a panel's block, [half of the rows][group]: unsigned codes, or magnitudes with the signed
/// weights beside them.
struct Weights {
  __m256i code[2][4];
  __m256i sign[2][4];
};

template <WeightType type, int first, int... G>
ELLM_INLINE void unpack(Bytes planes, uint32_t half, Weights& w, std::integer_sequence<int, G...>) {
  ((w.code[half][G] = group<type, first + G>(planes + 32 * half)), ...);
  if constexpr (has_signs(type)) {
    ((w.sign[half][G] = w.code[half][G]), ...);
    ((w.code[half][G] = _mm256_abs_epi8(w.sign[half][G])), ...);  // up to 128, unsigned
  }
}

/// Types whose offset is taken off while sums have 16 bits. On the way to there these may wrap, so that what they have
/// to hold is not codes times q but weights times q.
constexpr bool has_offset_pairs(WeightType type) {
  return type == WeightType::q5_0 || type == WeightType::q6_k || type == WeightType::mxfp4;
}

/// The largest factor of q in a sum of 16 bits.
constexpr int largest_factor(WeightType type) {
  const QuantLayout l = quant_layout(type);
  if (has_signs(type)) return 128;
  return has_offset_pairs(type) ? l.offset : (1 << l.bits) - 1;
}
/// How many maddubs results (pairs of products with |q| <= 127) may be added in 16 bits: n * 2 * 127 * factor < 32768.
constexpr int sums_in_16_bits(WeightType type) {
  int n = 8;
  while (n * 2 * 127 * largest_factor(type) >= 32768) n /= 2;
  return n;
}
/// Column groups that share a scale.
constexpr int scale_groups(WeightType type) { return type == WeightType::q6_k ? 4 : 8; }

/// The dot products of groups [first, first + n) with a token's activations x, as 16-bit pairs; n fits 16 bits.
template <WeightType type, int first, int n>
ELLM_INLINE __m256i dot16(const __m256i* code, const __m256i* sign, const __m256i* x) {
  const __m256i q = has_signs(type) ? _mm256_sign_epi8(x[first], sign[first]) : x[first];
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

/// Weight scales of 8 rows of a block: of columns 0…15 and 16…31 (equal but for Q6_K), and the minima (equal but for
/// Q2_K). Q2_K and Q3_K have integer scales: 16-bit pairs of both halves, and each half's twice.
struct Scales {
  __m256 d[2], m[2];
  __m256i pairs, half[2];
};
/// Of a super-block: d and -dmin.
struct Header {
  __m256 d, m;
};
template <WeightType type>
ELLM_INLINE Header header_of(Bytes header, uint32_t half) {
  Header h{_mm256_setzero_ps(), _mm256_setzero_ps()};
  if constexpr (quant_layout(type).header != 0) h.d = load_halves(header + 16 * half);
  if constexpr (quant_layout(type).header == 64) {
    h.m = _mm256_xor_ps(load_halves(header + 32 + 16 * half), _mm256_set1_ps(-0.0f));
  }
  return h;
}
template <WeightType type>
ELLM_INLINE void integer_scales(const Header& header, Bytes block, Scales& s) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
  s.d[0] = s.d[1] = header.d;
  if constexpr (type == WeightType::q2_k) {
    const __m256i both = _mm256_cvtepu8_epi16(bytes), minima = _mm256_srli_epi16(both, 4);
    s.pairs = _mm256_and_si256(both, _mm256_set1_epi16(15));
    s.m[0] = _mm256_mul_ps(header.m, _mm256_cvtepi32_ps(_mm256_and_si256(minima, _mm256_set1_epi32(15))));
    s.m[1] = _mm256_mul_ps(header.m, _mm256_cvtepi32_ps(_mm256_srli_epi32(minima, 16)));
  } else {
    s.pairs = _mm256_cvtepi8_epi16(bytes);
  }
  s.half[0] = _mm256_blend_epi16(s.pairs, _mm256_slli_epi32(s.pairs, 16), 0xaa);
  s.half[1] = _mm256_blend_epi16(_mm256_srli_epi32(s.pairs, 16), s.pairs, 0xaa);
}
template <WeightType type>
ELLM_INLINE Scales scales_of(const Header& header, Bytes block, uint32_t half) {
  Scales s;
  s.m[0] = s.m[1] = _mm256_setzero_ps();
  s.pairs = s.half[0] = s.half[1] = _mm256_setzero_si256();
  if constexpr (quant_layout(type).halves_in_dot) {
    integer_scales<type>(header, block + 16 * half, s);
  } else if constexpr (type == WeightType::q4_k || type == WeightType::q5_k) {
    s.d[0] = s.d[1] = _mm256_mul_ps(header.d, load_u8(block + 8 * half));
    s.m[0] = s.m[1] = _mm256_mul_ps(header.m, load_u8(block + 16 + 8 * half));
  } else if constexpr (type == WeightType::q6_k) {
    s.d[0] = _mm256_mul_ps(header.d, load_i8(block + 8 * half));
    s.d[1] = _mm256_mul_ps(header.d, load_i8(block + 16 + 8 * half));
  } else if constexpr (type == WeightType::iq4_xs) {
    s.d[0] = s.d[1] = _mm256_mul_ps(header.d, load_i8(block + 8 * half));
  } else if constexpr (type == WeightType::mxfp4) {
    s.d[0] = s.d[1] = load_brain(block + 16 * half);
  } else {
    s.d[0] = s.d[1] = load_halves(block + 16 * half);
    if constexpr (quant_layout(type).has_minimum) s.m[0] = s.m[1] = load_halves(block + 32 + 16 * half);
  }
  return s;
}

/// Rows and tokens of a tile, in the L1 cache: f32 accumulators and a block's dot products as far as they have got.
template <WeightType type, uint32_t T>
struct Sums {
  __m256 acc[T][2];                           // (tokens, halves of the rows)
  __m256i dot[8 / scale_groups(type)][T][2];  // (scales, tokens, halves of the rows)
};

/// Whether a dot product stays in 16 bits until its end.
template <WeightType type>
constexpr bool kWhole = sums_in_16_bits(type) == scale_groups(type) && !quant_layout(type).halves_in_dot;

/// Q3_K's offset of a block: four times the sum of q, each half's times its scale.
ELLM_INLINE __m256i scaled_offset(const Scales& s, const int16_t* half_sums) {
  int32_t sums;
  memcpy(&sums, half_sums, 4);
  return _mm256_madd_epi16(_mm256_slli_epi16(s.pairs, 2), _mm256_set1_epi32(sums));
}

/// Columns 16 * part … 16 * part + 15 of 8 rows times a token's activations x.
template <WeightType type, int part>
ELLM_INLINE __m256i dot(const Weights& w, const Scales* s, int half, const __m256i* x) {
  const __m256i *code = w.code[half], *sign = w.sign[half];
  if constexpr (kWhole<type>) return dot16<type, 0, 4>(code, sign, x);
  if constexpr (quant_layout(type).halves_in_dot)
    return _mm256_madd_epi16(dot16<type, 0, 4>(code, sign, x), s[half].half[part]);
  return dot32<type, 0, 4>(code, sign, x);
}

/// The dot products of one part of the columns with T tokens, added to those of the part before. Both halves of the
/// rows share the loads of a token's activations.
template <WeightType type, uint32_t T, int part>
ELLM_INLINE void add_columns(const Weights& w, const Scales* s, const Tile<type, T>& tile, Sums<type, T>& sums) {
  constexpr int scale = part * 4 / scale_groups(type);
  constexpr bool adds = part * 4 % scale_groups(type) != 0;
  ELLM_UNROLL(2)
  for (uint32_t t = 0; t < T; ++t) {
    const int8_t* q = tile.q + t * kBlock + 16 * part;
    const __m256i x[4] = {four(q), four(q + 4), four(q + 8), four(q + 12)};
    unrolled<2>([&](auto half) ELLM_INLINE_LAMBDA {
      __m256i& sum = sums.dot[scale][t][half];
      const __m256i now = dot<type, part>(w, s, half, x);
      sum = !adds ? now : kWhole<type> ? _mm256_add_epi16(now, sum) : _mm256_add_epi32(now, sum);
    });
  }
}

/// A dot product of 8 rows and a token as it counts into the accumulator: exact, in f32.
template <WeightType type, uint32_t T>
ELLM_INLINE __m256 finished(__m256i sum, const Scales& s, const Tile<type, T>& tile, size_t i) {
  if constexpr (has_offset_pairs(type)) {
    int32_t pair;
    memcpy(&pair, tile.offset_pairs + 2 * i, 4);
    sum = _mm256_add_epi16(sum, _mm256_set1_epi32(pair));
  }
  if constexpr (kWhole<type>) sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  if constexpr (type == WeightType::q3_k) sum = _mm256_sub_epi32(sum, scaled_offset(s, tile.half_sums + 2 * i));
  if constexpr (type == WeightType::q4_0) sum = _mm256_add_epi32(sum, _mm256_set1_epi32(tile.offset[i]));
  return _mm256_cvtepi32_ps(sum);
}

/// A block's dot products into the accumulators, with its scales and minima. A loop of its own: behind the products of
/// the same token this long chain of dependent instructions fills the processor's schedulers, and products of other
/// tokens find no room there.
template <WeightType type, uint32_t T>
ELLM_INLINE void accumulate(const Scales* scales, const Tile<type, T>& tile, Sums<type, T>& sums) {
  constexpr int n = 8 / scale_groups(type);
  ELLM_UNROLL(4)
  for (uint32_t t = 0; t < T; ++t) {
    const __m256 d_a = _mm256_set1_ps(tile.scale[t]);
    unrolled<2>([&](auto half) ELLM_INLINE_LAMBDA {
      const Scales& s = scales[half];
      __m256 acc = sums.acc[t][half];
      unrolled<n>([&](auto i) ELLM_INLINE_LAMBDA {
        const __m256 dot = finished<type, T>(sums.dot[i][t][half], s, tile, n * t + i);
        acc = _mm256_fmadd_ps(dot, _mm256_mul_ps(s.d[i], d_a), acc);
      });
      if constexpr (type == WeightType::q2_k) {
        acc = _mm256_fmadd_ps(s.m[0], _mm256_set1_ps(tile.scaled_halves[2 * t]), acc);
        acc = _mm256_fmadd_ps(s.m[1], _mm256_set1_ps(tile.scaled_halves[2 * t + 1]), acc);
      } else if constexpr (quant_layout(type).has_minimum) {
        acc = _mm256_fmadd_ps(s.m[0], _mm256_set1_ps(tile.scaled_sum[t]), acc);
      }
      sums.acc[t][half] = acc;
    });
  }
}

/// A panel times T tokens; out (tokens).
template <WeightType type, uint32_t T>
ELLM_INLINE void quantised_tile(Bytes panel, size_t panel_bytes, const Activations& x, uint32_t first, Avx2Lanes* out) {
  constexpr QuantLayout l = quant_layout(type);
  using Groups = std::make_integer_sequence<int, 4>;
  Tile<type, T> tile(x, first);
  Sums<type, T> sums;
  for (uint32_t t = 0; t < T; ++t) sums.acc[t][0] = sums.acc[t][1] = _mm256_setzero_ps();
  Bytes begin = panel;
  uint32_t left = x.blocks();
  do {
    const Header header[2] = {header_of<type>(panel, 0), header_of<type>(panel, 1)};
    panel += l.header;
    for (uint32_t k = 0; k < l.blocks; ++k) {
      prefetch_block<type, 1, ahead(T)>(begin, panel_bytes, static_cast<size_t>(panel - begin));
      const Scales s[2] = {scales_of<type>(header[0], panel, 0), scales_of<type>(header[1], panel, 1)};
      Weights w;
      unpack<type, 0>(panel + l.scales, 0, w, Groups());
      unpack<type, 0>(panel + l.scales, 1, w, Groups());
      add_columns<type, T, 0>(w, s, tile, sums);
      unpack<type, 4>(panel + l.scales, 0, w, Groups());
      unpack<type, 4>(panel + l.scales, 1, w, Groups());
      add_columns<type, T, 1>(w, s, tile, sums);
      accumulate<type, T>(s, tile, sums);
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
  return type == WeightType::f16 ? load_halves(p) : load_brain(p);
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
ELLM_INLINE void float_tile(Bytes panel, const float* x, uint32_t blocks, Avx2Lanes* out, std::index_sequence<I...>) {
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
  static constexpr uint32_t panels_at_once(uint32_t) { return 1; }

  template <WeightType type, uint32_t T>
  static ELLM_INLINE void tile(Bytes panel, size_t panel_bytes, const Activations& x, uint32_t first,
                               Avx2Lanes (&acc)[1][T]) {
    if constexpr (is_quantised(type)) {
      quantised_tile<type, T>(panel, panel_bytes, x, first, acc[0]);
    } else {
      const float* values = x.f32 + size_t{first} * x.padded_cols();
      if constexpr (T == 1) {
        float_row<type>(panel, values, x.blocks(), acc[0]);
      } else {
        float_tile<type, T>(panel, values, x.blocks(), acc[0], std::make_index_sequence < T<4 ? T : 4>());
      }
    }
  }
};

}  // namespace

void matmul(const MatmulArgs& a) noexcept { multiply_any<Tiles>(a); }

}  // namespace ellm::kernels::avx2
