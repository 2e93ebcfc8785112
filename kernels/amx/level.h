// The AMX level (AMX-TILE, AMX-INT8): AVX-512 with matrix products of its own. Only for a process that the kernel has
// given tile data (daemon/runtime/cpu_features.h).
// The tests compile it a second time over emulated intrinsics, as they do the AVX-512 level (kernels/avx512/level.h).
#pragma once
#include "kernels/kernel_set.h"

#ifdef ELLM_EMULATE_AVX512
#define ELLM_AMX emulated_amx
#else
#define ELLM_AMX amx
#endif

namespace ellm::kernels::ELLM_AMX {
void matmul(const MatmulArgs& args) noexcept;
}  // namespace ellm::kernels::ELLM_AMX
