// Matrix products of the AVX-512 level. One zmm register holds a value of each of a panel's 16 rows; a tile is two
// panels times 16 tokens, whose f32 accumulators lie in the L1 cache, or one panel times fewer. HACKING.md, "The tile".
#include "kernels/lanes/matmul.h"

#include <string.h>

#include <utility>

#include "kernels/avx512/block.h"
#include "kernels/avx512/intrinsics.h"
#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AVX512 {
namespace {

/// Four activations of one token, in every lane.
ELLM_INLINE __m512i four(const int8_t* q) {
  int32_t v;
  memcpy(&v, q, 4);
  return _mm512_set1_epi32(v);
}

/// Whether a tile of T tokens multiplies the integer scales of halves into its codes: dearer than what each token pays
/// otherwise, but once a block.
template <WeightType type, size_t T>
constexpr bool kFolded = quant_layout(type).halves_in_dot && T >= 4;

template <int... G>
ELLM_INLINE __m512i dot(__m512i sum, const __m512i* w, const int8_t* q, std::integer_sequence<int, G...>) {
  ((sum = _mm512_dpbusd_epi32(sum, w[G], four(q + 4 * G))), ...);
  return sum;
}

/// The integer dot product of a block whose halves have integer scales, these not folded into the codes.
template <WeightType type, uint32_t T>
ELLM_INLINE __m512i scaled_dot(const __m512i* w, __m512i pairs, const Tile<type, T>& tile, size_t t) {
  using Half = std::make_integer_sequence<int, 4>;
  const int8_t* q = tile.q + t * kBlock;
  const __m512i zero = _mm512_setzero_si512();
  const __m512i low = dot(zero, w, q, Half()), high = dot(zero, w + 4, q + 16, Half());  // within 16 bits
  const __m512i sum = _mm512_madd_epi16(merge(low, _mm512_slli_epi32(high, 16)), pairs);
  if constexpr (type == WeightType::q2_k) return sum;
  int32_t sums;
  memcpy(&sums, tile.half_sums + 2 * t, 4);
  const __m512i offset = _mm512_madd_epi16(_mm512_set1_epi32(sums), _mm512_slli_epi16(pairs, 2));
  return _mm512_sub_epi32(sum, offset);
}

/// A block of P panels.
template <uint32_t P>
struct Block {
  __m512i w[P][8];
  Scales scales[P];
};
template <WeightType type, uint32_t T, int p, uint32_t P, int... G>
ELLM_INLINE void load_block(Bytes header, Bytes block, Block<P>& b, std::integer_sequence<int, G...>) {
  b.scales[p] = scales_of<type>(header, block);
  ((b.w[p][G] = group<type, G>(block + quant_layout(type).scales)), ...);
  if constexpr (kFolded<type, T>) fold_scales<type>(b.w[p], b.scales[p].pairs);
}

/// Sums of C tokens (q: the first one's codes) times P panels: of column groups [from, to). C * P sums take turns, so
/// that the processor need not look far ahead for what does not depend on the last instruction.
template <int from, int to, uint32_t P, uint32_t C>
ELLM_INLINE void add_groups(const Block<P>& b, const int8_t* q, __m512i (&sum)[C][P]) {
  unrolled<to - from>([&](auto i) ELLM_INLINE_LAMBDA {
    unrolled<C>([&](auto c) ELLM_INLINE_LAMBDA {
      constexpr int group = from + i;
      const __m512i columns = four(q + c * kBlock + 4 * group);
      unrolled<P>([&](auto p)
                      ELLM_INLINE_LAMBDA { sum[c][p] = _mm512_dpbusd_epi32(sum[c][p], b.w[p][group], columns); });
    });
  });
}

/// The integer sums of half `h` of a block (Q6_K), else of the whole, for C tokens from t on.
template <WeightType type, int h, uint32_t P, uint32_t C, uint32_t T>
ELLM_INLINE void integer_sums(const Block<P>& b, const Tile<type, T>& tile, uint32_t t, __m512i (&sum)[C][P]) {
  constexpr uint32_t kHalves = Tile<type, T>::kOffsets;
  constexpr bool in_dot = quant_layout(type).halves_in_dot;
  unrolled<C>([&](auto c) ELLM_INLINE_LAMBDA {
    unrolled<P>([&](auto p) ELLM_INLINE_LAMBDA {
      if constexpr (in_dot && !kFolded<type, T>) {
        sum[c][p] = scaled_dot(b.w[p], b.scales[p].pairs, tile, t + c);
      } else if constexpr (quant_layout(type).offset == 0) {
        sum[c][p] = _mm512_setzero_si512();
      } else {
        sum[c][p] = _mm512_set1_epi32(tile.offset[kHalves * (t + c) + h]);
      }
    });
  });
  if constexpr (!in_dot || kFolded<type, T>)
    add_groups<4 * h, kHalves == 2 ? 4 * h + 4 : 8>(b, tile.q + t * kBlock, sum);
}

/// The share of a block in C tokens from t on.
template <WeightType type, uint32_t P, uint32_t C, uint32_t T>
ELLM_INLINE void add_tokens(const Block<P>& b, const Tile<type, T>& tile, uint32_t t, Avx512Lanes (*acc)[T]) {
  unrolled<Tile<type, T>::kOffsets>([&](auto h) ELLM_INLINE_LAMBDA {
    __m512i sum[C][P];
    integer_sums<type, h>(b, tile, t, sum);
    unrolled<C>([&](auto c) ELLM_INLINE_LAMBDA {
      const __m512 d_a = _mm512_set1_ps(tile.scale[t + c]);
      unrolled<P>([&](auto p) ELLM_INLINE_LAMBDA {
        const Scales& s = b.scales[p];
        __m512& a = acc[p][t + c].v;
        a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[c][p]), _mm512_mul_ps(s.d[h], d_a), a);
        if constexpr (type == WeightType::q2_k) {
          a = _mm512_fmadd_ps(s.m[0], _mm512_set1_ps(tile.scaled_halves[2 * (t + c)]), a);
          a = _mm512_fmadd_ps(s.m[1], _mm512_set1_ps(tile.scaled_halves[2 * (t + c) + 1]), a);
        } else if constexpr (quant_layout(type).has_minimum) {
          a = _mm512_fmadd_ps(s.m[0], _mm512_set1_ps(tile.scaled_sum[t + c]), a);
        }
      });
    });
  });
}

/// P neighbouring panels times T tokens, 4 sums (of 4 columns and 16 rows) at a time.
template <WeightType type, uint32_t P, uint32_t T>
ELLM_INLINE void quantised_tile(Bytes panel, size_t panel_bytes, const Activations& x, uint32_t first,
                                Avx512Lanes (*out)[T]) {
  constexpr QuantLayout l = quant_layout(type);
  constexpr uint32_t C = T < 4 / P ? T : 4 / P;
  using Groups = std::make_integer_sequence<int, 8>;
  Tile<type, T> tile(x, first);
  Avx512Lanes acc[P][T];
  for (uint32_t p = 0; p < P; ++p)
    for (uint32_t t = 0; t < T; ++t) acc[p][t] = Avx512Lanes::broadcast(0);
  Bytes begin = panel;
  uint32_t left = x.blocks();
  do {
    Bytes header = panel;
    panel += l.header;
    for (uint32_t k = 0; k < l.blocks; ++k) {
      prefetch_ahead<type, P>(begin, panel_bytes, static_cast<size_t>(panel - begin));
      Block<P> b;
      unrolled<P>([&](auto p) ELLM_INLINE_LAMBDA {
        load_block<type, T, p>(header + p * panel_bytes, panel + p * panel_bytes, b, Groups());
      });
      for (uint32_t t = 0; t < T; t += C) add_tokens<type, P, C>(b, tile, t, acc);
      panel += l.block();
      tile.next();
    }
    left -= l.blocks;
  } while (left != 0);
  for (uint32_t p = 0; p < P; ++p)
    for (uint32_t t = 0; t < T; ++t) out[p][t] = acc[p][t];
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
  /// Two panels share the broadcasts of a token's activations. Up to 8 tokens wait for memory, which one stream serves
  /// better than two.
  static constexpr uint32_t panels_at_once(uint32_t tokens) { return tokens == kTokenTile ? 2 : 1; }

  template <WeightType type, uint32_t P, uint32_t T>
  static ELLM_INLINE void tile(Bytes panel, size_t panel_bytes, const Activations& x, uint32_t first,
                               Avx512Lanes (&acc)[P][T]) {
    if constexpr (is_quantised(type)) {
      quantised_tile<type, P, T>(panel, panel_bytes, x, first, acc);
    } else {
      constexpr uint32_t kAtOnce = T < 4 ? T : 4;
      for (uint32_t p = 0; p < P; ++p, panel += panel_bytes) {
        for (uint32_t t = 0; t < T; t += kAtOnce) {
          const float* values = x.f32 + size_t{first} * x.padded_cols() + t * kBlock;
          float_tile<type>(panel, values, x.blocks(), T, acc[p] + t, std::make_index_sequence<kAtOnce>());
        }
      }
    }
  }
};

}  // namespace

void matmul(const MatmulArgs& a) noexcept { multiply_any<Tiles>(a); }
void matmul_from(const MatmulArgs& a, uint32_t first) noexcept { multiply_any<Tiles>(a, first); }

}  // namespace ellm::kernels::ELLM_AVX512
