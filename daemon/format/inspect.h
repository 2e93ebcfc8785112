// What a model file holds, summed up for people: `ellm inspect`, log lines. Pure functions of an open file; any thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/format/gguf.h"

namespace ellm::format {

/// The tensors of one type, together.
struct TypeShare {
  const TensorType* type;
  uint64_t tensors = 0, parameters = 0, bytes = 0;
};
/// Largest share of bytes first.
std::vector<TypeShare> weight_types(const Gguf& file);

/// The same on one line: "Q4_K 78 %, Q6_K 22 %" of the bytes; types below half a percent are left out.
std::string describe_weight_types(const Gguf& file);

/// Elements of all tensors but tables that are no weights (rope_freqs, rope_factors_*).
uint64_t parameter_count(const Gguf& file);

/// "260K", "135M", "1.5B"
std::string size_label(uint64_t parameters);

/// A metadata value on one line: a scalar, a quoted string, "[1, 2, 3, …] (32000 f32)"; text cut after `longest` bytes.
std::string describe(const Value& value, size_t longest = 100);

}  // namespace ellm::format
