// Whether the pages that an earlier process sealed are still what it sealed. A thread finds out behind the back of
// whoever makes the first request, beginning with the pages used last; what a request wants sooner, the engine thread
// looks at itself. Internal to shm/.
//
// Each page's answer goes through one atomic byte:
//
//     waiting ──► running ──► intact, damaged        by the thread or by the engine thread, whoever takes it first
//        └──────► settled                            by the engine thread: the page is about to be written
//
// While a page is running the other waits for that page, some tens of microseconds; so nobody reads what is being
// written.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace ellm::shm {

class PageChecks {
 public:
  /// `pages` of a segment's `total`, in the order in which they are wanted. `is_intact` reads one; any thread.
  PageChecks(std::vector<uint32_t> pages, uint32_t total, std::function<bool(uint32_t)> is_intact);
  ~PageChecks();
  PageChecks(const PageChecks&) = delete;

  // The engine thread's.
  bool is_intact(uint32_t page);
  void settle(uint32_t page);

 private:
  enum class State : uint8_t { settled, waiting, running, intact, damaged };

  bool take(uint32_t page, State& seen);
  State run(uint32_t page);
  State ended(uint32_t page);
  void run_all(const std::stop_token& stop);

  const std::vector<uint32_t> pages_;
  const std::function<bool(uint32_t)> is_intact_;
  std::unique_ptr<std::atomic<State>[]> states_;
  std::jthread thread_;  // the last member: it ends first
};

}  // namespace ellm::shm
