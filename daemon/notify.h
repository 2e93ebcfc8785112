// Tells systemd how the daemon is: ready, stopping, alive. Without systemd every call does nothing.
#pragma once
#include <cstdint>
#include <string>

namespace ellm::daemon {

void notify_ready(const std::string& status);
void notify_status(const std::string& status);
void notify_stopping(const std::string& status);
/// Starting or stopping may take this long from now, whatever the unit's timeout.
void notify_patience(uint32_t seconds);
void notify_alive();
/// Milliseconds between signs of life that systemd asks for; 0: none.
uint32_t watchdog_ms();

}  // namespace ellm::daemon
