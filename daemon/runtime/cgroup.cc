// Finds the group's directories from /proc/self/cgroup (which group) and /proc/self/mountinfo (mounted where).
#include "daemon/runtime/cgroup.h"

#include <sys/stat.h>

#include <charconv>
#include <fstream>
#include <sstream>

namespace ellm::runtime {
namespace {

struct Mount {
  std::string root;  // the group that stands at the mount point
  std::string point;
  bool v2;
};

bool names_controller(const std::string& list, const std::string& controller) {
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');)
    if (item == controller) return true;
  return false;
}

/// mountinfo writes space, tab, newline and backslash in octal (proc(5)).
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + 3, value, 8).ptr == &text[i + 1] + 3) {
      out += static_cast<char>(value);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

/// The mounts of version 2 and of the version 1 hierarchy that has the controller.
std::vector<Mount> find_mounts(const std::string& root, const std::string& controller) {
  std::vector<Mount> mounts;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    // id parent major:minor root point options [optional…] - type source super-options
    std::istringstream fields(line);
    std::string skip, mount_root, point, type, source, super;
    fields >> skip >> skip >> skip >> mount_root >> point;
    while (fields >> skip && skip != "-") {
    }
    if (!(fields >> type >> source >> super)) continue;
    const bool v2 = type == "cgroup2";
    if (v2 || (type == "cgroup" && names_controller(super, controller)))
      mounts.push_back({unescape(mount_root), root + unescape(point), v2});
  }
  return mounts;
}

/// The group's path below the mount point: "" or "/…". A group outside of what is mounted shows as the mount point.
std::string below_mount(const std::string& group, const std::string& mount_root) {
  if (group.find("/..") != std::string::npos) return "";
  const std::string above = mount_root == "/" ? "" : mount_root;
  const bool inside =
      group.compare(0, above.size(), above) == 0 && (group.size() == above.size() || group[above.size()] == '/');
  std::string path = inside ? group.substr(above.size()) : "";
  if (path == "/") path.clear();
  return path;
}

void append_upwards(std::vector<CgroupDirectory>& out, const Mount& mount, std::string path) {
  for (;; path.resize(path.rfind('/'))) {
    struct stat info;
    if (stat((mount.point + path).c_str(), &info) == 0) out.push_back({mount.point + path, mount.v2});
    if (path.empty()) return;
  }
}

}  // namespace

std::vector<CgroupDirectory> cgroup_directories(const std::string& root, const std::string& controller) {
  const std::vector<Mount> mounts = find_mounts(root, controller);
  std::vector<CgroupDirectory> out;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // hierarchy:controllers:/path
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty() && line.compare(0, first, "0") == 0;
    if (!v2 && !names_controller(controllers, controller)) continue;
    for (const Mount& mount : mounts)
      if (mount.v2 == v2) append_upwards(out, mount, below_mount(line.substr(second + 1), mount.root));
  }
  return out;
}

std::optional<std::string> read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<long long> leading_number(const std::string& text) {
  long long value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

}  // namespace ellm::runtime
