// Reads cores, NUMA nodes and the CPU quota from sysfs and cgroupfs (Documentation/admin-guide/cputopology.rst and
// cgroup-v2.rst of the kernel).
#include "daemon/runtime/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <set>

#include "daemon/runtime/cgroup.h"

namespace ellm::runtime {
namespace {

constexpr int kMostCpus = 1 << 16;

/// "0-3,8,10-11" as the kernel prints lists. Empty where it is not one.
std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) break;
    }
    if (first < 0 || last < first || last >= kMostCpus) break;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at = parsed.ptr + 1;  // behind the comma
  }
  return cpus;
}

std::vector<int> read_cpu_list(const std::string& path) {
  const auto line = read_line(path);
  return line ? parse_cpu_list(*line) : std::vector<int>();
}

/// The process's mask: the main thread's, since the caller may be a pinned thread.
std::vector<int> affinity_mask() {
  std::vector<int> cpus;
  for (int most = 1024; most <= kMostCpus; most *= 2) {
    cpu_set_t* set = CPU_ALLOC(most);
    if (!set) return cpus;
    const size_t bytes = CPU_ALLOC_SIZE(most);
    const bool read = sched_getaffinity(getpid(), bytes, set) == 0;
    const bool too_small = !read && errno == EINVAL;
    for (int cpu = 0; read && cpu < most; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    CPU_FREE(set);
    if (!too_small) break;
  }
  return cpus;
}

std::map<int, int> nodes_of_cpus(const std::string& root) {
  const std::string base = root + "/sys/devices/system/node/";
  std::map<int, int> nodes;
  for (int node : read_cpu_list(base + "online"))
    for (int cpu : read_cpu_list(base + "node" + std::to_string(node) + "/cpulist")) nodes[cpu] = node;
  return nodes;
}

std::vector<Core> find_cores(const std::string& root, const std::vector<int>& cpus) {
  const std::map<int, int> nodes = nodes_of_cpus(root);
  std::vector<Core> cores;
  std::set<int> taken;
  for (int cpu : cpus) {  // ascending, so a core is known by its first thread in the mask
    if (!taken.insert(cpu).second) continue;
    const std::string base = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    for (int sibling : read_cpu_list(base + "thread_siblings_list")) taken.insert(sibling);
    const auto node = nodes.find(cpu);
    cores.push_back({cpu, node == nodes.end() ? 0 : node->second});
  }
  std::sort(cores.begin(), cores.end(),
            [](const Core& a, const Core& b) { return a.node != b.node ? a.node < b.node : a.cpu < b.cpu; });
  return cores;
}

/// CPUs' worth of time per period of one group; 0: no limit.
double quota_of(const CgroupDirectory& group) {
  std::optional<long long> quota, period;
  if (group.v2) {
    const std::string line = read_line(group.path + "/cpu.max").value_or("max 100000");  // the root group has none
    quota = leading_number(line);
    const size_t space = line.find(' ');
    period = space == std::string::npos ? 100'000 : leading_number(line.substr(space + 1));
  } else {
    quota = leading_number(read_line(group.path + "/cpu.cfs_quota_us").value_or("-1"));
    period = leading_number(read_line(group.path + "/cpu.cfs_period_us").value_or(""));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return 0;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

int Topology::default_threads() const {
  const int most = std::max<int>(1, static_cast<int>(cores.size()));
  if (quota_cpus <= 0 || quota_cpus >= most) return most;
  return std::max(1, static_cast<int>(quota_cpus));
}

Topology read_topology(const std::string& root) {
  Topology topology;
  if (root == "/") topology.cpus = affinity_mask();
  else topology.cpus = read_cpu_list(root + "/sys/devices/system/cpu/online");
  if (topology.cpus.empty()) topology.cpus = {0};
  topology.logical_cpus = static_cast<int>(topology.cpus.size());
  topology.cores = find_cores(root, topology.cpus);
  std::set<int> nodes;
  for (const Core& core : topology.cores) nodes.insert(core.node);
  topology.nodes = static_cast<int>(nodes.size());
  for (const CgroupDirectory& group : cgroup_directories(root, "cpu")) {
    const double quota = quota_of(group);
    if (quota > 0 && (topology.quota_cpus == 0 || quota < topology.quota_cpus)) topology.quota_cpus = quota;
  }
  return topology;
}

}  // namespace ellm::runtime
