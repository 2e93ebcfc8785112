// Row functions of the scalar level (kernels/lanes/rows.h).
#include "kernels/lanes/rows.h"

#include "kernels/scalar/lanes.h"
#include "kernels/scalar/level.h"

namespace ellm::kernels::scalar {
using Lanes = ScalarLanes;
#include "kernels/lanes/row_functions.inc"
}  // namespace ellm::kernels::scalar
