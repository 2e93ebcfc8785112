// Who is at the other end of a connection.
#pragma once
#include <cstdint>
#include <vector>

namespace ellm::daemon {

/// As the kernel says.
struct Peer {
  uint32_t uid = 0, pid = 0;
  bool admin = false;
  std::vector<uint32_t> groups = {};
};

}  // namespace ellm::daemon
