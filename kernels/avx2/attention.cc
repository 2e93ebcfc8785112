// Attention and its KV stores of the AVX2 level (kernels/lanes/attention.h, store.h).
#include "kernels/lanes/attention.h"

#include "kernels/avx2/lanes.h"
#include "kernels/avx2/level.h"
#include "kernels/lanes/store.h"

namespace ellm::kernels::avx2 {
using Lanes = Avx2Lanes;
#include "kernels/lanes/attention_functions.inc"
}  // namespace ellm::kernels::avx2
