// Equality of floats to the bit; every NaN is the same NaN.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

namespace ellm::tests {

inline bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

inline ::testing::AssertionResult same_bits(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (!same_bits(a[i], b[i])) {
      return ::testing::AssertionFailure()
             << "value " << i << " of " << n << ": " << std::hexfloat << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace ellm::tests
