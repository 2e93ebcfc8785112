// Values of the configuration and what is wrong with them: shared by the readers of files and of the command line.
// Pure.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "daemon/config.h"

namespace ellm::daemon {

/// "4096", "512M", "8 GiB". Absent: none of these, or too large.
std::optional<uint64_t> parse_bytes(std::string_view text);
std::string print_bytes(uint64_t bytes);

/// "is 70000; expected a number from 0 to 4096", or empty where the rule is kept.
std::string fault_of(const Rule& rule, uint64_t value);
std::string fault_of(const Rule& rule, const std::string& value);

/// The known word that is nearest to `word` by insertions, deletions, replacements and swaps; empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace ellm::daemon
