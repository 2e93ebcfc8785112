// See notify.h.
#include "daemon/notify.h"

#include <systemd/sd-daemon.h>

#include <cstdlib>

#include "shm/sealed_memory.h"
#include "shm/segment.h"

namespace ellm::daemon {

void notify_ready(const std::string& status) { ::sd_notify(0, ("READY=1\nSTATUS=" + status).c_str()); }
void notify_status(const std::string& status) { ::sd_notify(0, ("STATUS=" + status).c_str()); }
void notify_stopping(const std::string& status) { ::sd_notify(0, ("STOPPING=1\nSTATUS=" + status).c_str()); }

void notify_patience(uint32_t seconds) {
  ::sd_notify(0, ("EXTEND_TIMEOUT_USEC=" + std::to_string(uint64_t{seconds} * 1'000'000)).c_str());
}

void notify_alive() { ::sd_notify(0, "WATCHDOG=1"); }

bool run_by_systemd() { return std::getenv("NOTIFY_SOCKET") != nullptr; }

PassedDescriptors passed_descriptors() {
  PassedDescriptors passed;
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  for (int i = 0; i < count; ++i) {
    const int fd = SD_LISTEN_FDS_START + i;
    const std::string name = names[i];
    const bool ours = name.starts_with(shm::kSegmentPrefix) || name.starts_with(shm::kWeightsPrefix);
    if (!ours || !passed.stored.emplace(name, fd).second)
      (name == "metrics" ? passed.metrics : passed.sockets).push_back(fd);
    std::free(names[i]);
  }
  std::free(names);
  return passed;
}

void store_descriptor(const std::string& name, int fd) {
  ::sd_pid_notify_with_fds(0, 0, ("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name).c_str(), &fd, 1);
}
void forget_descriptor(const std::string& name) { ::sd_notify(0, ("FDSTOREREMOVE=1\nFDNAME=" + name).c_str()); }

uint32_t watchdog_ms() {
  uint64_t microseconds = 0;
  if (::sd_watchdog_enabled(0, &microseconds) <= 0) return 0;
  return static_cast<uint32_t>(microseconds / 2000);  // twice as often as asked for
}

}  // namespace ellm::daemon
