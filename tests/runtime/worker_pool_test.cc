// The pool's promises: a barrier orders everything, shares cover exactly, next() hands out every item once per phase,
// idle workers sleep, and crowding does not stop anything.
#include "daemon/runtime/worker_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

using namespace ellm::runtime;

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// A machine with so many CPUs, whether they exist or not: workers spin although they may share a CPU.
Topology pretend(int cpus) {
  Topology topology;
  topology.logical_cpus = cpus;
  for (int i = 0; i < cpus; ++i) topology.cores.push_back({i, 0});
  return topology;
}

class WorkerPoolTest : public testing::TestWithParam<uint32_t> {};

/// Plain (non-atomic) cells: each worker writes its own, meets, and reads everybody's. Also what TSan looks at.
TEST_P(WorkerPoolTest, BarrierMakesWritesVisible) {
  const uint32_t n = GetParam();
  WorkerPool pool(read_topology(), n);
  ASSERT_EQ(pool.size(), n);
  std::vector<uint64_t> cells(n), wrong(n);
  constexpr uint64_t kPhases = 1000;
  for (uint64_t run = 1; run <= 3; ++run) {
    pool.run([&](Worker& worker) {
      ASSERT_EQ(worker.count(), n);
      for (uint64_t phase = 1; phase <= kPhases; ++phase) {
        cells[worker.index()] = run * phase;
        worker.barrier();
        for (uint64_t cell : cells) wrong[worker.index()] += cell != run * phase;
        worker.barrier();
      }
    });
    for (uint64_t count : wrong) EXPECT_EQ(count, 0u);
  }
}

/// Many jobs without any barrier, whose results the caller reads at once.
TEST_P(WorkerPoolTest, RunReturnsWhenAllAreDone) {
  const uint32_t n = GetParam();
  WorkerPool pool(read_topology(), n);
  std::vector<uint32_t> runs(n);
  for (uint32_t run = 1; run <= 2000; ++run) {
    pool.run([&](Worker& worker) { ++runs[worker.index()]; });
    for (uint32_t count : runs) ASSERT_EQ(count, run);
  }
}

TEST_P(WorkerPoolTest, NextHandsOutEveryItemOncePerPhase) {
  const uint32_t n = GetParam();
  WorkerPool pool(read_topology(), n);
  constexpr uint32_t kItems = 37, kPhases = 3000;
  std::vector<std::atomic<uint32_t>> taken(8 * kItems);
  std::atomic<uint32_t> wrong{0};
  for (int run = 0; run < 2; ++run) {
    pool.run([&](Worker& worker) {
      for (uint32_t phase = 0; phase < kPhases; ++phase) {
        const uint32_t which = phase % 8, other = (phase / 3) % 8;  // not every counter in every phase
        for (uint32_t i; (i = worker.next(which)) < kItems;)
          taken[which * kItems + i].fetch_add(1, std::memory_order_relaxed);
        if (other != which)
          for (uint32_t i; (i = worker.next(other)) < kItems;)
            taken[other * kItems + i].fetch_add(1, std::memory_order_relaxed);
        worker.barrier();  // the next phase uses the counters at once: a fast worker must find them cleared
        if (worker.index() == 0)
          for (uint32_t c = 0; c < 8; ++c)
            for (uint32_t i = 0; i < kItems; ++i)
              wrong +=
                  taken[c * kItems + i].exchange(0, std::memory_order_relaxed) != (c == which || c == other ? 1u : 0u);
        worker.barrier();
      }
      // A job that ends with used counters: the next job's first phase starts from 0 as well.
      while (worker.next(0) < kItems) {
      }
    });
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(WorkerPoolTest, CountersAreClearedWithoutASpareBarrier) {
  const uint32_t n = GetParam();
  WorkerPool pool(read_topology(), n);
  constexpr uint64_t kItems = 11, kPhases = 5000;
  std::vector<uint64_t> sums(n);
  pool.run([&](Worker& worker) {
    for (uint64_t phase = 0; phase < kPhases; ++phase) {
      for (uint32_t i; (i = worker.next(3)) < kItems;) sums[worker.index()] += i + 1;
      worker.barrier();
    }
  });
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  EXPECT_EQ(sum, kPhases * kItems * (kItems + 1) / 2);
}

TEST_P(WorkerPoolTest, ShareCoversExactlyInGranules) {
  const uint32_t n = GetParam();
  WorkerPool pool(read_topology(), n);
  for (uint32_t items : {0u, 1u, 2u, 7u, 15u, 16u, 17u, 100u, 1000u, 49152u, 4294967295u}) {
    for (uint32_t granule : {1u, 4u, 16u, 64u}) {
      std::vector<std::pair<uint32_t, uint32_t>> shares(n);
      pool.run([&](Worker& worker) { shares[worker.index()] = worker.share(items, granule); });
      uint32_t at = 0, least = ~0u, most = 0;
      for (auto [first, last] : shares) {
        EXPECT_EQ(first, at);
        EXPECT_LE(first, last);
        if (last != items) {
          EXPECT_EQ(last % granule, 0u);
        }
        const uint64_t pieces = (uint64_t{last} - first + granule - 1) / granule;
        least = std::min<uint32_t>(least, pieces);
        most = std::max<uint32_t>(most, pieces);
        at = last;
      }
      EXPECT_EQ(at, items);
      EXPECT_LE(most - least, 1u) << items << " / " << granule;
    }
  }
}

/// Spinning threads on fewer CPUs than they think there are: preempted peers at every barrier, and sleeps within jobs.
TEST_P(WorkerPoolTest, CrowdedSpinnersGetThrough) {
  const uint32_t n = GetParam();
  WorkerPool pool(pretend(64), n, false);
  std::vector<uint32_t> cells(n);
  std::atomic<uint32_t> wrong{0};
  pool.run([&](Worker& worker) {
    for (uint32_t phase = 1; phase <= 300; ++phase) {
      if (phase % 100 == worker.index())
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // others fall asleep
      cells[worker.index()] = phase;
      worker.barrier();
      for (uint32_t cell : cells) wrong += cell != phase;
      worker.barrier();
    }
  });
  EXPECT_EQ(wrong, 0u);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolTest, testing::Values(1, 2, 4, 8, 19));

TEST(WorkerPool, SleepsWhenIdleAndWakes) {
  WorkerPool pool(pretend(64), 4, false);  // spins as if every worker had a CPU
  std::atomic<uint32_t> done{0};
  const auto job = [&](Worker&) { ++done; };
  pool.run(job);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double used = cpu_seconds() - before;
  EXPECT_LT(used, 0.1);  // three workers that kept spinning would use up to 0.9 s, and at least 0.3 s
  pool.run(job);
  EXPECT_EQ(done, 8u);
}

TEST(WorkerPool, ThreadsAreNamedPinnedAndDeafToSignals) {
  const Topology topology = read_topology();
  const auto threads = static_cast<uint32_t>(topology.cores.size());
  cpu_set_t before, after;
  ASSERT_EQ(pthread_getaffinity_np(pthread_self(), sizeof(before), &before), 0);
  {
    WorkerPool pool(topology, threads);
    std::vector<int> wrong(threads);
    pool.run([&](Worker& worker) {
      const uint32_t i = worker.index();
      cpu_set_t set;
      pthread_getaffinity_np(pthread_self(), sizeof(set), &set);
      wrong[i] += CPU_COUNT(&set) != 1 || !CPU_ISSET(topology.cores[i].cpu, &set);
      if (i == 0) return;
      char name[16];
      pthread_getname_np(pthread_self(), name, sizeof(name));
      wrong[i] += std::string(name) != "ellm-worker-" + std::to_string(i);
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      wrong[i] += sigismember(&mask, SIGTERM) != 1;
    });
    for (int count : wrong) EXPECT_EQ(count, 0);
  }
  ASSERT_EQ(pthread_getaffinity_np(pthread_self(), sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(WorkerPool, MoreThreadsThanCoresAreNotPinned) {
  const Topology topology = read_topology();
  const auto threads = static_cast<uint32_t>(topology.cores.size()) + 1;
  WorkerPool pool(topology, threads);
  std::vector<int> counts(threads);
  pool.run([&](Worker& worker) {
    cpu_set_t set;
    pthread_getaffinity_np(pthread_self(), sizeof(set), &set);
    counts[worker.index()] = CPU_COUNT(&set);
  });
  for (int count : counts) EXPECT_EQ(count, topology.logical_cpus);
}

TEST(WorkerPool, NoThreadsMeansOne) {
  WorkerPool pool(pretend(0), 0);
  uint32_t runs = 0;
  pool.run([&](Worker& worker) {
    worker.barrier();
    runs += worker.count();
  });
  EXPECT_EQ(runs, 1u);
}

}  // namespace
