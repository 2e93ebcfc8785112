// Small random models of the architectures for which nobody's figures are at hand, with the logits of a float64 forward
// pass (tests/model/float64_pass.py, numpy).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace ellm::tests {

/// Runs tests/model/float64_pass.py with these arguments; what it printed.
std::string float64_pass(const std::string& arguments);

/// Ids as float64_pass.py takes them.
inline std::string comma_separated(const std::vector<uint32_t>& ids) {
  std::string text;
  for (const uint32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

/// The root of the squares of all differences, of that of the wanted.
inline double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return INFINITY;
  double errors = 0, squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    errors += (got[i] - want[i]) * (got[i] - want[i]);
    squares += want[i] * want[i];
  }
  return std::sqrt(errors / squares);
}

template <typename T>
std::vector<T> read_values(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

class GeneratedModel {
 public:
  explicit GeneratedModel(const std::string& kind) {
    float64_pass("generate " + kind + " '" + dir_.path().string() + "'");
  }
  std::string path() const { return file("model.gguf"); }
  std::vector<uint32_t> tokens() const { return read_values<uint32_t>(file("tokens")); }
  /// (tokens, vocabulary)
  std::vector<double> logits() const { return read_values<double>(file("logits")); }
  /// Of the first 60 tokens by a model that is loaded for 60.
  std::vector<double> short_logits() const { return read_values<double>(file("short_logits")); }

 private:
  std::string file(const char* name) const { return (dir_.path() / name).string(); }
  TempDir dir_;
};

}  // namespace ellm::tests
