// Tells systemd how the daemon is: ready, stopping, alive. Without systemd every call does nothing.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ellm::daemon {

void notify_ready(const std::string& status);
void notify_status(const std::string& status);
void notify_stopping(const std::string& status);
/// Starting or stopping may take this long from now, whatever the unit's timeout.
void notify_patience(uint32_t seconds);
void notify_alive();

/// Whether systemd started this process and listens to it.
bool run_by_systemd();
/// The descriptors that systemd passed in, those of its file-descriptor store apart from sockets. To be called once.
struct PassedDescriptors {
  std::vector<int> sockets;
  std::vector<int> metrics;           // sockets whose unit says FileDescriptorName=metrics
  std::map<std::string, int> stored;  // those named like our segments
};
PassedDescriptors passed_descriptors();
/// Has systemd keep a duplicate of `fd` over restarts, and give it back under `name`.
void store_descriptor(const std::string& name, int fd);
void forget_descriptor(const std::string& name);

/// Milliseconds between signs of life that systemd asks for; 0: none.
uint32_t watchdog_ms();

}  // namespace ellm::daemon
