// The weight types that the kernels compute on, with the ids that GGUF gives them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ellm::kernels {

enum class WeightType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
  mxfp4 = 39,
};

/// All of them.
inline constexpr WeightType kWeightTypes[] = {
    WeightType::f32,  WeightType::f16,    WeightType::bf16,   WeightType::q8_0, WeightType::q4_0, WeightType::q4_1,
    WeightType::q5_0, WeightType::q5_1,   WeightType::q2_k,   WeightType::q3_k, WeightType::q4_k, WeightType::q5_k,
    WeightType::q6_k, WeightType::iq4_nl, WeightType::iq4_xs, WeightType::mxfp4};

/// Quantised types multiply with int8 activations, the others with f32.
constexpr bool is_quantised(WeightType t) {
  return t != WeightType::f32 && t != WeightType::f16 && t != WeightType::bf16;
}

/// How one block of a type lies in a GGUF file.
struct BlockShape {
  const char* name;  // as GGUF tools print it: "Q4_K"
  uint32_t weights;  // weights per block
  uint32_t bytes;    // bytes per block
};
BlockShape block_shape(WeightType type) noexcept;

}  // namespace ellm::kernels
