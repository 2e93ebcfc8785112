// Anonymous mappings (mmap(2), mbind(2), mlock(2)) and how much memory is left (proc(5), cgroups(7)).
#include "daemon/runtime/memory.h"

#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "daemon/runtime/cgroup.h"

namespace ellm::runtime {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

struct BitmaskFree {
  void operator()(bitmask* mask) const { numa_free_nodemask(mask); }
};
using Bitmask = std::unique_ptr<bitmask, BitmaskFree>;

/// The nodes that this process may allocate on. Null without NUMA support in the kernel.
Bitmask allowed_nodes() { return Bitmask(numa_available() < 0 ? nullptr : numa_get_mems_allowed()); }

/// Maps at a huge page's border, so that huge pages can be used from the first byte.
void* map_aligned(size_t bytes) {
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* raw = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  if (slack == 0) return raw;
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t start = (begin + slack - 1) / slack * slack;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t stop = (start + bytes + page - 1) / page * page;
  const uintptr_t end = begin + bytes + slack;
  if (start > begin) munmap(raw, start - begin);
  if (end > stop) munmap(reinterpret_cast<void*>(stop), end - stop);
  return reinterpret_cast<void*>(start);
}

std::string human(unsigned long long bytes) {
  return bytes < 1 << 20 ? std::to_string(bytes >> 10) + " KiB"
                         : std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

/// The value of a "Name:   123 kB" line, in bytes.
std::optional<unsigned long long> kib_field(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, name.size() + 1, name + ":") != 0) continue;
    const size_t digit = line.find_first_of("0123456789");
    const auto value = digit == std::string::npos ? std::nullopt : leading_number(line.substr(digit));
    if (value) return static_cast<unsigned long long>(*value) * 1024;
  }
  return std::nullopt;
}

/// The sum of some "name value" lines of memory.stat.
unsigned long long stat_sum(const std::string& path, const std::string& first, const std::string& second) {
  std::ifstream in(path);
  unsigned long long sum = 0, value = 0;
  for (std::string name; in >> name >> value;)
    if (name == first || name == second) sum += value;
  return sum;
}

/// Bytes left below one group's limits; absent without any. Page cache that can be dropped does not count as used.
std::optional<unsigned long long> left_in(const CgroupDirectory& group) {
  const auto number = [&](const char* file) { return leading_number(read_line(group.path + file).value_or("")); };
  std::optional<long long> limit = number(group.v2 ? "/memory.max" : "/memory.limit_in_bytes");
  if (group.v2) {  // beyond memory.high the kernel slows the group to a crawl
    const std::optional<long long> high = number("/memory.high");
    if (high) limit = std::min(*high, limit.value_or(*high));
  }
  const std::optional<long long> usage = number(group.v2 ? "/memory.current" : "/memory.usage_in_bytes");
  if (!limit || *limit < 0 || !usage || *usage < 0) return std::nullopt;
  const std::string prefix = group.v2 ? "" : "total_";  // version 1: with the groups below
  const unsigned long long cache =
      stat_sum(group.path + "/memory.stat", prefix + "inactive_file", prefix + "active_file");
  const auto used = static_cast<unsigned long long>(*usage);
  const unsigned long long held = used - std::min(used, cache);
  const auto most = static_cast<unsigned long long>(*limit);
  return most - std::min(most, held);
}

}  // namespace

std::optional<MemoryPolicy> parse_memory_policy(const std::string& text) {
  if (text == "local") return MemoryPolicy{};
  if (text == "interleave") return MemoryPolicy{MemoryPolicy::Kind::interleave, 0};
  const std::string bind = "bind:";
  if (text.compare(0, bind.size(), bind) != 0) return std::nullopt;
  const std::string digits = text.substr(bind.size());
  if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const int node = std::stoi(digits);
  const Bitmask nodes = allowed_nodes();
  const bool exists = nodes ? numa_bitmask_isbitset(nodes.get(), static_cast<unsigned>(node)) != 0 : node == 0;
  if (!exists) return std::nullopt;
  return MemoryPolicy{MemoryPolicy::Kind::bind, node};
}

int place_memory(void* data, size_t bytes, MemoryPolicy policy) {
  if (policy.kind == MemoryPolicy::Kind::local) return 0;  // the kernel's default, or what numactl(8) was told
  const Bitmask nodes = allowed_nodes();
  const bool bind = policy.kind == MemoryPolicy::Kind::bind;
  if (!nodes) return bind && policy.node != 0 ? ENODEV : 0;  // one node: both are fulfilled
  if (bind) {
    if (policy.node < 0 || !numa_bitmask_isbitset(nodes.get(), static_cast<unsigned>(policy.node))) return ENODEV;
    numa_bitmask_clearall(nodes.get());
    numa_bitmask_setbit(nodes.get(), static_cast<unsigned>(policy.node));
  }
  // The kernel takes the number of bits plus one.
  return mbind(data, bytes, bind ? MPOL_BIND : MPOL_INTERLEAVE, nodes->maskp, nodes->size + 1, 0) == 0 ? 0 : errno;
}

Region Region::map(size_t bytes, MemoryPolicy policy) {
  Region region;
  if (bytes == 0) return region;
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  region.data_ = static_cast<std::byte*>(map_aligned(bytes));
  region.size_ = bytes;
  region.policy_error_ = place_memory(region.data_, bytes, policy);
  madvise(region.data_, bytes, MADV_DONTDUMP);
  madvise(region.data_, bytes, MADV_HUGEPAGE);  // a wish: kernels without huge pages refuse it
  return region;
}

Region::Region(Region&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)),
      policy_error_(std::exchange(other.policy_error_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(policy_error_, other.policy_error_);
  return *this;
}

Region::~Region() {
  if (data_) munmap(data_, size_);  // unlocks as well
}

std::optional<std::string> lock_memory(const void* data, size_t bytes) {
  if (bytes == 0 || mlock(data, bytes) == 0) return std::nullopt;
  const int error = errno;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const unsigned long long needed = bytes + kib_field("/proc/self/status", "VmLck").value_or(0);
  std::string message = "cannot lock " + human(bytes) + " of memory";
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed)
    return message + ": " + std::strerror(error) + " (RLIMIT_MEMLOCK is not the cause)";
  return message + ": RLIMIT_MEMLOCK is " + human(limit.rlim_cur) + ", " + human(needed) +
         " are needed; raise it with LimitMEMLOCK=infinity in the systemd unit, `ulimit -l unlimited` in the shell, or "
         "a memlock line in /etc/security/limits.conf";
}

size_t available_memory_bytes(const std::string& root) {
  unsigned long long least = kib_field(root + "/proc/meminfo", "MemAvailable").value_or(0);
  for (const CgroupDirectory& group : cgroup_directories(root, "memory"))
    least = std::min(least, left_in(group).value_or(least));
  return static_cast<size_t>(least);
}

}  // namespace ellm::runtime
