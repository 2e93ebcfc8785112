// Accepts connections within the limits and keeps the sessions. I/O thread.
#pragma once
#include <functional>
#include <memory>

#include "daemon/listener.h"
#include "daemon/services.h"

namespace ellm::daemon {

class Server {
 public:
  Server(Services& services, Listener& listener, int64_t admin_gid);
  ~Server();

  void start();
  void stop_accepting();
  /// Every unfinished request answers that it was cancelled.
  void cancel_all();
  /// Closes all connections when what is queued has been sent, then calls `closed`.
  void finish(std::function<void()> closed);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ellm::daemon
