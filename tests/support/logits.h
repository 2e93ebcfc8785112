// Small sums over rows of logits, in double.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace ellm::tests {

inline std::vector<double> log_softmax(std::span<const float> row) {
  double peak = -INFINITY, sum = 0;
  for (float x : row) peak = std::max<double>(peak, x);
  for (float x : row) sum += std::exp(x - peak);
  std::vector<double> out(row.size());
  for (size_t i = 0; i < row.size(); ++i) out[i] = row[i] - peak - std::log(sum);
  return out;
}

inline std::span<const float> row_of(const std::vector<float>& logits, size_t row, uint32_t vocabulary) {
  return std::span(logits).subspan(row * vocabulary, vocabulary);
}

inline uint32_t best_of(std::span<const float> row) {
  return static_cast<uint32_t>(std::ranges::max_element(row) - row.begin());
}

}  // namespace ellm::tests
