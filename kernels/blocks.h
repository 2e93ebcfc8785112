// GGUF blocks to floats and back, bit-equal to ggml's reference (source: the GGUF specification and ggml's block
// layouts). Baseline code: any thread, any machine.
#pragma once
#include "kernels/weight_type.h"

namespace ellm::kernels {

/// Expands `n` weights (a multiple of the block) from GGUF blocks at `src` to `dst`.
void dequantize(WeightType type, const std::byte* src, size_t n, float* dst) noexcept;

/// Rounds `n` floats to GGUF blocks: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1. False for a type it does not write.
[[nodiscard]] bool quantize(WeightType type, const float* src, size_t n, std::byte* dst) noexcept;

float f16_to_f32(uint16_t h) noexcept;
uint16_t f32_to_f16(float f) noexcept;  // round to nearest even
float bf16_to_f32(uint16_t h) noexcept;
uint16_t f32_to_bf16(float f) noexcept;  // round to nearest even, NaN stays NaN

}  // namespace ellm::kernels
