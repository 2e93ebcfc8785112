// Attention and its KV stores of the scalar level (kernels/lanes/attention.h, store.h).
#include "kernels/lanes/attention.h"

#include "kernels/lanes/store.h"
#include "kernels/scalar/lanes.h"
#include "kernels/scalar/level.h"

namespace ellm::kernels::scalar {
using Lanes = ScalarLanes;
#include "kernels/lanes/attention_functions.inc"
}  // namespace ellm::kernels::scalar
