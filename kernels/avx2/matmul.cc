// Matrix products of the avx2 level.
#include "kernels/avx2/level.h"
#include "kernels/scalar/level.h"

namespace ellm::kernels::avx2 {

void matmul(const MatmulArgs& a) noexcept { scalar::matmul(a); }
void pack_q8(const Activations& d, uint32_t r, const float* x, uint32_t b, uint32_t e) noexcept { scalar::pack_q8(d, r, x, b, e); }
void pack_f32(const Activations& d, uint32_t r, const float* x, uint32_t b, uint32_t e) noexcept { scalar::pack_f32(d, r, x, b, e); }

}  // namespace ellm::kernels::avx2
