// Rows of floats that matrix products write.
#pragma once
#include <cstddef>

namespace ellm::model {

/// Rows an odd number of cache lines apart. A product writes some columns of all rows; were those a power of two apart,
/// they would share a few sets of each cache.
struct FloatRows {
  float* data = nullptr;
  size_t stride = 0;  // floats

  static constexpr size_t stride_of(size_t columns) { return ((columns + 15) / 16 | 1) * 16; }
  float* operator[](size_t row) const { return data + row * stride; }
};

}  // namespace ellm::model
