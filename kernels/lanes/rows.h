// The row functions of kernels/kernel_set.h (norm, RoPE, activation, arg max, log-sum-exp), once for all levels: L is a
// level's vector of 16 floats (kernels/<level>/lanes.h). Pure; any thread.
#pragma once
#include "kernels/lanes/exp.h"

namespace ellm::kernels {
namespace {

template <class L>
ELLM_INLINE void rms_norm_row(const float* x, const float* weight, uint32_t n, float eps, float* out) {
  const uint32_t whole = n / 16 * 16;
  L squares = L::broadcast(0.0f);
  for (uint32_t i = 0; i < whole; i += 16) {
    const L v = L::load(x + i);
    squares = fma(v, v, squares);
  }
  if (whole < n) {
    const L v = L::load_first(x + whole, n - whole);
    squares = fma(v, v, squares);
  }
  const float sum = L::template fold<typename L::Sum>(squares).first();
  const L inverse = L::broadcast(1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps));
  for (uint32_t i = 0; i < whole; i += 16) mul(mul(L::load(x + i), inverse), L::load(weight + i)).store(out + i);
  if (whole < n) {
    const uint32_t rest = n - whole;
    mul(mul(L::load_first(x + whole, rest), inverse), L::load_first(weight + whole, rest))
        .store_first(out + whole, rest);
  }
}

/// (a, b) turned by the angle: a' = a cos - b sin, b' = b cos + a sin.
template <class L>
ELLM_INLINE void turn(L& a, L& b, L cos, L sin) {
  const L a_new = fma(a, cos, sub(L::broadcast(-0.0f), mul(b, sin)));
  b = fma(b, cos, mul(a, sin));
  a = a_new;
}

template <class L>
ELLM_INLINE void rope_head(float* head, const float* cos, const float* sin, uint32_t half, bool neox) {
  for (uint32_t i = 0; i < half; i += 16) {
    const uint32_t n = half - i < 16 ? half - i : 16;
    const L c = L::load_first(cos + i, n), s = L::load_first(sin + i, n);
    if (neox) {
      L a = L::load_first(head + i, n), b = L::load_first(head + half + i, n);
      turn(a, b, c, s);
      a.store_first(head + i, n);
      b.store_first(head + half + i, n);
    } else {
      const uint32_t n_high = 2 * n > 16 ? 2 * n - 16 : 0;  // the second vector of the n pairs
      float* high = head + 2 * i + (n_high ? 16 : 0);
      L low_values = L::load_first(head + 2 * i, 2 * n), high_values = L::load_first(high, n_high);
      L a, b;
      L::deinterleave(low_values, high_values, a, b);
      turn(a, b, c, s);
      L::interleave(a, b, low_values, high_values);
      low_values.store_first(head + 2 * i, 2 * n);
      high_values.store_first(high, n_high);
    }
  }
}

template <class L>
ELLM_INLINE L silu_mul_lanes(L gate, L up) {
  const L one = L::broadcast(1.0f);
  return mul(div(gate, add(one, exp_any(sub(L::broadcast(-0.0f), gate)))), up);
}

/// gelu(x) = x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class L>
ELLM_INLINE L gelu_mul_lanes(L gate, L up) {
  const L minus_two_u = mul(gate, fma(mul(gate, gate), L::broadcast(-0.0713548163f), L::broadcast(-1.5957691216f)));
  return mul(div(gate, add(L::broadcast(1.0f), exp_any(minus_two_u))), up);
}

/// out = f(a, b), 16 values at a time.
template <class L, class F>
ELLM_INLINE void map_rows(const float* a, const float* b, uint32_t n, float* out, F f) {
  const uint32_t whole = n / 16 * 16, rest = n - whole;
  for (uint32_t i = 0; i < whole; i += 16) f(L::load(a + i), L::load(b + i)).store(out + i);
  if (rest) f(L::load_first(a + whole, rest), L::load_first(b + whole, rest)).store_first(out + whole, rest);
}

template <class L>
ELLM_INLINE void silu_mul_row(const float* gate, const float* up, uint32_t n, float* out) {
  map_rows<L>(gate, up, n, out, [](L g, L u) ELLM_INLINE_LAMBDA { return silu_mul_lanes(g, u); });
}
template <class L>
ELLM_INLINE void gelu_mul_row(const float* gate, const float* up, uint32_t n, float* out) {
  map_rows<L>(gate, up, n, out, [](L g, L u) ELLM_INLINE_LAMBDA { return gelu_mul_lanes(g, u); });
}

template <class L>
ELLM_INLINE void soft_cap_row(float* x, uint32_t n, float cap) {
  const uint32_t whole = n / 16 * 16, rest = n - whole;
  for (uint32_t i = 0; i < whole; i += 16) soft_cap_lanes(L::load(x + i), cap).store(x + i);
  if (rest) soft_cap_lanes(L::load_first(x + whole, rest), cap).store_first(x + whole, rest);
}

/// The largest value that is not NaN, -infinity if there is none. (A maximum has no order to keep: four chains.)
template <class L>
ELLM_INLINE float row_max(const float* x, uint32_t n) {
  const L lowest = L::broadcast(-__builtin_inff());
  L best[4] = {lowest, lowest, lowest, lowest};
  uint32_t i = 0;
  for (; i + 64 <= n; i += 64) {
    unrolled<4>([&](auto k) ELLM_INLINE_LAMBDA { best[k] = max(L::load(x + i + 16 * k), best[k]); });
  }
  for (; i + 16 <= n; i += 16) best[0] = max(L::load(x + i), best[0]);
  if (i < n) best[1] = max(keep_first(L::load_first(x + i, n - i), n - i, lowest), best[1]);
  return L::template fold<typename L::Max>(max(max(best[0], best[1]), max(best[2], best[3]))).first();
}

template <class L>
ELLM_INLINE uint32_t argmax_row(const float* x, uint32_t n) {
  const float best = row_max<L>(x, n);
  if (!(best > -__builtin_inff())) return 0;
  const L wanted = L::broadcast(best);
  for (uint32_t i = 0; i + 16 <= n; i += 16) {
    const uint32_t bits = equal_bits(L::load(x + i), wanted);
    if (bits) return i + static_cast<uint32_t>(__builtin_ctz(bits));
  }
  const uint32_t whole = n / 16 * 16;
  for (uint32_t i = whole; i < n; ++i) {
    if (x[i] == best) return i;
  }
  return 0;
}

/// ln(x) for a finite normal x > 0, in double: 2 atanh((m - 1) / (m + 1)) + e ln(2) with m in [sqrt(1/2), sqrt(2)).
ELLM_INLINE double natural_log(float x) {
  const double wide = static_cast<double>(x);
  uint64_t bits;
  __builtin_memcpy(&bits, &wide, sizeof bits);
  const uint64_t offset = bits - 0x3fe6a09e00000000;  // from sqrt(1/2) on
  const double exponent = static_cast<double>(static_cast<int64_t>(offset) >> 52);
  bits = (offset & 0xfffffffffffff) + 0x3fe6a09e00000000;
  double m;
  __builtin_memcpy(&m, &bits, sizeof m);
  const double s = (m - 1) / (m + 1), s2 = s * s;  // |s| <= 0.172: s^21 / 21 is below 1e-17
  double sum = 1.0 / 19;
  for (int k = 17; k > 0; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2 * s * sum + exponent * 0.693147180559945309417232121458;
}

/// The sum of power(x_i), as sums over a row are.
template <class L, class F>
ELLM_INLINE float sum_of_powers(const float* x, uint32_t n, F power) {
  L sums = L::broadcast(0.0f);
  const uint32_t whole = n / 16 * 16, rest = n - whole;
  for (uint32_t i = 0; i < whole; i += 16) sums = add(sums, power(L::load(x + i)));
  if (rest) sums = add(sums, keep_first(power(L::load_first(x + whole, rest)), rest, L::broadcast(0.0f)));
  return L::template fold<typename L::Sum>(sums).first();
}

/// With the largest value m taken out: m + ln(sum of exp(x_i - m)). An infinite m is the result itself.
template <class L>
ELLM_INLINE float log_sum_exp_row(const float* x, uint32_t n) {
  const float largest = row_max<L>(x, n);
  if (__builtin_fabsf(largest) == __builtin_inff()) return largest;
  const L shift = L::broadcast(largest);
  const float sum = sum_of_powers<L>(x, n, [&](L v) ELLM_INLINE_LAMBDA { return exp_falling(sub(v, shift)); });
  if (sum != sum) return sum;
  return static_cast<float>(static_cast<double>(largest) + natural_log(sum));
}

template <class L>
ELLM_INLINE float tempered_log_sum_exp_row(const float* x, uint32_t n, float peak, float temperature) {
  const L shift = L::broadcast(peak), divisor = L::broadcast(temperature), lowest = L::broadcast(-__builtin_inff());
  const float sum = sum_of_powers<L>(
      x, n, [&](L v) ELLM_INLINE_LAMBDA { return exp_falling(max(div(sub(v, shift), divisor), lowest)); });
  return static_cast<float>(natural_log(sum));
}

}  // namespace
}  // namespace ellm::kernels
