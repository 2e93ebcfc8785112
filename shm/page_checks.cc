// See page_checks.h.
#include "shm/page_checks.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

namespace ellm::shm {

PageChecks::PageChecks(std::vector<uint32_t> pages, uint32_t total, std::function<bool(uint32_t)> is_intact)
    : pages_(std::move(pages)), is_intact_(std::move(is_intact)), states_(new std::atomic<State>[total] {}) {
  for (const uint32_t page : pages_) states_[page].store(State::waiting, std::memory_order_relaxed);
  if (!pages_.empty()) thread_ = std::jthread([this](const std::stop_token& stop) { run_all(stop); });
}

PageChecks::~PageChecks() = default;

/// Whether the page was waiting; it is running now, and the caller's. Else `seen` says what it is.
bool PageChecks::take(uint32_t page, State& seen) {
  seen = State::waiting;
  return states_[page].compare_exchange_strong(seen, State::running, std::memory_order_acquire);
}

PageChecks::State PageChecks::run(uint32_t page) {
  const State result = is_intact_(page) ? State::intact : State::damaged;
  states_[page].store(result, std::memory_order_release);  // what was read was read before
  states_[page].notify_one();
  return result;
}

/// Waits while somebody else looks at it.
PageChecks::State PageChecks::ended(uint32_t page) {
  states_[page].wait(State::running, std::memory_order_acquire);
  return states_[page].load(std::memory_order_acquire);
}

bool PageChecks::is_intact(uint32_t page) {
  State state;
  state = take(page, state) ? run(page) : ended(page);
  return state == State::settled ? is_intact_(page) : state == State::intact;
}

void PageChecks::settle(uint32_t page) {
  State seen = State::waiting;
  if (states_[page].compare_exchange_strong(seen, State::settled, std::memory_order_acquire)) return;
  if (ended(page) != State::settled) states_[page].store(State::settled, std::memory_order_relaxed);
}

void PageChecks::run_all(const std::stop_token& stop) {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);  // this thread's: nobody waits for all of it
  for (const uint32_t page : pages_) {
    State seen;
    if (stop.stop_requested()) return;
    if (take(page, seen)) run(page);
  }
}

}  // namespace ellm::shm
