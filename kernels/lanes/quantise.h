// Rounding rows of K, V and queries to integers with a scale, once for all levels.
#pragma once
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

/// 16 values from `d` on of `n`, zeros behind the end.
template <class L>
ELLM_INLINE L values_from(const float* x, uint32_t d, uint32_t n) {
  return L::load_first(x + d, n - d < 16 ? n - d : 16);
}

template <class L>
ELLM_INLINE float largest_of(const float* x, uint32_t n, bool negated) {
  L largest = L::broadcast(-__builtin_inff());
  for (uint32_t d = 0; d < n; d += 16) {
    L v = L::load_first(x + d, n - d < 16 ? n - d : 16);
    if (negated) v = sub(L::broadcast(-0.0f), v);
    largest = max(keep_first(v, n - d, L::broadcast(-__builtin_inff())), largest);
  }
  return L::template fold<typename L::Max>(largest).first();
}

/// The nearest integers of values within -127 … 127.
template <class L>
ELLM_INLINE L nearest(L x) {
  const L high = L::broadcast(0x1.8p+23f);
  return sub(add(x, high), high);
}

constexpr float kRestParts = 254;  // what rounding leaves is at most half a scale: 127 parts

/// max|x| / most, and the factor that takes x to -most … most: both 0 for a row of (almost) zeros.
struct CodeScale {
  float scale, factor;
};
template <class L>
ELLM_INLINE CodeScale code_scale(const float* x, uint32_t n, float most) {
  L largest = L::broadcast(0.0f);
  for (uint32_t d = 0; d < n; d += 16) largest = max(abs(values_from<L>(x, d, n)), largest);
  const float a = L::template fold<typename L::Max>(largest).first();
  if (a < 1e-30f) return {0, 0};
  return {a / most, most / a};
}

/// x * factor within -most … most.
template <class L>
ELLM_INLINE L limited(L x, L factor, float most) {
  return min(max(mul(x, factor), L::broadcast(-most)), L::broadcast(most));
}

/// (max - min) / 15 and min as halves, and 1 / scale: 0 where all values are (almost) equal.
struct Int4Range {
  uint16_t scale_half, least_half;
  float scale, least, factor;
};
template <class L>
ELLM_INLINE Int4Range int4_range(const float* x, uint32_t n) {
  const float most = largest_of<L>(x, n, false),
              least = 0.0f - largest_of<L>(x, n, true);  // + 0.0f: no zero is negative
  uint16_t halves[16];
  float rounded[16];
  L::broadcast((most - least) / 15.0f + 0.0f).store_halves(halves);
  const uint16_t scale_half = halves[0];
  L::load_halves(halves).store(rounded);
  const float scale = rounded[0];
  L::broadcast(least + 0.0f).store_halves(halves);
  L::load_halves(halves).store(rounded);
  return {scale_half, halves[0], scale, rounded[0], scale > 0.0f ? 1.0f / scale : 0.0f};
}
/// (x - least) / scale within 0 … 15.
template <class L>
ELLM_INLINE L limited(L x, const Int4Range& r) {
  return min(max(mul(sub(x, L::broadcast(r.least)), L::broadcast(r.factor)), L::broadcast(0.0f)), L::broadcast(15.0f));
}

}  // namespace
}  // namespace ellm::kernels
