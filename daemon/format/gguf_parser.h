// One GGUF file to its values and tensors, every number checked before it is used. Internal to daemon/format.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "daemon/format/gguf.h"
#include "daemon/format/model_file.h"

namespace ellm::format {

/// One file of a model; views of values and tensors point into `file`.
struct GgufPart {
  ModelFile file;
  uint32_t version = 0;
  std::vector<std::pair<std::string, Value>> values;  // in file order
  std::vector<Tensor> tensors;                        // in file order

  const Value* find(std::string_view key) const;  // linear: for the few keys that opening needs
};

/// Throws FormatError.
GgufPart parse_gguf(ModelFile file);

/// The integer of a scalar of any integer type that is not negative.
std::optional<uint64_t> unsigned_value(const Value& value);

}  // namespace ellm::format
