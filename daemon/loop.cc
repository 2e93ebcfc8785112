// See loop.h.
#include "daemon/loop.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/log.h"

namespace ellm::daemon {

namespace asio = boost::asio;
using boost::system::error_code;

struct Loop::Impl {
  asio::io_context context{1};
  asio::signal_set signals{context};

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

void Loop::post(std::function<void()> f) { asio::post(impl_->context, std::move(f)); }

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
