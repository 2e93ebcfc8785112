// How a thread waits for a 32-bit word to change: it spins for as long as that has paid lately, then sleeps on a futex.
// Any thread; one SpinBudget belongs to one waiting thread.
#pragma once
#include <atomic>
#include <cstdint>

namespace ellm::runtime {

/// The word that waiters watch. Its lowest bit says that somebody sleeps on it, so changing the value and learning
/// whether anyone must be woken is one exchange, and no wake-up can be lost: a sleeper sets the bit by compare-and-swap
/// on the value that it waits to leave, and the kernel compares the word with the bit once more.
class WaitWord {
 public:
  explicit WaitWord(uint32_t value) : word_(value) {}
  /// The value, without the sleepers' bit. Values are even.
  uint32_t value() const { return word_.load(std::memory_order_acquire) & ~1u; }
  /// Changes the value (a release) and wakes whoever sleeps.
  void set(uint32_t value);
  /// Sleeps until the value is not `old`.
  void sleep_while(uint32_t old);

 private:
  std::atomic<uint32_t> word_;
};

/// How long to spin before sleeping. A wait that ended within the limit, asleep or not, would have been served best by
/// spinning, so the budget doubles; a longer one (a preempted peer, an idle daemon) halves it, down to the cost of
/// going to sleep. So a crowded machine is left alone after a few waits and an idle one won back as quickly.
class SpinBudget {
 public:
  /// `limit_ns` 0: never spins.
  explicit SpinBudget(uint32_t limit_ns) : limit_ns_(limit_ns), budget_ns_(limit_ns) {}
  /// Returns when the word's value is not `old` (an acquire).
  void wait_while(WaitWord& word, uint32_t old);

 private:
  void wait_long(WaitWord& word, uint32_t old);
  uint32_t limit_ns_, budget_ns_;
};

}  // namespace ellm::runtime
