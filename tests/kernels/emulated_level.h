// The AVX-512 level over emulated intrinsics, as one more row of the table.
#pragma once
#include "kernels/kernel_set.h"

namespace ellm::kernels {
const KernelSet& emulated_avx512_set() noexcept;
Repack emulated_avx512_repack() noexcept;
}  // namespace ellm::kernels
