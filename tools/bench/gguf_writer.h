// Writes a GGUF file (version 3): the header at once, the tensors' data as a stream, so that a file may be larger than
// memory. Source: the GGUF specification. One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weight_type.h"

namespace ellm::bench {

/// A tensor before it has data.
struct TensorPlan {
  std::string name;
  std::vector<uint64_t> dims;  // fastest first
  kernels::WeightType type;
  uint64_t elements() const;
  uint64_t bytes() const;
};

class GgufWriter {
 public:
  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }  // else it were a bool
  void add(std::string_view key, std::span<const std::string> values);
  void add(std::string_view key, std::span<const int32_t> values);

  /// Bytes of the file with these tensors.
  uint64_t file_bytes(std::span<const TensorPlan> tensors) const;
  /// Writes everything to `path`, by a temporary name beside it. `data` fills a piece of a tensor (whole blocks).
  /// Throws std::system_error with the path.
  void write(const std::string& path, std::span<const TensorPlan> tensors,
             const std::function<void(const TensorPlan&, std::span<std::byte>)>& data) const;

 private:
  std::string header(std::span<const TensorPlan> tensors) const;
  std::string values_;
  uint64_t keys_ = 0;
};

}  // namespace ellm::bench
