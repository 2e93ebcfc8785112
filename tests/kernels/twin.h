// A naive twin of the matrix products, written from HACKING.md's fixed-order rule and the GGUF specification alone: it
// knows neither panels nor tiles nor the library's code.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/weight_type.h"

namespace ellm::twin {

using kernels::WeightType;

inline constexpr WeightType kAllTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                           WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                           WeightType::q4_k, WeightType::q6_k};

/// GGUF rows of random codes; scales within about ±0.05, now and then zero.
std::vector<std::byte> random_rows(WeightType type, uint32_t rows, uint32_t cols, std::mt19937& rng);

/// One token's activations, quantised.
struct Token {
  std::vector<int8_t> q;        // (blocks, 32)
  std::vector<float> scale;     // (blocks)
  std::vector<int32_t> sum;     // (blocks): of q
};
Token quantise(const std::vector<float>& x);

/// One output: dot of GGUF row `row` (cols weights) with the token.
float dot(WeightType type, const std::byte* row, uint32_t cols, const std::vector<float>& x, const Token& token);

/// The weights as floats.
std::vector<float> weights(WeightType type, const std::byte* row, uint32_t cols);

}  // namespace ellm::twin
