// The exponential of every level: one sequence of fused operations over 16 lanes (HACKING.md, "The fixed-order rule").
// L is a level's vector of 16 floats (kernels/<level>/lanes.h).
//
//   n = rint(x * log2(e)), taken from the low bits of fma(x, log2(e), 1.5 * 2^23 + 127)
//   r = fma(n, -ln2_low, fma(n, -ln2_high, x))          |r| <= ln(2) / 2; the inner step is exact
//   p = 1 + r + r^2 * (c2 + c3 r + … + c6 r^4)          Horner by fma; minimax, relative error 4e-9 before rounding
//   exp = p * 2^n                                        exact
// Below kExpLowest, where the result would be subnormal, it is 0; above kExpHighest, where 2^n is not a float, it is
// +infinity. NaN stays NaN; exp(0) is 1. Error: below 0.9 ulp (tests/kernels/exp_test.cc).
#pragma once
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

constexpr float kExpLowest = -0x1.5d589ep+6f;  // -87.33654
constexpr float kExpHighest = 0x1.61814cp+6f;  // 88.37627
constexpr float kExpRound = 0x1.8p+23f + 127;

/// exp(x) without the limits: right for kExpLowest <= x <= kExpHighest.
template <class L>
ELLM_INLINE L exp_within(L x) {
  const L shifted = fma(x, L::broadcast(0x1.715476p+0f), L::broadcast(kExpRound));
  const L n = sub(shifted, L::broadcast(kExpRound));
  L r = fma(n, L::broadcast(-0x1.62e43p-1f), x);
  r = fma(n, L::broadcast(0x1.05c61p-29f), r);
  L p = fma(L::broadcast(0x1.6a249cp-10f), r, L::broadcast(0x1.1239ap-7f));
  p = fma(p, r, L::broadcast(0x1.5558fp-5f));
  p = fma(p, r, L::broadcast(0x1.555492p-3f));
  p = fma(p, r, L::broadcast(0x1.fffffcp-2f));
  p = fma(p, r, L::broadcast(1.0f));
  p = fma(p, r, L::broadcast(1.0f));
  return mul(p, shift_to_exponent(shifted));
}

/// exp(x) for x that is at most 0 (or NaN): what softmax needs.
template <class L>
ELLM_INLINE L exp_falling(L x) {
  return select_less(x, L::broadcast(kExpLowest), L::broadcast(0.0f), exp_within(x));
}

/// Two vectors side by side: the steps of an exponential wait for each other, those of two do not.
template <class L>
struct Two {
  L a, b;
  static ELLM_INLINE Two broadcast(float x) { return {L::broadcast(x), L::broadcast(x)}; }
  friend ELLM_INLINE Two fma(Two x, Two y, Two z) { return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)}; }
  friend ELLM_INLINE Two mul(Two x, Two y) { return {mul(x.a, y.a), mul(x.b, y.b)}; }
  friend ELLM_INLINE Two sub(Two x, Two y) { return {sub(x.a, y.a), sub(x.b, y.b)}; }
  friend ELLM_INLINE Two shift_to_exponent(Two x) { return {shift_to_exponent(x.a), shift_to_exponent(x.b)}; }
  friend ELLM_INLINE Two select_less(Two x, Two y, Two yes, Two no) {
    return {select_less(x.a, y.a, yes.a, no.a), select_less(x.b, y.b, yes.b, no.b)};
  }
};

/// exp(x) for every x.
template <class L>
ELLM_INLINE L exp_any(L x) {
  const L limited = select_less(L::broadcast(kExpHighest), x, L::broadcast(__builtin_inff()), exp_within(x));
  return select_less(x, L::broadcast(kExpLowest), L::broadcast(0.0f), limited);
}

/// cap * tanh(x / cap) as cap - 2 cap / (exp(x * (2 / cap)) + 1): 0 for 0, ±cap in the limits.
template <class L>
ELLM_INLINE L soft_cap_lanes(L x, float cap) {
  const L power = exp_any(mul(x, L::broadcast(2 / cap)));
  return sub(L::broadcast(cap), div(L::broadcast(2 * cap), add(power, L::broadcast(1.0f))));
}

}  // namespace
}  // namespace ellm::kernels
