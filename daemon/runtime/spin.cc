// Spinning and sleeping on a word (see spin.h).
#include "daemon/runtime/spin.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>

namespace ellm::runtime {
namespace {

constexpr uint32_t kLeastBudgetNs = 2'000;  // about what a futex wait and its wake-up cost
constexpr int kUntimedSpins = 64;           // the usual wait of a balanced phase: no clock is read
constexpr int kSpinsPerClock = 16;

uint64_t now_ns() { return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()); }

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

/// Whether the value changed within `spins` looks.
bool changed_within(const WaitWord& word, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (word.value() != old) return true;
    _mm_pause();
  }
  return false;
}

}  // namespace

void WaitWord::set(uint32_t value) {
  const uint32_t before = word_.exchange(value, std::memory_order_acq_rel);
  if (before & 1) futex(word_, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void WaitWord::sleep_while(uint32_t old) {
  for (;;) {
    uint32_t seen = word_.load(std::memory_order_acquire);
    if ((seen & ~1u) != old) return;
    if (seen == old &&
        !word_.compare_exchange_strong(seen, old | 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;  // set meanwhile, or another sleeper left its bit
    futex(word_, FUTEX_WAIT_PRIVATE, old | 1);
  }
}

void SpinBudget::wait_while(WaitWord& word, uint32_t old) {
  if (limit_ns_ == 0) return word.sleep_while(old);
  if (!changed_within(word, old, kUntimedSpins)) wait_long(word, old);
}

void SpinBudget::wait_long(WaitWord& word, uint32_t old) {
  const uint64_t begin = now_ns();
  bool changed = false;
  while (!changed && now_ns() - begin < budget_ns_) changed = changed_within(word, old, kSpinsPerClock);
  if (!changed) word.sleep_while(old);
  const bool paid = now_ns() - begin <= limit_ns_;
  budget_ns_ =
      paid ? std::min(limit_ns_, budget_ns_ * 2) : std::max(std::min(kLeastBudgetNs, limit_ns_), budget_ns_ / 2);
}

}  // namespace ellm::runtime
