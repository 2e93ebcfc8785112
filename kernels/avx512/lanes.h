// Sixteen floats of the AVX-512 level: one register. The operations are those of kernels/scalar/lanes.h.
#pragma once
#include "kernels/avx512/intrinsics.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

struct Avx512Lanes {
  __m512 v;

  // Register tiles of attention: accumulators, the K or V they share and the broadcasts in 32 registers.
  static constexpr int kQueries = 8;
  static constexpr int token_vectors(int) { return 2; }
  static constexpr int dim_vectors(int queries) { return queries <= 4 ? 4 : 2; }
  // What attention asks for ahead: into the second-level cache (into the first are few at a time, 2/3 of the
  // bandwidth), far on, so that memory has work during a segment's softmax, too (f16, 7 heads, without the first
  // token's rest: 2 pages 580 to 880 µs, 4 385 to 573, 8 341 to 349).
  static constexpr int kFetchLocality = 2;
  static constexpr size_t kTogetherBytes = SIZE_MAX;

  static ELLM_INLINE __mmask16 first_lanes(uint32_t n) {
    return static_cast<__mmask16>(n < 16 ? (1u << n) - 1 : 0xffffu);
  }

  static ELLM_INLINE Avx512Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static ELLM_INLINE Avx512Lanes load_first(const float* p, uint32_t n) {
    return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
  }
  ELLM_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  ELLM_INLINE void store_first(float* p, uint32_t n) const { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
  static ELLM_INLINE Avx512Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }

  static ELLM_INLINE Avx512Lanes load_halves(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  ELLM_INLINE void store_halves(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  // Products of integers (kernels/scalar/lanes.h): of the four bytes of a lane the even two become one vector of pairs
  // of 16 bits, the odd two another, by shifts that stay in their lane; codes lie in that order.
  using Code = int16_t;
  static constexpr int kWordQueries = 8, kWordVectors = 2;
  static constexpr int weigh_vectors(int queries) { return queries <= 4 ? 4 : 2; }
  struct Ints {
    __m512i v;
  };
  struct Bytes {
    __m512i v;
  };
  struct Words {
    __m512i v;
  };
  static ELLM_INLINE Ints ints(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static ELLM_INLINE Ints load_ints(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
  static ELLM_INLINE void store_ints(Ints a, int32_t* p) { _mm512_storeu_si512(p, a.v); }
  static ELLM_INLINE Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
  template <int I>
  static ELLM_INLINE Words byte_words(Bytes a) {
    return {_mm512_srai_epi16(I == 0 ? _mm512_slli_epi16(a.v, 8) : a.v, 8)};
  }
  template <int I>
  static ELLM_INLINE Words nibble_words(Bytes a) {
    constexpr int kShift = I % 2 * 8 + I / 2 * 4;
    const __m512i shifted = kShift == 0 ? a.v : _mm512_srli_epi16(a.v, kShift);
    return {I == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16(15))};
  }
  /// sum += products of w's pairs with two codes, in every lane (as an operand the broadcast is free:
  /// kernels/avx512/matmul.cc).
  static ELLM_INLINE void add_products(__m512i& sum, __m512i w, const Code* codes) {
#ifdef ELLM_EMULATE_AVX512
    int two;
    __builtin_memcpy(&two, codes, sizeof two);
    sum = _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(two));
#else
    using Two = int32_t __attribute__((may_alias, aligned(1)));
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Two*>(codes)));
#endif
  }
  static ELLM_INLINE Ints add_dot(Ints sum, Words a, const Code* codes) {
    add_products(sum.v, a.v, codes);
    return sum;
  }
  static ELLM_INLINE Avx512Lanes from_ints(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
  ELLM_INLINE void store_integers(int16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
  }
  ELLM_INLINE void store_codes(Code* p) const {
    const __m512i order = _mm512_shuffle_epi32(_mm512_cvtps_epi32(v), static_cast<_MM_PERM_ENUM>(0xd8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(order));
  }

  static ELLM_INLINE void deinterleave(Avx512Lanes a, Avx512Lanes b, Avx512Lanes& even, Avx512Lanes& odd) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even.v = _mm512_permutex2var_ps(a.v, evens, b.v);
    odd.v = _mm512_permutex2var_ps(a.v, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b.v);
  }
  static ELLM_INLINE void interleave(Avx512Lanes even, Avx512Lanes odd, Avx512Lanes& a, Avx512Lanes& b) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    a.v = _mm512_permutex2var_ps(even.v, low, odd.v);
    b.v = _mm512_permutex2var_ps(even.v, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd.v);
  }

  struct Max {
    static ELLM_INLINE __m512 apply(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  };
  struct Sum {
    static ELLM_INLINE __m512 apply(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  };
  template <class Op>
  static ELLM_INLINE Avx512Lanes fold(Avx512Lanes a) {
    a.v = Op::apply(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0x4e));
    a.v = Op::apply(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0xb1));
    a.v = Op::apply(a.v, _mm512_shuffle_ps(a.v, a.v, 0x4e));
    a.v = Op::apply(a.v, _mm512_shuffle_ps(a.v, a.v, 0xb1));
    return a;
  }
  // Sixteen vectors a … p are folded together: a step takes two vectors of partial trees, puts the lower halves of their
  // trees into one register and the upper into another, and combines the two. The last step leaves them in the order
  // a e i m b f j n c g k o d h l p, so letter number A is given the tree that belongs into lane 4 * (A % 4) + A / 4.
  template <class Op, int A, class Get>
  static ELLM_INLINE __m512 fold_2(Get& get) {  // 8 lanes of each of 2 vectors
    const __m512 a = get(Index<4 * (A % 4) + A / 4>{}).v, b = get(Index<4 * ((A + 1) % 4) + (A + 1) / 4>{}).v;
    return Op::apply(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  template <class Op, int A, class Get>
  static ELLM_INLINE __m512 fold_4(Get& get) {  // 4 lanes of each of 4 vectors
    const __m512 ab = fold_2<Op, A>(get), cd = fold_2<Op, A + 2>(get);
    return Op::apply(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }
  template <class Op, int A, class Get>
  static ELLM_INLINE __m512 fold_8(Get& get) {  // 2 lanes of each of 8 vectors
    const __m512 s = fold_4<Op, A>(get), t = fold_4<Op, A + 4>(get);
    return Op::apply(_mm512_shuffle_ps(s, t, 0x44), _mm512_shuffle_ps(s, t, 0xee));
  }
  template <class Op, class Get>
  static ELLM_INLINE Avx512Lanes fold16(Get get) {
    const __m512 u = fold_8<Op, 0>(get), w = fold_8<Op, 8>(get);
    return {Op::apply(_mm512_shuffle_ps(u, w, 0x88), _mm512_shuffle_ps(u, w, 0xdd))};
  }
  ELLM_INLINE float first() const { return _mm_cvtss_f32(_mm256_castps256_ps128(_mm512_castps512_ps256(v))); }

  friend ELLM_INLINE Avx512Lanes fma(Avx512Lanes a, Avx512Lanes b, Avx512Lanes c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  friend ELLM_INLINE Avx512Lanes mul(Avx512Lanes a, Avx512Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend ELLM_INLINE Avx512Lanes add(Avx512Lanes a, Avx512Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend ELLM_INLINE Avx512Lanes sub(Avx512Lanes a, Avx512Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend ELLM_INLINE Avx512Lanes div(Avx512Lanes a, Avx512Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
  friend ELLM_INLINE Avx512Lanes max(Avx512Lanes a, Avx512Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
  friend ELLM_INLINE Avx512Lanes min(Avx512Lanes a, Avx512Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
  friend ELLM_INLINE Avx512Lanes abs(Avx512Lanes a) { return {_mm512_abs_ps(a.v)}; }
  friend ELLM_INLINE Avx512Lanes select_less(Avx512Lanes a, Avx512Lanes b, Avx512Lanes yes, Avx512Lanes no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
  }
  friend ELLM_INLINE Avx512Lanes keep_first(Avx512Lanes a, uint32_t n, Avx512Lanes other) {
    return {_mm512_mask_blend_ps(first_lanes(n), other.v, a.v)};
  }
  friend ELLM_INLINE uint32_t equal_bits(Avx512Lanes a, Avx512Lanes b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
  }
  friend ELLM_INLINE Avx512Lanes shift_to_exponent(Avx512Lanes a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
  }
};

}  // namespace
}  // namespace ellm::kernels
