// Matrix products of the scalar level.
#include "kernels/scalar/level.h"

namespace ellm::kernels::scalar {

void matmul(const MatmulArgs&) noexcept {}
void pack_q8(const Activations&, uint32_t, const float*, uint32_t, uint32_t) noexcept {}
void pack_f32(const Activations&, uint32_t, const float*, uint32_t, uint32_t) noexcept {}

}  // namespace ellm::kernels::scalar
