// One connection and the calls in flight on it. Whoever waits for a call reads the socket for everybody ("the reader");
// the others sleep. Where calls run in the background, a thread of the connection's own is the reader when nobody else
// is.
//
//   a thread waits for its call ──► is there a reader? ─no──► be it: receive, dispatch, until the own call has ended,
//                                          │yes               then wake the others, one of whom takes over
//                                          └─► sleep until the own call has ended or the reader's place is free
#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/messages.h"
#include "client/unix_socket.h"

namespace ellm::client {

/// A request and what becomes of it. The reader alone calls accept(); `sent`, `ended` and `error` belong to the
/// connection's mutex.
class Call {
 public:
  virtual ~Call() = default;
  /// A reply or event to this request; true when it was the last. What it throws ends the call.
  virtual bool accept(Message& message) = 0;
  /// The last thing before the end is seen by those who wait; outside the lock, once.
  virtual void before_end(std::exception_ptr) noexcept {}

  uint32_t id = 0;
  std::vector<int> descriptors;  // travel with the request; owned by whoever made the call
  bool background = false;       // has no thread that waits for it
  bool sent = false;             // the daemon may have begun it
  bool answered = false;         // a reply or event has come
  bool refused = false;          // the error is the daemon's answer to this request
  bool ended = false;
  std::exception_ptr error;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// Ids begin behind `last_id`. `keep_waiting` is asked every 100 ms while hello is awaited; it ends the wait by
  /// throwing.
  Connection(const std::string& socket_path, const std::string& software, uint32_t last_id,
             const std::function<void()>& keep_waiting);
  ~Connection();

  const Hello& server() const { return server_; }

  /// Gives `request` a free id and sends it; `call` gets what comes back.
  template <class Request>
  void submit(Request& request, const std::shared_ptr<Call>& call) {
    request.id = add(call);
    send(call, request);
  }

  /// Nothing more can be sent.
  bool is_lost();
  /// No call is in flight, and the caller is in no callback of one.
  bool is_idle();
  uint32_t last_id();

  /// Until the call has ended. `interrupted` as in ClientOptions; true sends one cancel.
  void wait(Call& call, const std::function<bool()>& interrupted);
  bool wait_until(Call& call, std::chrono::steady_clock::time_point deadline);
  bool ended(const Call& call);

  /// Asks the daemon to cancel a request; does not wait for its answer.
  void post_cancel(uint32_t target);

  /// Ends everything: calls in flight get a ConnectionError. Joins the thread.
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct WakeOthers {  // a waiter that leaves lets another be the reader
    std::condition_variable& changed;
    ~WakeOthers() { changed.notify_all(); }
  };

  void say_hello(const std::string& software, const std::function<void()>& keep_waiting);
  uint32_t add(const std::shared_ptr<Call>& call);
  void send(const std::shared_ptr<Call>& call, const Message& message);
  bool wait_step(Call& call, Lock& lock, int timeout_ms);
  void read_once(Lock& lock, int timeout_ms);
  void receive_and_dispatch(int timeout_ms);
  void dispatch(Message message);
  void end(const std::shared_ptr<Call>& call, std::exception_ptr error);
  /// `unsent`: for calls that the daemon cannot have seen, and for those to come; null: the same.
  void fail_all(std::exception_ptr error, std::exception_ptr unsent = nullptr);
  void run_background();

  UnixSocket socket_;
  Hello server_;
  std::mutex send_mutex_;

  std::mutex mutex_;  // everything below
  std::condition_variable changed_;
  std::unordered_map<uint32_t, std::shared_ptr<Call>> calls_;
  uint32_t last_id_ = 0, background_calls_ = 0;
  std::thread::id reader_;   // none: default
  std::exception_ptr lost_;  // why nothing more can be sent
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ellm::client
