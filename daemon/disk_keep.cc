// See disk_keep.h.
#include "daemon/disk_keep.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>

#include "client/places.h"
#include "daemon/config_values.h"
#include "daemon/runtime/memory.h"

namespace ellm::daemon {
namespace {

constexpr uint64_t kMostAuto = uint64_t{64} << 30;
// The index: some 300 bytes of memory for a page, which of qwen-0.5b (int8) are 215 KB on disk.
constexpr uint64_t kLeastIndex = 1 << 20, kBudgetPerIndex = 512, kMemoryPerIndex = 32;

/// What is free where a directory is or will be.
uint64_t free_bytes(std::filesystem::path directory) {
  std::error_code ignored;
  while (!std::filesystem::exists(directory, ignored) && directory.has_relative_path())
    directory = directory.parent_path();
  struct statvfs status{};
  return ::statvfs(directory.c_str(), &status) == 0 ? uint64_t{status.f_bavail} * status.f_frsize : 0;
}

/// Of the files that are there.
uint64_t held_bytes(const std::string& directory) {
  uint64_t sum = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const uint64_t bytes = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) sum += bytes;
  }
  return sum;
}

}  // namespace

std::shared_ptr<serve::DiskTier> open_disk_tier(const Config& config, std::function<void(const std::string&)> warn) {
  const std::string& wanted = config.cache.disk;
  const bool automatic = wanted == "auto";
  if (wanted == "off" || (automatic && config.kv.keep == "off")) return nullptr;
  const std::string state = client::state_directory();
  if (state.empty()) {
    if (!automatic)
      warn("prefixes are not kept on disk: there is no state directory ($STATE_DIRECTORY, $XDG_STATE_HOME)");
    return nullptr;
  }
  serve::DiskOptions options;
  options.directory = state + "/prefixes";
  options.budget_bytes = automatic ? std::min(kMostAuto, (free_bytes(state) + held_bytes(options.directory)) / 10)
                                   : parse_bytes(wanted).value_or(0);
  options.index_bytes = std::max(kLeastIndex, std::min(options.budget_bytes / kBudgetPerIndex,
                                                       runtime::available_memory_bytes() / kMemoryPerIndex));
  options.warn = std::move(warn);
  return serve::DiskTier::open(options);
}

}  // namespace ellm::daemon
