// Work that a load shares among threads of its own. Internal to daemon/model.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ellm::model {

/// Calls item(i) for each i below `items`, on `threads` threads; item(i, state) where each thread is to have a `State`
/// of its own. Throws the first thing that was thrown, when all have ended; what was not begun then is left out.
template <class State, class Item>
void on_threads(uint32_t threads, uint64_t items, const Item& item) {
  std::atomic<uint64_t> next = 0;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work = [&]() noexcept {
    try {
      State state{};
      for (uint64_t i; (i = next.fetch_add(1)) < items;) item(i, state);
    } catch (...) {
      next = items;
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (uint64_t t = 1; t < threads && t < items; ++t) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

struct Nothing {};
template <class Item>
void on_threads(uint32_t threads, uint64_t items, const Item& item) {
  on_threads<Nothing>(threads, items, [&](uint64_t i, Nothing&) { item(i); });
}

}  // namespace ellm::model
