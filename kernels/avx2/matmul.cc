// Matrix products of the avx2 level.
#include "kernels/avx2/level.h"

namespace ellm::kernels::avx2 {

void matmul(const MatmulArgs&) noexcept {}
void pack_q8(const Activations&, uint32_t, const float*, uint32_t, uint32_t) noexcept {}
void pack_f32(const Activations&, uint32_t, const float*, uint32_t, uint32_t) noexcept {}

}  // namespace ellm::kernels::avx2
