// Names of models and of their files: "big" is big.gguf, or big-00001-of-00003.gguf and its sisters. Pure; any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ellm::format {

struct PartName {
  std::string stem;                // without directory, ".gguf" and "-00002-of-00003"
  uint32_t number = 1, count = 1;  // from 1
};

/// What a path's last part says. Anything that is no well-formed part (0 of 3, 4 of 3) is a name as it stands.
PartName parse_part_name(std::string_view path);

/// "big.gguf", or "big-00002-of-00003.gguf" where there are several.
std::string part_file_name(const std::string& stem, uint64_t number, uint64_t count);

/// The name under which users know the model of a file.
inline std::string model_name(std::string_view path) { return parse_part_name(path).stem; }

// What a pull of NAME has fetched so far stands in the folder .pull-NAME beside the models; whoever works in it, or
// removes it, holds a flock on this file of it.
inline constexpr const char* kPullPrefix = ".pull-";
inline constexpr const char* kPullLock = "lock";

/// Why this cannot name a model, or empty: it would be hidden, leave its folder, or command a terminal.
std::string model_name_fault(std::string_view name);

}  // namespace ellm::format
