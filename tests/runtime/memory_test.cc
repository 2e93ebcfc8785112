// Regions against what the kernel says of them in /proc/self/smaps; memory left in machines told by their files.
#include "daemon/runtime/memory.h"

#include <gtest/gtest.h>
#include <numa.h>
#include <numaif.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "tests/runtime/fake_tree.h"
#include "tests/support/smaps.h"

using namespace ellm::runtime;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMlockWorks = false;  // the sanitizers' own mlock does nothing
#else
constexpr bool kMlockWorks = true;
#endif

std::string vm_flags(const void* address) { return ellm::tests::smaps(address, "VmFlags"); }

TEST(Region, IsZeroedWritableAlignedAndNotDumped) {
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{100'001}, size_t{2} << 20, (size_t{5} << 20) + 7}) {
    Region region = Region::map(bytes, {});
    ASSERT_NE(region.data(), nullptr);
    EXPECT_EQ(region.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region.data()) % (bytes >= 2 << 20 ? 2 << 20 : 4096), 0u);
    EXPECT_EQ(region.data()[0], std::byte{0});
    EXPECT_EQ(region.data()[bytes - 1], std::byte{0});
    std::memset(region.data(), 7, bytes);
    EXPECT_NE(vm_flags(region.data()).find(" dd "), std::string::npos);  // VM_DONTDUMP
    EXPECT_NE(vm_flags(region.data() + bytes - 1).find(" dd "), std::string::npos);
  }
}

TEST(Region, IsUnmappedAndMoves) {
  const std::byte* where;
  {
    Region a = Region::map(3 << 20, {});
    where = a.data();
    Region b = std::move(a);
    EXPECT_EQ(a.data(), nullptr);
    EXPECT_EQ(a.size(), 0u);
    EXPECT_EQ(b.data(), where);
    Region c;
    c = std::move(b);
    EXPECT_EQ(c.data(), where);
    EXPECT_FALSE(vm_flags(where).empty());
  }
  EXPECT_TRUE(vm_flags(where).empty());
}

TEST(Region, NothingAndTooMuch) {
  EXPECT_EQ(Region::map(0, {}).data(), nullptr);
  EXPECT_FALSE(lock_memory(nullptr, 0));
  EXPECT_THROW(Region::map(std::numeric_limits<size_t>::max(), {}), std::bad_alloc);
  EXPECT_THROW(Region::map(size_t{1} << 60, {}), std::bad_alloc);
}

TEST(MemoryPolicy, Parse) {
  EXPECT_EQ(parse_memory_policy("local")->kind, MemoryPolicy::Kind::local);
  EXPECT_EQ(parse_memory_policy("interleave")->kind, MemoryPolicy::Kind::interleave);
  for (const char* bad :
       {"", "Local", "bind", "bind:", "bind:x", "bind:-1", "bind:0x", "bind:9999", "bind:99999999999", "bind: 0"})
    EXPECT_FALSE(parse_memory_policy(bad)) << bad;
  const int node = numa_available() < 0 ? 0 : numa_node_of_cpu(sched_getcpu());
  const auto bind = parse_memory_policy("bind:" + std::to_string(node));
  ASSERT_TRUE(bind);
  EXPECT_EQ(bind->kind, MemoryPolicy::Kind::bind);
  EXPECT_EQ(bind->node, node);
}

TEST(MemoryPolicy, IsWhatTheKernelApplies) {
  if (numa_available() < 0) GTEST_SKIP() << "a kernel without NUMA";
  const int node = numa_node_of_cpu(sched_getcpu());
  for (auto [kind, mode] :
       {std::pair(MemoryPolicy::Kind::local, MPOL_DEFAULT), std::pair(MemoryPolicy::Kind::interleave, MPOL_INTERLEAVE),
        std::pair(MemoryPolicy::Kind::bind, MPOL_BIND)}) {
    Region region = Region::map(1 << 20, {kind, node});
    if (region.policy_error() == EPERM) GTEST_SKIP() << "mbind is forbidden here";
    EXPECT_EQ(region.policy_error(), 0);
    std::memset(region.data(), 1, region.size());
    int seen = -1;
    ASSERT_EQ(get_mempolicy(&seen, nullptr, 0, region.data(), MPOL_F_ADDR), 0);
    EXPECT_EQ(seen, mode);
    int where = -1;
    ASSERT_EQ(get_mempolicy(&where, nullptr, 0, region.data(), MPOL_F_NODE | MPOL_F_ADDR), 0);
    if (kind == MemoryPolicy::Kind::bind) {
      EXPECT_EQ(where, node);
    }
  }
}

TEST(MemoryPolicy, ANodeThatIsNotThereIsReported) {
  Region region = Region::map(4096, {MemoryPolicy::Kind::bind, 9999});
  EXPECT_EQ(region.policy_error(), ENODEV);
  region.data()[0] = std::byte{1};
}

TEST(Region, LocksWithinTheLimit) {
  if (!kMlockWorks) GTEST_SKIP() << "a sanitizer's mlock";
  Region region = Region::map(16384, {});
  if (const auto problem = lock_memory(region.data(), region.size())) GTEST_SKIP() << *problem;
  EXPECT_NE(vm_flags(region.data()).find(" lo "), std::string::npos);  // VM_LOCKED
}

/// In a child without privileges and with a limit of 64 KiB: the message names limit, need and remedies.
TEST(Region, LockSaysWhatLimitsIt) {
  if (!kMlockWorks) GTEST_SKIP() << "a sanitizer's mlock";
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{64 << 10, 64 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)) _exit(1);
    Region region = Region::map(3 << 20, {});
    const std::string text = lock_memory(region.data(), region.size()).value_or("locked");
    _exit(write(channel[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(channel[1]);
  char buffer[1024] = {};
  ASSERT_GT(read(channel[0], buffer, sizeof(buffer) - 1), 0);
  close(channel[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const std::string text = buffer;
  for (const char* part :
       {"3 MiB", "RLIMIT_MEMLOCK is 64 KiB", "LimitMEMLOCK=infinity", "ulimit -l", "/etc/security/limits.conf"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

constexpr size_t kMiB = 1 << 20;

TEST(AvailableMemory, WithoutGroupsIsMemAvailable) {
  FakeTree tree;
  tree.file("/proc/meminfo", "MemTotal:       16384000 kB\nMemFree:  1000 kB\nMemAvailable:    8192000 kB");
  EXPECT_EQ(available_memory_bytes(tree.root()), 8192000 * size_t{1024});
}

TEST(AvailableMemory, V2LimitOnTheWayUpMinusUseWithoutCache) {
  FakeTree tree;
  tree.file("/proc/meminfo", "MemAvailable:    8192000 kB").file("/proc/self/mountinfo", kMountedV2);
  tree.file("/proc/self/cgroup", "0::/user/ellm");
  tree.file("/sys/fs/cgroup/user/ellm/memory.max", "max");
  tree.file("/sys/fs/cgroup/user/ellm/memory.current", "1000");
  EXPECT_EQ(available_memory_bytes(tree.root()), 8192000 * size_t{1024});
  tree.file("/sys/fs/cgroup/user/memory.max", std::to_string(1000 * kMiB));
  tree.file("/sys/fs/cgroup/user/memory.current", std::to_string(600 * kMiB));
  EXPECT_EQ(available_memory_bytes(tree.root()), 400 * kMiB);
  tree.file("/sys/fs/cgroup/user/memory.stat", "anon 5\nfile 300000000\ninactive_file " + std::to_string(100 * kMiB) +
                                                   "\nactive_file " + std::to_string(200 * kMiB) + "\nslab 9");
  EXPECT_EQ(available_memory_bytes(tree.root()), 700 * kMiB);
  tree.file("/sys/fs/cgroup/user/ellm/memory.high", "51000");  // throttled beyond: a limit as well
  EXPECT_EQ(available_memory_bytes(tree.root()), 50000u);
  tree.file("/sys/fs/cgroup/user/ellm/memory.current", "99999");
  EXPECT_EQ(available_memory_bytes(tree.root()), 0u);
}

TEST(AvailableMemory, V1) {
  FakeTree tree;
  tree.file("/proc/meminfo", "MemAvailable:    8192000 kB");
  tree.file("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory");
  tree.file("/proc/self/cgroup", "4:memory:/box\n0::/");
  tree.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  tree.file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000000");
  EXPECT_EQ(available_memory_bytes(tree.root()), 8192000 * size_t{1024});
  tree.file("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(512 * kMiB));
  tree.file("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", std::to_string(500 * kMiB));
  tree.file("/sys/fs/cgroup/memory/box/memory.stat",
            "inactive_file 1\ntotal_inactive_file " + std::to_string(88 * kMiB));
  EXPECT_EQ(available_memory_bytes(tree.root()), 100 * kMiB);
}

TEST(AvailableMemory, ThisMachine) {
  const size_t available = available_memory_bytes();
  EXPECT_GT(available, kMiB);
  EXPECT_LE(available, static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace
