// The I/O thread's event loop, without Asio in the header: everything that touches connections and requests runs on it.
#pragma once
#include <functional>
#include <list>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace ellm::daemon {

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;

  /// What is to be run, with all the memory that posting it takes.
  using Work = std::list<std::function<void()>>;

  /// Any thread: runs `work` on the I/O thread, later, in the order of the calls of one thread.
  void post(Work work) noexcept;
  void post(std::function<void()> f);
  /// I/O thread: runs `f` again and again.
  void every(uint32_t milliseconds, std::function<void()> f);
  /// I/O thread: runs `f` once.
  void after(uint32_t milliseconds, std::function<void()> f);
  /// I/O thread: the same, unless the handle is dropped before.
  std::shared_ptr<void> timer(uint32_t milliseconds, std::function<void()> f);
  /// Called for each arrival of one of the signals.
  void on_signals(std::initializer_list<int> signals, std::function<void(int)> f);

  /// Until stop().
  void run();
  void stop();
  boost::asio::io_context& context();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::daemon
