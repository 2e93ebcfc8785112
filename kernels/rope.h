// Sine and cosine of RoPE angles, from our own polynomials: equal on every machine. Baseline code; any thread.
#pragma once

namespace ellm::kernels {

struct SinCos {
  double sin, cos;
};
/// Within 1e-15 for |angle| <= 1e7 (radians); NaN for NaN and infinities.
SinCos sin_cos(double angle) noexcept;

}  // namespace ellm::kernels
