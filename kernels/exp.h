// The exponential that every level computes, for one value (kernels/lanes/exp.h says how). Baseline code; any thread.
#pragma once

namespace ellm::kernels {

/// e^x to less than 0.9 ulp; 0 below -87.33654 (no subnormal results), +infinity above 88.37627, NaN for NaN, 1 for 0.
float exp_spec(float x) noexcept;

}  // namespace ellm::kernels
