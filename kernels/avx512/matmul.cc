// Matrix products of the avx512 level.
#include "kernels/avx512/level.h"
#include "kernels/scalar/level.h"

namespace ellm::kernels::ELLM_AVX512 {

void matmul(const MatmulArgs& a) noexcept { scalar::matmul(a); }
void pack_q8(const Activations& d, uint32_t r, const float* x, uint32_t b, uint32_t e) noexcept { scalar::pack_q8(d, r, x, b, e); }
void pack_f32(const Activations& d, uint32_t r, const float* x, uint32_t b, uint32_t e) noexcept { scalar::pack_f32(d, r, x, b, e); }

}  // namespace ellm::kernels::ELLM_AVX512
