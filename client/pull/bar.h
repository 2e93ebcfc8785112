// A progress bar on a terminal; nothing elsewhere.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace ellm::pull {

class Bar {
 public:
  explicit Bar(std::string name);
  ~Bar();  // wipes it
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;
  /// Bytes; `total` 0: unknown.
  void show(const std::string& what, uint64_t done, uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string name_;
  const bool terminal_;
  std::string what_;
  uint64_t begun_at_ = 0;  // bytes that were there when `what_` began
  Clock::time_point begun_, drawn_;
};

}  // namespace ellm::pull
