// Prefixes on disk as the configuration wants them: where, and how much.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "daemon/config.h"
#include "daemon/serve/disk_tier.h"

namespace ellm::daemon {

/// Null: off, or not to be had, as `warn` has been told then. `warn` is called by any thread, as long as there is a
/// tier.
std::shared_ptr<serve::DiskTier> open_disk_tier(const Config& config, std::function<void(const std::string&)> warn);

}  // namespace ellm::daemon
