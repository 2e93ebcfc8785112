// See notify.h.
#include "daemon/notify.h"

#include <systemd/sd-daemon.h>

namespace ellm::daemon {

void notify_ready(const std::string& status) { ::sd_notify(0, ("READY=1\nSTATUS=" + status).c_str()); }
void notify_status(const std::string& status) { ::sd_notify(0, ("STATUS=" + status).c_str()); }
void notify_stopping(const std::string& status) { ::sd_notify(0, ("STOPPING=1\nSTATUS=" + status).c_str()); }

void notify_patience(uint32_t seconds) {
  ::sd_notify(0, ("EXTEND_TIMEOUT_USEC=" + std::to_string(uint64_t{seconds} * 1'000'000)).c_str());
}

void notify_alive() { ::sd_notify(0, "WATCHDOG=1"); }

uint32_t watchdog_ms() {
  uint64_t microseconds = 0;
  if (::sd_watchdog_enabled(0, &microseconds) <= 0) return 0;
  return static_cast<uint32_t>(microseconds / 2000);  // twice as often as asked for
}

}  // namespace ellm::daemon
