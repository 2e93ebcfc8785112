// A progress bar on stderr where that is a terminal; nothing elsewhere. One thread.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>

namespace ellm::cli {

class Progress {
 public:
  /// `done` of `total` were there before it began.
  Progress(size_t done, size_t total);
  ~Progress();  // wipes it
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// At most ten times a second. `more`: what else is worth knowing.
  void show(size_t done, const std::string& more);

 private:
  using Clock = std::chrono::steady_clock;
  const size_t before_, total_;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point drawn_{};
};

}  // namespace ellm::cli
