// The weight types that the kernels compute on, with the ids that GGUF gives them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ellm::kernels {

enum class WeightType : uint32_t {
  f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q4_k = 12, q6_k = 14, bf16 = 30,
};

/// Quantised types multiply with int8 activations, the others with f32.
constexpr bool is_quantised(WeightType t) {
  return t != WeightType::f32 && t != WeightType::f16 && t != WeightType::bf16;
}

/// How one block of a type lies in a GGUF file.
struct BlockShape {
  const char* name;   // as GGUF tools print it: "Q4_K"
  uint32_t weights;   // weights per block
  uint32_t bytes;     // bytes per block
};
BlockShape block_shape(WeightType type) noexcept;

}  // namespace ellm::kernels
