// RoPE angles (kernel_set.h, rope.h). Baseline code, plain double arithmetic without contraction; any thread.
#include "kernels/rope.h"

#include <cstdint>
#include <cstring>

#include "kernels/kernel_set.h"

namespace ellm::kernels {
namespace {

// pi / 2 in three pieces; the first two have 30 bits, so that their products with a quadrant number below 2^23 are
// exact.
constexpr double kHalfPiHigh = 0x1.921fb54p+0, kHalfPiMiddle = 0x1.10b46118p-30, kHalfPiLow = 0x1.313198a2e0370p-61;
constexpr double kRound = 0x1.8p+52;  // added and taken away again: rounds to an integer, which stands in the low bits

// Taylor series on |r| <= pi / 4: the first omitted terms are below 1e-17.
double sin_near_zero(double r) {
  const double z = r * r;
  double p = 1.0 / 355687428096000;  // 1 / 17!
  p = p * z - 1.0 / 1307674368000;
  p = p * z + 1.0 / 6227020800;
  p = p * z - 1.0 / 39916800;
  p = p * z + 1.0 / 362880;
  p = p * z - 1.0 / 5040;
  p = p * z + 1.0 / 120;
  p = p * z - 1.0 / 6;
  return r + r * z * p;
}
double cos_near_zero(double r) {
  const double z = r * r;
  double p = 1.0 / 20922789888000;  // 1 / 16!
  p = p * z - 1.0 / 87178291200;
  p = p * z + 1.0 / 479001600;
  p = p * z - 1.0 / 3628800;
  p = p * z + 1.0 / 40320;
  p = p * z - 1.0 / 720;
  p = p * z + 1.0 / 24;
  p = p * z - 1.0 / 2;
  return 1 + z * p;
}

}  // namespace

SinCos sin_cos(double angle) noexcept {
  const double shifted = angle * 0.636619772367581343075535053490 + kRound;
  const double n = shifted - kRound;
  const double r = ((angle - n * kHalfPiHigh) - n * kHalfPiMiddle) - n * kHalfPiLow;
  const double s = sin_near_zero(r), c = cos_near_zero(r);
  uint64_t quadrant;
  std::memcpy(&quadrant, &shifted, sizeof quadrant);
  switch (quadrant & 3) {
    case 0: return {s, c};
    case 1: return {c, -s};
    case 2: return {-s, -c};
    default: return {-c, s};
  }
}

void rope_angles(double position, const double* frequency, uint32_t n, float magnitude, float* cos,
                 float* sin) noexcept {
  for (uint32_t i = 0; i < n; ++i) {
    const SinCos a = sin_cos(position * frequency[i]);
    cos[i] = static_cast<float>(a.cos * magnitude);
    sin[i] = static_cast<float>(a.sin * magnitude);
  }
}

}  // namespace ellm::kernels
