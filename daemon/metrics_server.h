// Answers GET /metrics on a listening stream socket, Unix or (passed in by systemd) TCP. I/O thread.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "daemon/loop.h"

namespace ellm::daemon {

class MetricsServer {
 public:
  /// `fd`: a listening socket, which is duplicated. `text`: what a scrape gets.
  MetricsServer(Loop& loop, int fd, std::function<std::string()> text);
  ~MetricsServer();  // ends the connections

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ellm::daemon
