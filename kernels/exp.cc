// The exponential for one value: a lane of one float instead of a level's vector. Baseline code; any thread.
#include "kernels/exp.h"

#include <string.h>

#include "kernels/lanes/exp.h"

namespace ellm::kernels {
namespace {

/// As one of kernels/scalar/lanes.h.
struct OneLane {
  float v;

  static OneLane broadcast(float x) { return {x}; }
  friend OneLane fma(OneLane a, OneLane b, OneLane c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
  friend OneLane mul(OneLane a, OneLane b) { return {a.v * b.v}; }
  friend OneLane sub(OneLane a, OneLane b) { return {a.v - b.v}; }
  friend OneLane select_less(OneLane a, OneLane b, OneLane yes, OneLane no) { return a.v < b.v ? yes : no; }
  friend OneLane shift_to_exponent(OneLane a) {
    uint32_t bits;
    memcpy(&bits, &a.v, sizeof bits);
    bits <<= 23;
    memcpy(&a.v, &bits, sizeof bits);
    return a;
  }
};

}  // namespace

float exp_spec(float x) noexcept { return exp_any(OneLane{x}).v; }

}  // namespace ellm::kernels
