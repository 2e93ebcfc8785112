// Where this process's control group keeps its files, for version 1 and 2, inside a cgroup namespace or outside. Pure
// reading; any thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace ellm::runtime {

struct CgroupDirectory {
  std::string path;
  bool v2;
};

/// The directories that can limit this process by `controller` ("cpu", "memory"): its own group's and all above it, as
/// far as they can be seen, of both hierarchies. `root` as in read_topology.
std::vector<CgroupDirectory> cgroup_directories(const std::string& root, const std::string& controller);

/// The file's first line. Absent: it cannot be read.
std::optional<std::string> read_line(const std::string& path);

/// The number that a text starts with. Absent: none ("max"), or too large.
std::optional<long long> leading_number(const std::string& text);

}  // namespace ellm::runtime
