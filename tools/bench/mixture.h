// Which type each tensor of a quantised file has: what llama.cpp's llama-quantize decides without an importance matrix
// (src/llama-quant.cpp, llama_tensor_get_type_impl and tensor_type_fallback). Pure; any thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "kernels/weight_type.h"
#include "tools/bench/shape.h"

namespace ellm::bench {

enum class Mixture : uint8_t {
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k_m,
  q4_k_s,
  q4_k_m,
  q5_k_s,
  q5_k_m,
  q6_k,
  iq4_nl,
  iq4_xs
};

std::optional<Mixture> find_mixture(std::string_view name);  // "q4_k_m"
std::string mixture_names();
/// general.file_type of such a file.
uint32_t file_type(Mixture mix);

/// The type of a weight matrix. `role`: the tensor's name without "blk.N."; `columns`: its row length.
kernels::WeightType tensor_type(Mixture mix, const Shape& shape, std::string_view role, uint32_t layer,
                                uint64_t columns);

}  // namespace ellm::bench
