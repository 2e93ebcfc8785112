// Reads the hyper-parameters of one architecture, "llama.block_count" and so on, with bounds. Internal to daemon/model;
// a short-lived view of an open file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/format/gguf.h"
#include "daemon/model/config.h"

namespace ellm::model {

class ConfigReader {
 public:
  ConfigReader(const format::Gguf& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  const format::Gguf& file() const { return file_; }

  /// An integer from `least` to `most`.
  std::optional<uint32_t> find_size(std::string_view key, uint32_t least, uint32_t most) const;
  uint32_t get_size(std::string_view key, uint32_t least, uint32_t most) const;
  /// A number from `least` to `most`.
  std::optional<double> find_number(std::string_view key, double least, double most) const;
  double get_number(std::string_view key, double least, double most) const;
  std::optional<std::string_view> find_string(std::string_view key) const { return file_.find_string(full(key)); }
  std::optional<bool> find_bool(std::string_view key) const { return file_.find_bool(full(key)); }

  /// "FILE: key 'llama.KEY': text"
  [[nodiscard]] format::FormatError error(std::string_view key, const std::string& text) const;

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  const format::Gguf& file_;
  std::string prefix_;
};

/// The window of "attention.sliding_window" in tokens, 0 where the file says that there is none.
std::optional<uint32_t> read_window(const ConfigReader& reader);

/// A soft cap; 0: none.
std::optional<float> read_soft_cap(const ConfigReader& reader, std::string_view key);

inline constexpr uint32_t kWidest = 1u << 24;  // of an embedding or a feed-forward network

/// The numbers of experts and their size.
void read_experts(const ConfigReader& reader, ModelConfig& config);

/// The RoPE part of a configuration. `neox` is set by the caller. `trained`: the model's context; `context`: of
/// requests.
RopeConfig read_rope_config(const ConfigReader& reader, uint32_t head_dim, uint32_t trained, uint32_t context);

}  // namespace ellm::model
