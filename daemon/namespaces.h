// The namespaces that the configuration names: whose prefixes are shared by the members of a group. Made at the start,
// constant after that.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config.h"

namespace ellm::daemon {

struct Peer;

class Namespaces {
 public:
  struct Named {
    std::string name, group;      // group empty: everybody
    uint64_t id = 0;              // the same at every start
    std::optional<uint32_t> gid;  // of `group`
  };

  /// Throws ConfigError: no such group, a bad name.
  explicit Namespaces(const Config& config);

  const Named* find(const std::string& name) const;
  const Named* find(uint64_t id) const;
  bool may_use(const Peer& peer, const Named& named) const;
  /// All that a peer may use.
  std::vector<uint64_t> of(const Peer& peer) const;
  /// "uid 1000", or a name; what was removed from the configuration has none.
  std::string describe(uint64_t id) const;

 private:
  std::vector<Named> named_;
};

}  // namespace ellm::daemon
