// Matrix products of the avx512 level.
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AVX512 {

void matmul(const MatmulArgs&) noexcept {}
void pack_q8(const Activations&, uint32_t, const float*, uint32_t, uint32_t) noexcept {}
void pack_f32(const Activations&, uint32_t, const float*, uint32_t, uint32_t) noexcept {}

}  // namespace ellm::kernels::ELLM_AVX512
