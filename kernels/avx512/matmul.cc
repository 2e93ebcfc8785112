// Matrix products of the AVX-512 level. One zmm register holds a value of each of a panel's 16 rows; a tile is one
// panel times up to 16 tokens, whose f32 accumulators stay in registers over all columns. HACKING.md, "The tile".
#include <string.h>

#include <utility>

#include "kernels/avx512/intrinsics.h"
#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"
#include "kernels/lanes/matmul.h"

namespace ellm::kernels::ELLM_AVX512 {
namespace {

ELLM_INLINE __m512i load(Bytes p) { return _mm512_loadu_si512(p); }
ELLM_INLINE __m512 load_halves(Bytes p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
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

/// Codes of column group g of a block.
template <WeightType type, int g>
ELLM_INLINE __m512i group(Bytes low, Bytes high) {
  constexpr QuantLayout l = quant_layout(type);
  if constexpr (l.low == 512) return load(low + 64 * g);
  const __m512i nibbles = _mm512_set1_epi8(15);
  const __m512i plane = load(low + 64 * (g % 4));
  const __m512i code = _mm512_and_si512(g < 4 ? plane : _mm512_srli_epi16(plane, 4), nibbles);
  if constexpr (l.high == 0) return code;
  // Bring bit g (or bits 2k, 2k + 1) to bit 4; a 16-bit shift carries foreign bits into other places only.
  constexpr bool pairs = l.high == 128;
  constexpr int from = pairs ? g % 4 * 2 : g;
  const __m512i bits = load(high + (pairs ? g / 4 * 64 : 0));
  const __m512i there = from < 4 ? _mm512_slli_epi16(bits, (4 - from) & 15) : _mm512_srli_epi16(bits, (from - 4) & 15);
  constexpr int kCopy = 0xf8;   // code | (there & mask)
  return _mm512_ternarylogic_epi32(code, there, _mm512_set1_epi8(pairs ? 0x30 : 0x10), kCopy);
}

/// Weight scales of a block: both halves (equal but for Q6_K), and the minimum.
struct Scales {
  __m512 d[2], m;
};
template <WeightType type>
ELLM_INLINE Scales scales_of(Bytes header, Bytes block) {
  Scales s;
  if constexpr (type == WeightType::q4_k) {
    s.d[0] = s.d[1] = _mm512_mul_ps(load_halves(header), load_u8(block));
    const __m512 product = _mm512_mul_ps(load_halves(header + 32), load_u8(block + 16));
    s.m = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(product), _mm512_set1_epi32(INT32_MIN)));
  } else if constexpr (type == WeightType::q6_k) {
    s.d[0] = _mm512_mul_ps(load_halves(header), load_i8(block));
    s.d[1] = _mm512_mul_ps(load_halves(header), load_i8(block + 16));
    s.m = _mm512_setzero_ps();
  } else {
    s.d[0] = s.d[1] = load_halves(block);
    s.m = quant_layout(type).has_minimum ? load_halves(block + 32) : _mm512_setzero_ps();
  }
  return s;
}

template <int... G>
ELLM_INLINE __m512i dot(__m512i sum, const __m512i* w, const int8_t* q, std::integer_sequence<int, G...>) {
  (add_products(sum, w[G], q + 4 * G), ...);
  return sum;
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
  } else {
    const __m512i start = l.offset() == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(tile.offset[t]);
    const __m512i sum = dot(dot(start, w, q, Half()), w + 4, q + 16, Half());
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s.d[0], d_a), acc);
    if constexpr (l.has_minimum) acc = _mm512_fmadd_ps(s.m, _mm512_set1_ps(tile.scaled_sum[t]), acc);
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
      const __m512i w[8] = {group<type, G>(panel + l.scales, panel + l.scales + l.low)...};
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
  if constexpr (type == WeightType::f16) return load_halves(p);
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
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
