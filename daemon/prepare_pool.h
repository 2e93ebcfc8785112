// The preparation pool: what takes longer than the I/O thread may be held up (templates, tokenizing, loading models).
#pragma once
#include <functional>
#include <memory>

namespace ellm::daemon {

class PreparePool {
 public:
  explicit PreparePool(unsigned threads);
  ~PreparePool();  // finishes what runs, drops what waits
  PreparePool(const PreparePool&) = delete;

  /// Any thread. Jobs run in the order in which they came; what they throw is logged, and the rest goes on.
  void submit(std::function<void()> job);
  /// Drops what waits, refuses more and waits for what runs.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::daemon
