// Row functions of the AVX-512 level (kernels/lanes/rows.h).
#include "kernels/lanes/rows.h"

#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AVX512 {
using Lanes = Avx512Lanes;
#include "kernels/lanes/row_functions.inc"
}  // namespace ellm::kernels::ELLM_AVX512
