// The AVX-512 intrinsics over AVX2: SIMDe's, plus by hand those that SIMDe 0.7.4 lacks. With it the tests execute the
// AVX-512 level's sources on any machine with AVX2 and FMA. Rounding is that of the instructions: nearest even.
// Add what a kernel newly uses; an intrinsic that is missing fails to compile ("target specific option mismatch").
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#define ELLM_EMULATED static inline __attribute__((always_inline, unused))

namespace {

struct Halves {
  __m256i lo, hi;
};
template <class T>
ELLM_EMULATED Halves halves(const T& v) {
  static_assert(sizeof(T) == sizeof(Halves));
  Halves h;
  memcpy(&h, &v, sizeof h);
  return h;
}
template <class T>
ELLM_EMULATED T joined(__m256i lo, __m256i hi) {
  const Halves h{lo, hi};
  T v;
  memcpy(&v, &h, sizeof h);
  return v;
}
ELLM_EMULATED __m512 joined_ps(__m256 lo, __m256 hi) {
  return joined<__m512>(_mm256_castps_si256(lo), _mm256_castps_si256(hi));
}
ELLM_EMULATED __m256 low_ps(__m512 v) { return _mm256_castsi256_ps(halves(v).lo); }
ELLM_EMULATED __m256 high_ps(__m512 v) { return _mm256_castsi256_ps(halves(v).hi); }

/// Lane masks of 8 bits as vectors.
ELLM_EMULATED __m256i lanes_of(unsigned mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits), bits);
}

// Conversions
ELLM_EMULATED __m512 emulated_cvtepi32_ps(__m512i v) {
  return joined_ps(_mm256_cvtepi32_ps(halves(v).lo), _mm256_cvtepi32_ps(halves(v).hi));
}
ELLM_EMULATED __m512i emulated_cvtps_epi32(__m512 v) {
  return joined<__m512i>(_mm256_cvtps_epi32(low_ps(v)), _mm256_cvtps_epi32(high_ps(v)));
}
ELLM_EMULATED __m512 emulated_cvtph_ps(__m256i v) {
  return joined_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
ELLM_EMULATED __m256i emulated_cvtps_ph(__m512 v) {
  return _mm256_set_m128i(_mm256_cvtps_ph(high_ps(v), 0), _mm256_cvtps_ph(low_ps(v), 0));
}
ELLM_EMULATED __m512i emulated_cvtepi8_epi32(__m128i v) {
  return joined<__m512i>(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)));
}
ELLM_EMULATED __m512i emulated_cvtepu8_epi32(__m128i v) {
  return joined<__m512i>(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)));
}
ELLM_EMULATED __m512i emulated_cvtepu8_epi16(__m256i v) {
  return joined<__m512i>(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(v)),
                         _mm256_cvtepu8_epi16(_mm256_extracti128_si256(v, 1)));
}
ELLM_EMULATED __m512i emulated_cvtepu16_epi32(__m256i v) {
  return joined<__m512i>(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                         _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
ELLM_EMULATED __m128i emulated_cvtepi32_epi8(__m512i v) {
  int32_t in[16];
  int8_t out[16];
  memcpy(in, &v, sizeof in);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<int8_t>(in[i]);
  __m128i r;
  memcpy(&r, out, sizeof r);
  return r;
}

ELLM_EMULATED __m256i emulated_cvtepi32_epi16(__m512i v) {
  int32_t in[16];
  int16_t out[16];
  memcpy(in, &v, sizeof in);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<int16_t>(in[i]);
  __m256i r;
  memcpy(&r, out, sizeof r);
  return r;
}

// The dot product of four unsigned with four signed bytes, exact (SIMDe's takes minutes to compile): even and odd bytes
// as 16-bit numbers.
ELLM_EMULATED __m256i emulated_dot(__m256i sum, __m256i u, __m256i s) {
  const __m256i u_even = _mm256_and_si256(u, _mm256_set1_epi16(255));
  const __m256i even = _mm256_madd_epi16(u_even, _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
ELLM_EMULATED __m512i emulated_dpbusd_epi32(__m512i sum, __m512i u, __m512i s) {
  return joined<__m512i>(emulated_dot(halves(sum).lo, halves(u).lo, halves(s).lo),
                         emulated_dot(halves(sum).hi, halves(u).hi, halves(s).hi));
}

ELLM_EMULATED __m512i emulated_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
  return joined<__m512i>(_mm256_add_epi32(halves(sum).lo, _mm256_madd_epi16(halves(a).lo, halves(b).lo)),
                         _mm256_add_epi32(halves(sum).hi, _mm256_madd_epi16(halves(a).hi, halves(b).hi)));
}

// SIMDe 0.7.4 gives this name to the masked form.
ELLM_EMULATED __m512i emulated_madd_epi16(__m512i a, __m512i b) {
  return joined<__m512i>(_mm256_madd_epi16(halves(a).lo, halves(b).lo), _mm256_madd_epi16(halves(a).hi, halves(b).hi));
}

// Shifts, masked memory
template <unsigned N>
ELLM_EMULATED __m512i emulated_srai_epi32(__m512i v) {
  return joined<__m512i>(_mm256_srai_epi32(halves(v).lo, N), _mm256_srai_epi32(halves(v).hi, N));
}
ELLM_EMULATED __m512 emulated_maskz_loadu_ps(unsigned mask, const void* p) {
  const float* f = static_cast<const float*>(p);
  return joined_ps(_mm256_maskload_ps(f, lanes_of(mask & 255)), _mm256_maskload_ps(f + 8, lanes_of(mask >> 8 & 255)));
}
ELLM_EMULATED void emulated_mask_storeu_ps(void* p, unsigned mask, __m512 v) {
  float* f = static_cast<float*>(p);
  _mm256_maskstore_ps(f, lanes_of(mask & 255), low_ps(v));
  _mm256_maskstore_ps(f + 8, lanes_of(mask >> 8 & 255), high_ps(v));
}

// Reductions (of values whose order does not matter)
ELLM_EMULATED float emulated_reduce_max_ps(__m512 v) {
  float in[16];
  memcpy(in, &v, sizeof in);
  float most = in[0];
  for (int i = 1; i < 16; ++i) most = in[i] > most ? in[i] : most;
  return most;
}
ELLM_EMULATED int32_t emulated_reduce_add_epi32(__m512i v) {
  int32_t in[16], sum = 0;
  memcpy(in, &v, sizeof in);
  for (int i = 0; i < 16; ++i) sum += in[i];
  return sum;
}

}  // namespace

#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtepu8_epi16
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi8
#undef _mm512_srai_epi32
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_reduce_max_ps
#undef _mm512_reduce_add_epi32
#undef _mm512_dpbusd_epi32
#undef _mm512_dpwssd_epi32
#undef _mm512_cvtepi32_epi16
#undef _mm512_shuffle_epi32
#undef _mm512_madd_epi16
#define _mm512_dpbusd_epi32(sum, u, s) emulated_dpbusd_epi32(sum, u, s)
#define _mm512_dpwssd_epi32(sum, a, b) emulated_dpwssd_epi32(sum, a, b)
#define _mm512_cvtepi32_epi16(v) emulated_cvtepi32_epi16(v)
#define _mm512_shuffle_epi32(v, order) \
  joined<__m512i>(_mm256_shuffle_epi32(halves(v).lo, order), _mm256_shuffle_epi32(halves(v).hi, order))
#define _mm512_madd_epi16(a, b) emulated_madd_epi16(a, b)
#define _mm512_cvtepi32_ps(v) emulated_cvtepi32_ps(v)
#define _mm512_cvtps_epi32(v) emulated_cvtps_epi32(v)
#define _mm512_cvtph_ps(v) emulated_cvtph_ps(v)
#define _mm512_cvtps_ph(v, rounding) emulated_cvtps_ph(v)
#define _mm512_cvtepu8_epi16(v) emulated_cvtepu8_epi16(v)
#define _mm512_cvtepi8_epi32(v) emulated_cvtepi8_epi32(v)
#define _mm512_cvtepu8_epi32(v) emulated_cvtepu8_epi32(v)
#define _mm512_cvtepu16_epi32(v) emulated_cvtepu16_epi32(v)
#define _mm512_cvtepi32_epi8(v) emulated_cvtepi32_epi8(v)
#define _mm512_srai_epi32(v, n) emulated_srai_epi32<n>(v)
#define _mm512_maskz_loadu_ps(mask, p) emulated_maskz_loadu_ps(mask, p)
#define _mm512_mask_storeu_ps(p, mask, v) emulated_mask_storeu_ps(p, mask, v)
#define _mm512_reduce_max_ps(v) emulated_reduce_max_ps(v)
#define _mm512_reduce_add_epi32(v) emulated_reduce_add_epi32(v)

// Attention and the row functions.
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4(a, b, parts) simde_mm512_shuffle_f32x4(a, b, parts)

#pragma GCC diagnostic pop
