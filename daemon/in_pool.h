// Work of the preparation pool whose outcome the I/O thread waits for. All memory that the way back takes is there
// before it begins: whatever becomes of the work, whoever asked for it hears of it.
#pragma once
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/prepare_pool.h"

namespace ellm::daemon {

inline constexpr const char* kNoMemory = "there is not enough memory for this request";

/// Runs `work()` in the pool, destroys it there and gives `then` on the I/O thread what it returned; nothing where it
/// lacked memory (or threw something else, which is logged). I/O thread; throws std::bad_alloc before anything runs.
template <class Task, class Then>
void in_pool(PreparePool& pool, Loop& loop, PreparePool::Weight weight, Task work, Then then) {
  struct State {
    std::optional<Task> work;
    Then then;
    std::optional<std::invoke_result_t<Task&>> outcome;
  };
  const auto state = std::make_shared<State>(State{std::move(work), std::move(then), std::nullopt});
  const auto back = std::make_shared<Loop::Work>();
  back->push_back([state] { state->then(std::move(state->outcome)); });
  const auto run = [state, back, &loop] {
    try {
      state->outcome.emplace((*state->work)());
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& e) {
      log_failure("in the preparation pool", e);
    }
    state->work.reset();
    loop.post(std::move(*back));
  };
  pool.submit(run, weight);
}

}  // namespace ellm::daemon
