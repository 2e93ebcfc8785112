// Matrix products of the AMX level: still those of AVX-512.
#include "kernels/amx/level.h"
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AMX {

void matmul(const MatmulArgs& args) noexcept { ELLM_AVX512::matmul(args); }

}  // namespace ellm::kernels::ELLM_AMX
