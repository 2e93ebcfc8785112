// Row functions of the AVX-512 level (kernels/lanes/rows.h).
#include "kernels/lanes/rows.h"

#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AVX512 {

void rms_norm(const float* x, const float* weight, uint32_t n, float eps, float* out) noexcept {
  rms_norm_row<Avx512Lanes>(x, weight, n, eps, out);
}
void rope(float* head, const float* cos, const float* sin, uint32_t half, bool neox) noexcept {
  rope_head<Avx512Lanes>(head, cos, sin, half, neox);
}
void silu_mul(const float* gate, const float* up, uint32_t n, float* out) noexcept {
  silu_mul_row<Avx512Lanes>(gate, up, n, out);
}
void gelu_mul(const float* gate, const float* up, uint32_t n, float* out) noexcept {
  gelu_mul_row<Avx512Lanes>(gate, up, n, out);
}
void soft_cap(float* x, uint32_t n, float cap) noexcept { soft_cap_row<Avx512Lanes>(x, n, cap); }
uint32_t argmax(const float* x, uint32_t n) noexcept { return argmax_row<Avx512Lanes>(x, n); }
float log_sum_exp(const float* x, uint32_t n) noexcept { return log_sum_exp_row<Avx512Lanes>(x, n); }

}  // namespace ellm::kernels::ELLM_AVX512
