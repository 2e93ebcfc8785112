// Small sums over rows of logits, in double.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ellm::tools {

inline std::vector<double> log_softmax(std::span<const float> row) {
  double peak = -INFINITY, sum = 0;
  for (float x : row) peak = std::max<double>(peak, x);
  for (float x : row) sum += std::exp(x - peak);
  std::vector<double> out(row.size());
  for (size_t i = 0; i < row.size(); ++i) out[i] = row[i] - peak - std::log(sum);
  return out;
}

inline std::span<const float> row_of(std::span<const float> logits, size_t row, uint32_t vocabulary) {
  return logits.subspan(row * vocabulary, vocabulary);
}

inline uint32_t best_of(std::span<const float> row) {
  return static_cast<uint32_t>(std::ranges::max_element(row) - row.begin());
}

/// Best minus second.
inline double margin_of(std::span<const float> row) {
  std::vector<float> two(2);
  std::ranges::partial_sort_copy(row, two, std::greater());
  return double{two[0]} - two[1];
}

/// Mean of -log p(token i + 1 | tokens up to i); logits are (tokens, vocabulary).
inline double mean_nll(std::span<const float> logits, std::span<const uint32_t> tokens, uint32_t vocabulary) {
  double sum = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) sum -= log_softmax(row_of(logits, i, vocabulary))[tokens[i + 1]];
  return sum / static_cast<double>(tokens.size() - 1);
}

}  // namespace ellm::tools
