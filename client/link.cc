// Waiting is asking again: a socket's directory may not exist yet, so that there is nothing to watch.
#include "client/link.h"

#include <algorithm>
#include <string>
#include <thread>

#include "client/errors.h"
#include "client/places.h"

namespace ellm::client {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Kind = ConnectionError::Kind;

// A daemon listens before it loads a model, which may take minutes.
constexpr std::chrono::seconds kLongestStart{600};

bool is_shutting_down(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ClientError& e) {
    return e.code() == ErrorCode::shutting_down;
  } catch (...) {
    return false;
  }
}

}  // namespace

void Link::throw_if_interrupted() const {
  if (options_.interrupted && options_.interrupted())
    throw ClientError(ErrorCode::cancelled, "interrupted while waiting for ellmd");
}

/// Null where it is worth asking again.
std::shared_ptr<Connection> Link::try_once(Clock::time_point deadline) {
  const std::string path = options_.socket_path.empty() ? default_socket_path() : options_.socket_path;
  const auto hello_deadline = Clock::now() + std::max<Clock::duration>(kLongestStart, options_.wait);
  auto keep_waiting = [&] {
    throw_if_interrupted();
    if (Clock::now() > hello_deadline)
      throw ConnectionError(Kind::protocol, "what listens at " + path + " does not say hello: is it ellmd?");
  };
  try {
    return std::make_shared<Connection>(path, options_.software, current_ ? current_->last_id() : 0, keep_waiting);
  } catch (const ConnectionError& error) {
    if (error.kind() != Kind::absent && error.kind() != Kind::lost) throw;
    if (Clock::now() >= deadline) throw;
  } catch (const ClientError& error) {
    if (error.code() != ErrorCode::shutting_down || Clock::now() >= deadline) throw;
  }
  return nullptr;
}

void Link::connect(Connections& out) {
  const auto deadline = Clock::now() + options_.wait;
  std::shared_ptr<Connection> connection;
  for (std::chrono::milliseconds pause = 5ms; !(connection = try_once(deadline)); pause = std::min(2 * pause, 100ms)) {
    throw_if_interrupted();
    std::this_thread::sleep_for(pause);
  }
  if (current_) former_.push_back(std::move(current_));
  current_ = std::move(connection);
  auto keep = std::partition(former_.begin(), former_.end(), [](const auto& former) { return !former->is_idle(); });
  out.assign(std::make_move_iterator(keep), std::make_move_iterator(former_.end()));
  former_.erase(keep, former_.end());
}

std::shared_ptr<Connection> Link::get() {
  Connections forgotten;
  std::lock_guard lock(mutex_);
  if (closed_) throw ConnectionError(Kind::lost, "the client was closed");
  if (!current_ || current_->is_lost()) connect(forgotten);
  return current_;
}

Hello Link::server() {
  std::lock_guard lock(mutex_);
  return current_->server();
}

bool Link::may_repeat(const Call& call, const std::shared_ptr<Connection>& used) {
  const bool stopping = is_shutting_down(call.error);
  if (stopping ? call.answered || (call.sent && !call.refused) : call.sent || !used->is_lost()) return false;
  Connections forgotten;
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (current_ != used) return true;  // another call has been here
  try {
    connect(forgotten);
  } catch (const ConnectionError&) {
    return false;  // the first error says more
  }
  return true;
}

void Link::close() {
  Connections all;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    all = former_;
    if (current_) all.push_back(current_);
  }
  for (auto& connection : all) connection->close();
}

}  // namespace ellm::client
