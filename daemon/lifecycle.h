// From ready to the end: signs of life for systemd, and the way out on SIGTERM. I/O thread.
//
//   serving ──SIGTERM, SIGINT──► draining ──nothing in flight──► flushing ──all closed──► loop stops
//                                   └─ drain_seconds: cancel all ─┘└─ a moment ───────────────┘
//   a second signal ends the process at once
#pragma once
#include "daemon/listener.h"
#include "daemon/server.h"
#include "daemon/services.h"

namespace ellm::daemon {

class Lifecycle {
 public:
  Lifecycle(Services& services, Server& server, Listener& listener);
  /// Before Loop::run: tells systemd, accepts connections.
  void begin();

 private:
  void signalled(int signal);
  void drain();
  void flush();
  void still_alive();
  void write_stats();
  std::string status() const;

  Services& services_;
  Server& server_;
  Listener& listener_;
  uint32_t idle_ticks_ = 0;  // of the stats page, since something was in flight
  enum class Phase : uint8_t { serving, draining, flushing } phase_ = Phase::serving;
};

}  // namespace ellm::daemon
