// Random quantised blocks whose weights are spread as a trained matrix's are (mean about 0, deviation 1 /
// sqrt(columns)), so that nothing overflows on the way through a model. Only their bytes matter to a measurement. Pure;
// any thread.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/weight_type.h"

namespace ellm::bench {

/// xorshift64*: equal on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D;
  }
  /// In [-1, 1).
  float uniform() { return static_cast<float>(static_cast<int32_t>(next() >> 32)) * 0x1p-31f; }

 private:
  uint64_t state_;
};

/// Fills `to`, whole blocks of `type`, with weights of standard deviation `deviation`.
void random_weights(kernels::WeightType type, float deviation, Random& random, std::span<std::byte> to);

}  // namespace ellm::bench
