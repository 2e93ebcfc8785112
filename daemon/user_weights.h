// "NAME:WEIGHT" of the configuration: which user gets how much of the machine where several want it.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ellm::daemon {

/// Has that form: a name or a number, and a weight from 1 to 1000. Whether there is such a user is asked at the start.
bool is_user_weight(const std::string& text);

/// As uids. Throws ConfigError: no such user, or one that stands twice.
std::vector<std::pair<uint32_t, uint32_t>> user_weights(const std::vector<std::string>& texts);

}  // namespace ellm::daemon
