// Topologies of machines that we do not have, told by their sysfs and cgroup files; and this machine's against the
// kernel's own answers.
#include "daemon/runtime/topology.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <thread>

#include "tests/runtime/fake_tree.h"

using namespace ellm::runtime;

namespace {

void add_cpu(FakeTree& tree, int cpu, const std::string& siblings) {
  tree.file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", siblings);
}

/// 2 nodes x 2 cores x 2 threads, numbered as Intel servers do: siblings 4 apart, nodes alternating.
void add_server(FakeTree& tree) {
  tree.file("/sys/devices/system/cpu/online", "0-7");
  for (int cpu = 0; cpu < 8; ++cpu) add_cpu(tree, cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  tree.file("/sys/devices/system/node/online", "0-1");
  tree.file("/sys/devices/system/node/node0/cpulist", "0,2,4,6");
  tree.file("/sys/devices/system/node/node1/cpulist", "1,3,5,7");
}

std::vector<std::pair<int, int>> pairs(const Topology& topology) {
  std::vector<std::pair<int, int>> out;
  for (const Core& core : topology.cores) out.emplace_back(core.cpu, core.node);
  return out;
}

TEST(Topology, OneCorePerSiblingPairOrderedByNode) {
  FakeTree tree;
  add_server(tree);
  const Topology topology = read_topology(tree.root());
  EXPECT_EQ(topology.logical_cpus, 8);
  EXPECT_EQ(topology.nodes, 2);
  EXPECT_EQ(topology.quota_cpus, 0);
  EXPECT_EQ(pairs(topology), (std::vector<std::pair<int, int>>{{0, 0}, {2, 0}, {1, 1}, {3, 1}}));
  EXPECT_EQ(topology.default_threads(), 4);
}

TEST(Topology, OfflineCpusAndSparseNumbers) {
  FakeTree tree;
  tree.file("/sys/devices/system/cpu/online", "1,3-4,130");
  add_cpu(tree, 1, "1");
  add_cpu(tree, 3, "3-4");
  add_cpu(tree, 4, "3-4");
  add_cpu(tree, 130, "2,130");  // its sibling is offline
  const Topology topology = read_topology(tree.root());
  EXPECT_EQ(pairs(topology), (std::vector<std::pair<int, int>>{{1, 0}, {3, 0}, {130, 0}}));
  EXPECT_EQ(topology.nodes, 1);
}

TEST(Topology, AnEmptyTreeIsOneCpu) {
  FakeTree tree;
  const Topology topology = read_topology(tree.root());
  EXPECT_EQ(topology.cores.size(), 1u);
  EXPECT_EQ(topology.default_threads(), 1);
}

TEST(Topology, NonsenseInFilesIsIgnored) {
  FakeTree tree;
  tree.file("/sys/devices/system/cpu/online", "0-1,9-5,x");
  tree.file("/sys/devices/system/node/online", "0-99999999999");
  tree.file("/proc/self/cgroup", "0:");
  tree.file("/proc/self/mountinfo", "30 20 0:26 /");
  EXPECT_EQ(read_topology(tree.root()).logical_cpus, 2);
}

TEST(Topology, QuotaV2IsTheLeastOnTheWayUp) {
  FakeTree tree;
  add_server(tree);
  tree.file("/proc/self/cgroup", "0::/system.slice/ellmd.service").file("/proc/self/mountinfo", kMountedV2);
  tree.file("/sys/fs/cgroup/system.slice/ellmd.service/cpu.max", "max 100000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 0);
  tree.file("/sys/fs/cgroup/system.slice/ellmd.service/cpu.max", "350000 100000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 3.5);
  EXPECT_EQ(read_topology(tree.root()).default_threads(), 3);
  tree.file("/sys/fs/cgroup/system.slice/cpu.max", "50000 25000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 2);
  EXPECT_EQ(read_topology(tree.root()).default_threads(), 2);
  tree.file("/sys/fs/cgroup/cpu.max", "20000 100000");  // as a container sees its own limit at its root
  EXPECT_EQ(read_topology(tree.root()).default_threads(), 1);
}

TEST(Topology, QuotaAboveTheCoresChangesNothing) {
  FakeTree tree;
  add_server(tree);
  tree.file("/proc/self/cgroup", "0::/").file("/proc/self/mountinfo", kMountedV2);
  tree.file("/sys/fs/cgroup/cpu.max", "1600000 100000");
  EXPECT_EQ(read_topology(tree.root()).default_threads(), 4);
}

TEST(Topology, QuotaV1WithCombinedControllers) {
  FakeTree tree;
  add_server(tree);
  tree.file("/proc/self/cgroup", "9:name=systemd:/a/b\n4:cpu,cpuacct:/a/b\n3:cpuset:/a");
  tree.file("/proc/self/mountinfo",
            "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset");
  tree.file("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1");
  tree.file("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 0);
  tree.file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "290000");
  tree.file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(read_topology(tree.root()).quota_cpus, 2.9);
  EXPECT_EQ(read_topology(tree.root()).default_threads(), 2);
}

/// Docker with version 1 and no cgroup namespace: the path is the host's, the mount shows the container's group alone.
TEST(Topology, GroupMountedAtItsOwnPath) {
  FakeTree tree;
  add_server(tree);
  tree.file("/proc/self/cgroup", "4:cpu:/docker/abc/inner");
  tree.file("/proc/self/mountinfo", "33 31 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu");
  tree.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000").file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 2);
  tree.file("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "100000");
  tree.file("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 1);
  tree.file("/proc/self/cgroup", "4:cpu:/docker/abcdef");  // not below the mounted group: only that one is visible
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 2);
}

TEST(Topology, GroupOutsideOfTheNamespace) {
  FakeTree tree;
  add_server(tree);
  tree.file("/proc/self/cgroup", "0::/../other").file("/proc/self/mountinfo", kMountedV2);
  tree.file("/sys/fs/cgroup/cpu.max", "300000 100000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 3);
}

TEST(Topology, MountPointWithASpace) {
  FakeTree tree;
  tree.file("/proc/self/cgroup", "0::/g");
  tree.file("/proc/self/mountinfo", "30 20 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw");
  tree.file("/my groups/g/cpu.max", "150000 100000");
  EXPECT_EQ(read_topology(tree.root()).quota_cpus, 1.5);
}

TEST(Topology, ThisMachine) {
  const Topology topology = read_topology();
  EXPECT_GE(topology.cores.size(), 1u);
  EXPECT_LE(topology.cores.size(), topology.cpus.size());
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(getpid(), sizeof(set), &set), 0);
  EXPECT_EQ(topology.logical_cpus, CPU_COUNT(&set));
  for (int cpu : topology.cpus) EXPECT_TRUE(CPU_ISSET(cpu, &set));
  for (const Core& core : topology.cores) EXPECT_TRUE(CPU_ISSET(core.cpu, &set));
}

/// A mask that leaves one CPU: the process's (its main thread's) counts, whoever asks.
TEST(Topology, FollowsTheAffinityMask) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(getpid(), sizeof(all), &all), 0);
  const int last = read_topology().cpus.back();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  ASSERT_EQ(sched_setaffinity(getpid(), sizeof(one), &one), 0);
  std::vector<int> cpus;
  std::thread([&] { cpus = read_topology().cpus; }).join();
  ASSERT_EQ(sched_setaffinity(getpid(), sizeof(all), &all), 0);
  EXPECT_EQ(cpus, std::vector<int>{last});
}

}  // namespace
