// The AVX-512 and AMX levels over emulated intrinsics, as two more rows of the table.
#pragma once
#include "kernels/kernel_set.h"

namespace ellm::kernels {
const KernelSet& emulated_avx512_set() noexcept;
const KernelSet& emulated_amx_set() noexcept;
Repack emulated_repack() noexcept;  // of both
}  // namespace ellm::kernels
