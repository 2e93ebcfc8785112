// Sources: RoPE (Su et al. 2021), position interpolation (Chen et al. 2023), YaRN (Peng et al. 2023: NTK by parts with
// a ramp between two wavelengths, and a magnitude of 0.1 ln(factor) + 1).
#include "daemon/model/rope.h"

#include <algorithm>
#include <cmath>

namespace ellm::model {
namespace {

// ln and exp out of basic operations alone: the C library picks variants of pow and log by CPU, whose last bits differ,
// and frequencies must be equal on every machine. Good to about 2^-59 for the arguments here (up to about 100).
using Real = long double;
constexpr Real kLn2 = 0.693147180559945309417232121458176568L;
constexpr Real kPi = 3.141592653589793238462643383279502884L;

Real natural_log(Real x) {
  int exponent = 0;
  Real m = std::frexp(x, &exponent);             // [1/2, 1)
  if (m < 0.70710678L) m *= 2, exponent--;       // [0.707, 1.414]
  const Real z = (m - 1) / (m + 1), z2 = z * z;  // ln m = 2 artanh z, |z| < 0.172
  Real sum = 0;
  for (int k = 31; k >= 1; k -= 2) sum = sum * z2 + 1 / Real(k);
  return 2 * z * sum + exponent * kLn2;
}

Real exponential(Real x) {
  const Real k = std::floor(x / kLn2 + 0.5L);
  const Real r = x - k * kLn2;  // |r| < 0.35
  Real sum = 1;
  for (int n = 24; n >= 1; n--) sum = 1 + sum * r / n;
  return std::ldexp(sum, static_cast<int>(k));
}

/// The pair whose angle turns `rotations` times within the original context (not rounded).
Real yarn_pair(const RopeConfig& rope, Real rotations) {
  return rope.dimensions * natural_log(rope.original_context / (rotations * 2 * kPi)) / (2 * natural_log(rope.base));
}

/// How much of pair i keeps its frequency: 1 for short wavelengths, 0 for long ones.
class YarnRamp {
 public:
  explicit YarnRamp(const RopeConfig& rope) : strength_(rope.yarn_extrapolation) {
    const Real last = rope.dimensions - 1;
    low_ = std::clamp(std::floor(yarn_pair(rope, rope.yarn_beta_fast)), Real(0), last);
    high_ = std::clamp(std::ceil(yarn_pair(rope, rope.yarn_beta_slow)), Real(0), last);
  }
  Real operator()(uint32_t i) const {
    const Real ramp = (i - low_) / std::max(high_ - low_, Real(0.001L));
    return (1 - std::clamp(ramp, Real(0), Real(1))) * strength_;
  }

 private:
  Real low_, high_, strength_;
};

}  // namespace

RopeTable make_rope_table(const RopeConfig& rope) {
  RopeTable table;
  const uint32_t pairs = rope.dimensions / 2;
  table.frequency.resize(pairs);
  const Real log_base = natural_log(rope.base);
  const bool yarn = rope.scaling == RopeScaling::yarn;
  const bool stretched = yarn || rope.scaling == RopeScaling::linear;
  for (uint32_t i = 0; i < pairs; i++) {
    Real frequency = exponential(-(Real(2 * i) / rope.dimensions) * log_base);
    if (!rope.frequency_factors.empty()) frequency /= rope.frequency_factors[i];
    if (stretched) {
      const Real interpolated = frequency / rope.factor;
      const Real keep = yarn ? YarnRamp(rope)(i) : 0;
      frequency = interpolated * (1 - keep) + frequency * keep;
    }
    table.frequency[i] = static_cast<double>(frequency);
  }
  Real magnitude = rope.yarn_attention_factor;
  if (yarn && rope.yarn_extrapolation != 0 && rope.factor > 1) magnitude *= 1 + 0.1L * natural_log(rope.factor);
  table.magnitude = static_cast<float>(magnitude);
  return table;
}

}  // namespace ellm::model
