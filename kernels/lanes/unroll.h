// Loops that are unrolled before the optimiser sees them, so that arrays of accumulators with constant indices become
// registers. Compiled into every kernel level: all in an anonymous namespace, since the levels export no weak symbols.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define ELLM_INLINE inline __attribute__((always_inline))
#define ELLM_INLINE_LAMBDA __attribute__((always_inline))

/// Before a loop: n rounds side by side, neither fewer nor all of them.
#define ELLM_PRAGMA(x) _Pragma(#x)
#ifdef __clang__
#define ELLM_UNROLL(n) ELLM_PRAGMA(clang loop unroll_count(n))
#else
#define ELLM_UNROLL(n) ELLM_PRAGMA(GCC unroll n)
#endif

namespace ellm::kernels {
namespace {

/// A constant passed as an argument.
template <int I>
struct Index {
  static constexpr int value = I;
  ELLM_INLINE constexpr operator int() const { return I; }
};

/// f(Index<0>), f(Index<1>) … f(Index<N - 1>).
template <int N, int I = 0, class F>
ELLM_INLINE void unrolled(F&& f) {
  if constexpr (I < N) {
    f(Index<I>{});
    unrolled<N, I + 1>(f);
  }
}

/// f(Index<n>) for a run-time n in 1 … N.
template <int N, class F>
ELLM_INLINE void with_count(uint32_t n, F&& f) {
  if constexpr (N == 1) {
    f(Index<1>{});
  } else {
    if (n == N) {
      f(Index<N>{});
    } else {
      with_count<N - 1>(n, f);
    }
  }
}

}  // namespace
}  // namespace ellm::kernels
