// Tells systemd how the daemon is: ready, stopping, alive. Without systemd every call does nothing.
#pragma once
#include <cstdint>
#include <string>

namespace ellm::daemon {

void notify_ready(const std::string& status);
void notify_status(const std::string& status);
void notify_stopping(const std::string& status);
/// Start-up takes longer than the unit's timeout.
void notify_still_starting(uint32_t seconds);
void notify_alive();
/// Milliseconds between signs of life that systemd asks for; 0: none.
uint32_t watchdog_ms();

}  // namespace ellm::daemon
