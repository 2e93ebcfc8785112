// Which CPUs the workers may use: sysfs and libnuma, cut down to the affinity mask and the cgroup's quota (v1 and v2).
#pragma once
#include <string>
#include <vector>

namespace ellm::runtime {

struct Core {
  int cpu;   // the first hardware thread of a physical core within the affinity mask
  int node;  // NUMA node
};

struct Topology {
  std::vector<Core> cores;  // one per physical core, by node then number
  int logical_cpus = 0;     // in the affinity mask
  double quota_cpus = 0;    // the cgroup's CPU quota; 0: none
  int nodes = 1;            // that the cores stand on
  std::vector<int> cpus;    // every hardware thread in the affinity mask, ascending

  /// Physical cores within mask and quota (rounded down, at least 1).
  int default_threads() const;
};

/// Reads the machine. `root` ("/" by default) lets tests show another one's sysfs and cgroup files.
Topology read_topology(const std::string& root = "/");

}  // namespace ellm::runtime
