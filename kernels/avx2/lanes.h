// Sixteen floats of the AVX2 level: two registers. The operations are those of kernels/scalar/lanes.h.
#pragma once
#include <immintrin.h>

#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

struct Avx2Lanes {
  __m256 lo, hi;

  // Register tiles of attention: accumulators, the K or V they share and one broadcast in 16 registers.
  static constexpr int kQueries = 6;
  static constexpr int token_vectors(int queries) { return queries <= 2 ? 2 : 1; }
  static constexpr int dim_vectors(int queries) { return queries == 1 ? 4 : queries <= 3 ? 2 : 1; }

  // What attention asks for ahead: into the first-level cache, as much as fits it beside what is computed (EPYC Zen 3,
  // both cores at once, int8, 32K, 7 query heads: 1,076 µs, into the second level and 8 pages on 1,737).
  static constexpr int kFetchLocality = 3;
  static constexpr size_t kTogetherBytes = 24 << 10;

  /// All bits of the first n lanes of 8.
  static ELLM_INLINE __m256i first_lanes(uint32_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
  }
  static ELLM_INLINE uint32_t beyond_8(uint32_t n) { return n > 8 ? n - 8 : 0; }

  static ELLM_INLINE Avx2Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static ELLM_INLINE Avx2Lanes load_first(const float* p, uint32_t n) {
    return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(beyond_8(n)))};
  }
  ELLM_INLINE void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  ELLM_INLINE void store_first(float* p, uint32_t n) const {
    if (n >= 16) return store(p);  // masked stores are slow on several CPUs
    _mm256_maskstore_ps(p, first_lanes(n), lo);
    _mm256_maskstore_ps(p + 8, first_lanes(beyond_8(n)), hi);
  }
  static ELLM_INLINE Avx2Lanes broadcast(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
  }

  static ELLM_INLINE Avx2Lanes load_halves(const uint16_t* p) {
    const __m128i* h = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
  }
  ELLM_INLINE void store_halves(uint16_t* p) const {
    __m128i* h = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(h, _mm256_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT));
  }
  // Products of integers (kernels/scalar/lanes.h): of the four bytes of a lane the even two become one vector of pairs
  // of 16 bits, the odd two another, by shifts that stay in their lane; codes lie in that order. (Bytes times bytes, as
  // maddubs has it, would save one of four additions and leave 7 bits to probabilities.)
  using Code = int16_t;
  static constexpr int kWordQueries = 4, kWordVectors = 1;
  static constexpr int weigh_vectors(int queries) { return queries <= 2 ? 2 : 1; }
  struct Ints {
    __m256i lo, hi;
  };
  struct Bytes {
    __m256i lo, hi;
  };
  struct Words {
    __m256i lo, hi;
  };
  static ELLM_INLINE Ints ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static ELLM_INLINE Ints load_ints(const int32_t* p) {
    const __m256i* from = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
  }
  static ELLM_INLINE void store_ints(Ints a, int32_t* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, a.hi);
  }
  static ELLM_INLINE Bytes load_bytes(const void* p) {
    const __m256i* from = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
  }
  template <int I>
  static ELLM_INLINE Words byte_words(Bytes a) {
    const auto part = [](__m256i bytes) ELLM_INLINE_LAMBDA {
      return _mm256_srai_epi16(I == 0 ? _mm256_slli_epi16(bytes, 8) : bytes, 8);
    };
    return {part(a.lo), part(a.hi)};
  }
  template <int I>
  static ELLM_INLINE Words nibble_words(Bytes a) {
    constexpr int kShift = I % 2 * 8 + I / 2 * 4;
    const auto part = [](__m256i bytes) ELLM_INLINE_LAMBDA {
      const __m256i shifted = kShift == 0 ? bytes : _mm256_srli_epi16(bytes, kShift);
      return I == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16(15));
    };
    return {part(a.lo), part(a.hi)};
  }
  /// sum += products of w's pairs with two codes. (As intrinsics g++ 12 makes all products of a group before it adds
  /// them: more than there are registers, so that sums went through memory.)
  static ELLM_INLINE void add_products(__m256i& sum, __m256i w, __m256i pair) {
    __m256i products;
    asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(w), "x"(pair));
  }
  static ELLM_INLINE Ints add_dot(Ints sum, Words a, const Code* codes) {
    int two;
    __builtin_memcpy(&two, codes, sizeof two);
    const __m256i pair = _mm256_set1_epi32(two);
    add_products(sum.lo, a.lo, pair);
    add_products(sum.hi, a.hi, pair);
    return sum;
  }
  static ELLM_INLINE Avx2Lanes from_ints(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static ELLM_INLINE void store_words(__m256i lo, __m256i hi, int16_t* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8));
  }
  ELLM_INLINE void store_integers(int16_t* p) const { store_words(_mm256_cvtps_epi32(lo), _mm256_cvtps_epi32(hi), p); }
  ELLM_INLINE void store_codes(Code* p) const {
    store_words(_mm256_shuffle_epi32(_mm256_cvtps_epi32(lo), 0xd8), _mm256_shuffle_epi32(_mm256_cvtps_epi32(hi), 0xd8),
                p);
  }

  static ELLM_INLINE __m256 in_order(__m256 v) {  // 64-bit pieces 0 2 1 3 put straight, and back
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
  }
  static ELLM_INLINE void deinterleave(Avx2Lanes a, Avx2Lanes b, Avx2Lanes& even, Avx2Lanes& odd) {
    even = {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0x88)), in_order(_mm256_shuffle_ps(b.lo, b.hi, 0x88))};
    odd = {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0xdd)), in_order(_mm256_shuffle_ps(b.lo, b.hi, 0xdd))};
  }
  static ELLM_INLINE void interleave(Avx2Lanes even, Avx2Lanes odd, Avx2Lanes& a, Avx2Lanes& b) {
    const __m256 e0 = in_order(even.lo), e1 = in_order(even.hi), o0 = in_order(odd.lo), o1 = in_order(odd.hi);
    a = {_mm256_unpacklo_ps(e0, o0), _mm256_unpackhi_ps(e0, o0)};
    b = {_mm256_unpacklo_ps(e1, o1), _mm256_unpackhi_ps(e1, o1)};
  }

  struct Max {
    static ELLM_INLINE __m256 apply(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
    static ELLM_INLINE __m128 apply(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
  };
  struct Sum {
    static ELLM_INLINE __m256 apply(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
    static ELLM_INLINE __m128 apply(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
  };
  template <class Op>
  static ELLM_INLINE Avx2Lanes fold(Avx2Lanes a) {
    const __m256 s = Op::apply(a.lo, a.hi);
    __m128 r = Op::apply(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    r = Op::apply(r, _mm_movehl_ps(r, r));
    r = Op::apply(r, _mm_shuffle_ps(r, r, 1));
    return {_mm256_castps128_ps256(r), _mm256_castps128_ps256(r)};
  }
  // Each step folds two vectors of partial trees into one; letters as in kernels/avx512/lanes.h.
  template <class Op, int A, class Get>
  static ELLM_INLINE Avx2Lanes fold_4(Get& get) {  // 4 lanes of each of 4 vectors
    const auto half = [&](auto i) ELLM_INLINE_LAMBDA {
      const Avx2Lanes v = get(Index<4 * ((A + i) % 4) + (A + i) / 4>{});
      return Op::apply(v.lo, v.hi);
    };
    const __m256 a = half(Index<0>{}), b = half(Index<1>{});
    const __m256 ab = Op::apply(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    const __m256 c = half(Index<2>{}), d = half(Index<3>{});
    const __m256 cd = Op::apply(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    return {ab, cd};
  }
  template <class Op, int A, class Get>
  static ELLM_INLINE Avx2Lanes fold_8(Get& get) {  // 2 lanes of each of 8 vectors
    const Avx2Lanes s = fold_4<Op, A>(get), t = fold_4<Op, A + 4>(get);
    return {Op::apply(_mm256_shuffle_ps(s.lo, t.lo, 0x44), _mm256_shuffle_ps(s.lo, t.lo, 0xee)),
            Op::apply(_mm256_shuffle_ps(s.hi, t.hi, 0x44), _mm256_shuffle_ps(s.hi, t.hi, 0xee))};
  }
  template <class Op, class Get>
  static ELLM_INLINE Avx2Lanes fold16(Get get) {
    const Avx2Lanes u = fold_8<Op, 0>(get), w = fold_8<Op, 8>(get);
    return {Op::apply(_mm256_shuffle_ps(u.lo, w.lo, 0x88), _mm256_shuffle_ps(u.lo, w.lo, 0xdd)),
            Op::apply(_mm256_shuffle_ps(u.hi, w.hi, 0x88), _mm256_shuffle_ps(u.hi, w.hi, 0xdd))};
  }
  ELLM_INLINE float first() const { return _mm256_cvtss_f32(lo); }

  friend ELLM_INLINE Avx2Lanes fma(Avx2Lanes a, Avx2Lanes b, Avx2Lanes c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  friend ELLM_INLINE Avx2Lanes mul(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  friend ELLM_INLINE Avx2Lanes add(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  friend ELLM_INLINE Avx2Lanes sub(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  friend ELLM_INLINE Avx2Lanes div(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  friend ELLM_INLINE Avx2Lanes max(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  friend ELLM_INLINE Avx2Lanes min(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  friend ELLM_INLINE Avx2Lanes abs(Avx2Lanes a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
  }
  friend ELLM_INLINE Avx2Lanes select_less(Avx2Lanes a, Avx2Lanes b, Avx2Lanes yes, Avx2Lanes no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  friend ELLM_INLINE Avx2Lanes keep_first(Avx2Lanes a, uint32_t n, Avx2Lanes other) {
    return {_mm256_blendv_ps(other.lo, a.lo, _mm256_castsi256_ps(first_lanes(n))),
            _mm256_blendv_ps(other.hi, a.hi, _mm256_castsi256_ps(first_lanes(beyond_8(n))))};
  }
  friend ELLM_INLINE uint32_t equal_bits(Avx2Lanes a, Avx2Lanes b) {
    const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
    const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
    return static_cast<uint32_t>(lo | hi << 8);
  }
  friend ELLM_INLINE Avx2Lanes shift_to_exponent(Avx2Lanes a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.lo), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.hi), 23))};
  }
};

}  // namespace
}  // namespace ellm::kernels
