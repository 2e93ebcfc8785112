// Hello, the reader's place, and the mapping of what arrives to calls and errors.
#include "client/connection.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "client/codec.h"
#include "client/errors.h"

namespace ellm::client {
namespace {

using Kind = ConnectionError::Kind;

std::exception_ptr lost(const std::string& what, bool request_sent = false) {
  return std::make_exception_ptr(ConnectionError(Kind::lost, what, request_sent));
}
constexpr int kAskEveryMs = 100;

std::exception_ptr to_exception(const Error& error) {
  return std::make_exception_ptr(ClientError(error.code, error.message, error.retry_after_ms));
}

}  // namespace

Connection::Connection(const std::string& socket_path, const std::string& software, uint32_t last_id,
                       const std::function<void()>& keep_waiting)
    : socket_(socket_path), last_id_(last_id) {
  say_hello(software, keep_waiting);
}

Connection::~Connection() { close(); }

void Connection::say_hello(const std::string& software, const std::function<void()>& keep_waiting) {
  Hello hello;
  hello.software = software;
  hello.features = {kFeatureDenied};
  socket_.send(encode_frame(hello));  // whether it arrived shows in what comes back
  std::optional<std::string_view> body;
  while (!(body = socket_.next_body())) {
    if (socket_.wait(kAskEveryMs) == UnixSocket::Wait::timeout) {
      keep_waiting();
      continue;
    }
    if (!socket_.receive())
      throw ConnectionError(Kind::lost,
                            "ellmd closed the connection at once: see `journalctl -u ellmd`, or its output");
  }
  auto decoded = decode(*body);
  if (auto* failure = std::get_if<DecodeFailure>(&decoded))
    throw ConnectionError(Kind::protocol,
                          "the program at this socket does not speak ellmd's protocol (" + failure->message + ")");
  auto& message = std::get<Message>(decoded);
  if (auto* error = std::get_if<Error>(&message)) {
    if (error->code == ErrorCode::unsupported_version) throw ConnectionError(Kind::protocol, error->message);
    throw ClientError(error->code, error->message, error->retry_after_ms);
  }
  auto* server = std::get_if<Hello>(&message);
  if (!server) throw ConnectionError(Kind::protocol, "the program at this socket did not say hello");
  if (server->version != kProtocolVersion)
    throw ConnectionError(Kind::protocol, "ellmd (" + server->software + ") speaks protocol version " +
                                              std::to_string(server->version) + ", this program version " +
                                              std::to_string(kProtocolVersion) +
                                              ": install the same release of both, and restart ellmd");
  server_ = std::move(*server);
}

// ---- sending ---------------------------------------------------------------------------------------------

uint32_t Connection::add(const std::shared_ptr<Call>& call) {
  Lock lock(mutex_);
  if (lost_) std::rethrow_exception(lost_);
  do last_id_++;
  while (last_id_ == 0 || calls_.count(last_id_));
  call->id = last_id_;
  calls_.emplace(call->id, call);
  if (call->background) {
    background_calls_++;
    if (!thread_.joinable()) thread_ = std::thread([this] { run_background(); });
    changed_.notify_all();
  }
  return call->id;
}

void Connection::send(const std::shared_ptr<Call>& call, const Message& message) {
  std::string frame;
  try {
    frame = encode_frame(message);
  } catch (const std::length_error& error) {
    Lock lock(mutex_);
    if (calls_.erase(call->id) && call->background) background_calls_--;
    throw ClientError(ErrorCode::too_large, error.what());
  }
  std::lock_guard lock(send_mutex_);
  bool whole =
      socket_.send(frame, call->descriptors);  // a peer that is gone shows in the reader, behind what it said last
  Lock state(mutex_);
  call->sent = whole;
}

bool Connection::is_lost() {
  Lock lock(mutex_);
  return lost_ || socket_.at_end();
}

bool Connection::is_idle() {
  Lock lock(mutex_);
  return calls_.empty() && reader_ != std::this_thread::get_id();
}

uint32_t Connection::last_id() {
  Lock lock(mutex_);
  return last_id_;
}

void Connection::post_cancel(uint32_t target) {
  Cancel cancel;
  {
    Lock lock(mutex_);
    if (lost_ || !calls_.count(target)) return;
    do last_id_++;
    while (last_id_ == 0 || calls_.count(last_id_));
    cancel.id = last_id_;  // its answer finds no call and is dropped
  }
  cancel.target = target;
  std::string frame = encode_frame(cancel);
  std::lock_guard lock(send_mutex_);
  socket_.send(frame);
}

// ---- waiting and reading ---------------------------------------------------------------------------------

/// One step of a wait for `call`; true when it has ended.
bool Connection::wait_step(Call& call, Lock& lock, int timeout_ms) {
  if (call.ended) return true;
  if (reader_ == std::this_thread::get_id())
    throw std::logic_error("a blocking call in a callback of the same client would wait for itself");
  if (reader_ == std::thread::id()) {
    read_once(lock, timeout_ms);
  } else if (timeout_ms < 0) {
    changed_.wait(lock);
  } else {
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms));
  }
  return call.ended;
}

void Connection::wait(Call& call, const std::function<bool()>& interrupted) {
  bool asked = false;
  WakeOthers at_exit{changed_};
  Lock lock(mutex_);
  while (!wait_step(call, lock, interrupted ? kAskEveryMs : -1)) {
    if (asked || !interrupted) continue;
    lock.unlock();
    asked = interrupted();
    if (asked) post_cancel(call.id);
    lock.lock();
  }
}

bool Connection::wait_until(Call& call, std::chrono::steady_clock::time_point deadline) {
  WakeOthers at_exit{changed_};
  Lock lock(mutex_);
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    bool last = left <= 0;
    if (wait_step(call, lock, last ? 0 : static_cast<int>(std::min<long>(left, 1 << 30)))) return true;
    if (last) return false;
  }
}

bool Connection::ended(const Call& call) {
  Lock lock(mutex_);
  return call.ended;
}

void Connection::receive_and_dispatch(int timeout_ms) {
  const auto more = socket_.receive_within(timeout_ms);
  if (!more) return;
  while (auto body = socket_.next_body()) {
    auto decoded = decode(*body);
    if (auto* message = std::get_if<Message>(&decoded)) dispatch(std::move(*message));
    else if (auto& failure = std::get<DecodeFailure>(decoded); failure.code != ErrorCode::unknown_message)
      throw ConnectionError(Kind::protocol, "ellmd sent a damaged message (" + failure.message + ")", true);
  }
  if (*more) return;
  fail_all(lost("ellmd closed the connection (stopped or crashed) after the request was sent: it may have run, so "
                "it is not sent again. See `journalctl -u ellmd`, or its output",
                true),
           lost("ellmd closed the connection (stopped or crashed) before the request was sent: see `journalctl -u "
                "ellmd`, or its output"));
}

/// As the reader: waits, receives, and hands on whole messages. The lock is open meanwhile.
void Connection::read_once(Lock& lock, int timeout_ms) {
  reader_ = std::this_thread::get_id();
  lock.unlock();
  try {
    receive_and_dispatch(timeout_ms);
  } catch (...) {
    fail_all(std::current_exception());
  }
  lock.lock();
  reader_ = std::thread::id();
}

void Connection::dispatch(Message message) {
  uint32_t id = std::visit(
      [](const auto& m) {
        if constexpr (requires { m.id; }) return m.id;
        else return uint32_t{0};
      },
      message);
  auto* error = std::get_if<Error>(&message);
  if (error && id == 0) return fail_all(to_exception(*error));
  std::shared_ptr<Call> call;
  {
    Lock lock(mutex_);
    auto found = calls_.find(id);
    if (found == calls_.end()) return;  // it has ended here already
    call = found->second;
  }
  if (error) {
    call->refused = true;
    return end(call, to_exception(*error));
  }
  call->answered = true;
  try {
    if (call->accept(message)) end(call, nullptr);
  } catch (...) {
    std::exception_ptr thrown = std::current_exception();
    post_cancel(id);
    end(call, thrown);
  }
}

void Connection::end(const std::shared_ptr<Call>& call, std::exception_ptr error) {
  {
    Lock lock(mutex_);
    if (calls_.erase(call->id) == 0) return;  // another thread ends it
    if (call->background) background_calls_--;
  }
  call->before_end(error);
  Lock lock(mutex_);
  call->error = error;
  call->ended = true;
  changed_.notify_all();
}

void Connection::fail_all(std::exception_ptr error, std::exception_ptr unsent) {
  std::unordered_map<uint32_t, std::shared_ptr<Call>> calls;
  {
    Lock lock(mutex_);
    if (closing_) {
      error = lost("the client was closed before the answer was complete", true);
      unsent = lost("the client was closed before the request was sent");
    }
    if (!unsent) unsent = error;
    if (!lost_) lost_ = unsent;
    calls = calls_;
  }
  socket_.shut_down();
  {
    std::lock_guard wait(send_mutex_);
  }  // what is being sent fails now; afterwards every `sent` is settled
  for (auto& [id, call] : calls) {
    bool sent;
    {
      Lock lock(mutex_);
      sent = call->sent;
    }
    end(call, sent ? error : unsent);
  }
}

void Connection::run_background() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || (background_calls_ > 0 && reader_ == std::thread::id()); });
    if (closing_) return;
    read_once(lock, -1);
    changed_.notify_all();
  }
}

void Connection::close() {
  {
    Lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  socket_.shut_down();
  if (thread_.joinable()) thread_.join();
  fail_all(nullptr);
}

}  // namespace ellm::client
