// Attention and its KV stores of the AVX-512 level (kernels/lanes/attention.h, store.h).
#include "kernels/lanes/attention.h"

#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"
#include "kernels/lanes/store.h"

namespace ellm::kernels::ELLM_AVX512 {
using Lanes = Avx512Lanes;
#include "kernels/lanes/attention_functions.inc"
}  // namespace ellm::kernels::ELLM_AVX512
