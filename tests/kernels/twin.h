// A naive twin of the matrix products, written from HACKING.md's fixed-order rule and the GGUF specification alone: it
// knows neither panels nor tiles nor the library's code.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/weight_type.h"

namespace ellm::twin {

using kernels::WeightType;

/// Where in a GGUF block the f16 scale and minimum stand; -1 where there is none (MXFP4's scale is an exponent).
struct ScalePlace {
  int d, m;
};
ScalePlace scale_place(WeightType type);

/// GGUF rows of random codes; scales within about ±0.05, now and then zero.
std::vector<std::byte> random_rows(WeightType type, uint32_t rows, uint32_t cols, std::mt19937& rng);

/// One token's activations, quantised.
struct Token {
  std::vector<int8_t> q;     // (blocks, 32)
  std::vector<float> scale;  // (blocks)
  std::vector<int32_t> sum;  // (blocks): of q
};
Token quantise(const std::vector<float>& x);

/// One output: dot of GGUF row `row` (cols weights) with the token.
float dot(WeightType type, const std::byte* row, uint32_t cols, const std::vector<float>& x, const Token& token);

/// The weights as floats.
std::vector<float> weights(WeightType type, const std::byte* row, uint32_t cols);

}  // namespace ellm::twin
