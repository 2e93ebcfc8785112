// The AVX2 level (AVX2, FMA, F16C): two registers of 8 rows make a panel.
#pragma once
#include "kernels/kernel_set.h"

namespace ellm::kernels::avx2 {
#include "kernels/level_functions.inc"
}  // namespace ellm::kernels::avx2
