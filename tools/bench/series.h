// Repeated measurements of one thing. Plain data.
#pragma once
#include <algorithm>
#include <vector>

namespace ellm::bench {

struct Series {
  std::vector<double> seconds;  // in the order in which they were measured

  bool empty() const { return seconds.empty(); }
  double median() const {
    std::vector<double> v = seconds;
    std::ranges::sort(v);
    const size_t n = v.size();
    return n == 0 ? 0 : n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
  }
  double least() const { return empty() ? 0 : *std::ranges::min_element(seconds); }
  double most() const { return empty() ? 0 : *std::ranges::max_element(seconds); }
  /// (most - least) / median
  double spread() const { return empty() ? 0 : (most() - least()) / median(); }
};

}  // namespace ellm::bench
