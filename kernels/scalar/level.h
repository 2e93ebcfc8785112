// The scalar level: the specification that every other level equals to the bit. Baseline x86-64.
#pragma once
#include "kernels/kernel_set.h"

namespace ellm::kernels::scalar {
#include "kernels/level_functions.inc"
}  // namespace ellm::kernels::scalar
