// What the engine's callbacks have left for the I/O thread, handed over once a step: a wake-up for each request would
// have the I/O thread take the engine's core again and again while it still delivers the step's tokens.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "daemon/loop.h"

namespace ellm::daemon {

/// Somebody who has something to collect.
struct Addressee {
  virtual ~Addressee() = default;
  /// I/O thread.
  virtual void collect() = 0;
};

class Outbox {
 public:
  explicit Outbox(Loop& loop) : loop_(loop) {}

  /// Any thread; collected after the next flush().
  void add(std::shared_ptr<Addressee> addressee);
  /// The engine thread, when a step's callbacks have run. False: there was no memory to do it; it is to come again.
  bool flush() noexcept;

 private:
  void deliver();

  Loop& loop_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Addressee>> waiting_;
  bool posted_ = false;
  std::vector<std::shared_ptr<Addressee>> delivering_;  // I/O thread
};

}  // namespace ellm::daemon
