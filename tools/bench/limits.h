// What this machine can do at most, measured on the same workers that compute: the figures that fractions are of.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "daemon/runtime/worker_pool.h"
#include "kernels/kernel_set.h"
#include "kernels/weight_type.h"

namespace ellm::bench {

struct Bandwidth {
  uint32_t threads;
  int streams;  // a thread
  double bytes_per_second;
};

struct Limits {
  std::vector<Bandwidth> bandwidths;
  /// Operations per second of all threads by how many products are added in 16 bits: 1, 2, 4, 8 (loops.h). AVX-512,
  /// AMX: all the same.
  std::array<double, 4> integer{};
  double floating = 0;  // f32 operations per second of all threads

  double bandwidth() const;  // the most of them
  double integer_peak() const { return integer[0]; }
  /// Of products with weights of this type: its instructions alone, without unpacking.
  double peak(kernels::WeightType type) const;
  /// The larger of each figure: a disturbance only ever makes them smaller.
  void take_better(const Limits& other);
};

/// About a second. `threads`: up to so many of the pool's.
Limits measure_limits(kernels::Level level, runtime::WorkerPool& pool);

}  // namespace ellm::bench
