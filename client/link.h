// A client's way to the daemon: makes the connection, waits for a daemon that is not there yet, and makes a new
// connection where the daemon has restarted. Any thread.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "client/client.h"
#include "client/connection.h"

namespace ellm::client {

class Link {
 public:
  explicit Link(ClientOptions options) : options_(std::move(options)) {}

  const ClientOptions& options() const { return options_; }

  /// The connection for the next call. Throws ConnectionError after options().wait; ClientError where the daemon
  /// refuses the connection, or `cancelled` where options().interrupted says so.
  std::shared_ptr<Connection> get();
  Hello server();

  /// Whether a call that failed on `used` never began and can be sent again: the connection was lost before, or the
  /// daemon was about to stop. The next get() then gives another connection; where there is none, false.
  bool may_repeat(const Call& call, const std::shared_ptr<Connection>& used);

  /// Closes every connection.
  void close();

 private:
  using Connections = std::vector<std::shared_ptr<Connection>>;
  /// Sets current_; what can be forgotten goes to `out`, to be destroyed when mutex_ is free.
  void connect(Connections& out);
  std::shared_ptr<Connection> try_once(std::chrono::steady_clock::time_point deadline);
  void throw_if_interrupted() const;

  ClientOptions options_;
  std::mutex mutex_;
  std::shared_ptr<Connection> current_;
  Connections former_;  // lost, or their daemon ends: what was begun there comes to its end there
  bool closed_ = false;
};

}  // namespace ellm::client
