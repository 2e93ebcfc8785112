// How fast the queue moves, and so when one that is refused may try again. Pure; the engine's mutex guards it.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace ellm::serve {

class QueuePace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// A request has left the queue: its turn came, or it ended.
  void left(Time now) {
    if (left_ == 0) begin_ = now;
    left_ = left_ * std::exp(-seconds(last_, now) / kMemorySeconds) + 1;
    last_ = now;
  }
  /// When an eighth of `queued` requests will have left, at the pace of the last seconds.
  uint32_t retry_after_ms(uint32_t queued, Time now) const {
    if (left_ == 0) return kUnknownMs;
    const double remembered = left_ * std::exp(-seconds(last_, now) / kMemorySeconds);
    const double since = std::max(seconds(begin_, now), kLeastSeconds);
    const double span = kMemorySeconds * (1 - std::exp(-since / kMemorySeconds));
    const double ms = 1e3 * (queued / 8 + 1) / (remembered / span);
    return static_cast<uint32_t>(std::clamp(ms, double{kLeastMs}, double{kMostMs}));
  }

 private:
  static constexpr double kMemorySeconds = 20, kLeastSeconds = 1;
  static constexpr uint32_t kUnknownMs = 1000, kLeastMs = 50, kMostMs = 60000;
  static double seconds(Time from, Time to) { return std::chrono::duration<double>(to - from).count(); }

  double left_ = 0;  // requests, each counting less the longer it is ago
  Time begin_{}, last_{};
};

}  // namespace ellm::serve
