// See loop.h.
#include "daemon/loop.h"

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <mutex>
#include <utility>

#include "daemon/log.h"

namespace ellm::daemon {

namespace asio = boost::asio;
using boost::system::error_code;

struct Loop::Impl {
  asio::io_context context{1};
  asio::signal_set signals{context};
  std::mutex mutex;
  Work posted;         // under the mutex
  bool woken = false;  // too: run_posted() is on its way
  alignas(std::max_align_t) std::array<std::byte, 256> wake_memory;

  /// The memory of what Asio keeps of run_posted() while it is on its way, which is once at a time.
  template <class T>
  struct WakeMemory {
    using value_type = T;
    explicit WakeMemory(Impl& to) : impl(&to) {}
    template <class U>
    WakeMemory(const WakeMemory<U>& other) : impl(other.impl) {}
    T* allocate(size_t) {
      static_assert(sizeof(T) <= sizeof wake_memory);
      return reinterpret_cast<T*>(impl->wake_memory.data());
    }
    void deallocate(T*, size_t) {}
    bool operator==(const WakeMemory&) const = default;
    Impl* impl;
  };
  struct Wake {
    using allocator_type = WakeMemory<void>;
    allocator_type get_allocator() const noexcept { return allocator_type(*impl); }
    void operator()() const { impl->run_posted(); }
    Impl* impl;
  };

  void run_posted() {
    Work work;
    {
      std::lock_guard lock(mutex);
      work.swap(posted);
      woken = false;
    }
    for (; !work.empty(); work.pop_front()) {
      try {
        work.front()();
      } catch (const std::exception& e) {
        // It failed where nobody waits for it; everybody else's goes on.
        log_failure("in the I/O thread", e);
      }
    }
  }

  struct Repeated : std::enable_shared_from_this<Repeated> {
    Repeated(asio::io_context& context, uint32_t milliseconds, std::function<void()> f)
        : timer(context), period(milliseconds), work(std::move(f)) {}
    void arm() {
      timer.expires_after(period);
      timer.async_wait([self = shared_from_this()](error_code error) {
        if (error) return;
        try {
          self->work();
        } catch (const std::exception& e) {
          log_failure("in the I/O thread", e);
        }
        self->arm();
      });
    }
    asio::steady_timer timer;
    std::chrono::milliseconds period;
    std::function<void()> work;
  };

  void await_signal(std::shared_ptr<std::function<void(int)>> f) {
    signals.async_wait([this, f](error_code error, int signal) {
      if (error) return;
      (*f)(signal);
      await_signal(f);
    });
  }
};

Loop::Loop() : impl_(std::make_unique<Impl>()) {}
Loop::~Loop() = default;

void Loop::post(Work work) noexcept {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->posted.splice(impl_->posted.end(), work);
    if (std::exchange(impl_->woken, true)) return;
  }
  asio::post(impl_->context, Impl::Wake{impl_.get()});
}

void Loop::post(std::function<void()> f) {
  Work work;
  work.push_back(std::move(f));
  post(std::move(work));
}

void Loop::every(uint32_t milliseconds, std::function<void()> f) {
  std::make_shared<Impl::Repeated>(impl_->context, milliseconds, std::move(f))->arm();
}

void Loop::after(uint32_t milliseconds, std::function<void()> f) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->context, std::chrono::milliseconds(milliseconds));
  timer->async_wait([timer, f = std::move(f)](error_code error) {
    if (!error) f();
  });
}

std::shared_ptr<void> Loop::timer(uint32_t milliseconds, std::function<void()> f) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->context, std::chrono::milliseconds(milliseconds));
  timer->async_wait([f = std::move(f)](error_code error) {
    if (!error) f();
  });
  return timer;
}

void Loop::on_signals(std::initializer_list<int> signals, std::function<void(int)> f) {
  for (int signal : signals) impl_->signals.add(signal);
  impl_->await_signal(std::make_shared<std::function<void(int)>>(std::move(f)));
}

void Loop::run() {
  const auto work = asio::make_work_guard(impl_->context);
  for (;;) {
    try {
      impl_->context.run();
      return;
    } catch (const std::exception& e) {
      // Somebody's work failed where nobody waits for it; everybody else's goes on.
      log_failure("in the I/O thread", e);
    }
  }
}

void Loop::stop() { impl_->context.stop(); }
asio::io_context& Loop::context() { return impl_->context; }

}  // namespace ellm::daemon
