// Row functions of the AVX2 level (kernels/lanes/rows.h).
#include "kernels/lanes/rows.h"

#include "kernels/avx2/lanes.h"
#include "kernels/avx2/level.h"

namespace ellm::kernels::avx2 {
using Lanes = Avx2Lanes;
#include "kernels/lanes/row_functions.inc"
}  // namespace ellm::kernels::avx2
