// The compute threads. Everything they wait for is one barrier in two halves, gather and release:
//
//   barrier()        all arrive; the last one releases            a phase ends, the next begins
//   end of a job     all arrive; the last one tells worker 0      workers wait on for the next release
//   start of a job   worker 0 releases
//
// Arrivals are counted in groups of neighbouring workers and then among groups, and each group watches a word of its
// own, so that no cache line is fought over by all cores of a large machine. The counters of next() stand in two banks,
// used in turn by phase: whoever releases a phase clears the bank of the phase before, which nobody reads any more and
// nobody will before that worker has itself arrived at the next barrier. So no clearing stands between arrival and
// release.
#include "daemon/runtime/worker_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <span>
#include <string>
#include <system_error>
#include <thread>

#include "daemon/runtime/spin.h"

namespace ellm::runtime {
namespace {

constexpr uint32_t kGroup = 8;  // workers; the cores of a last-level cache on many servers
constexpr uint32_t kCounters = 8;
constexpr uint32_t kFirstPhase = 0x7fffff00;  // so that the wrap of the words below is met at once, not after a day
constexpr size_t kLine = 128;                 // two lines: prefetchers fetch pairs
constexpr uint32_t kPhaseSpinNs = 100'000;    // within a job
constexpr uint32_t kIdleSpinNs = 100'000;     // between jobs: what the engine does between two steps

struct Group {
  alignas(kLine) std::atomic<uint32_t> arrived{0};
  uint32_t size = 0;
  alignas(kLine) WaitWord phase{2 * kFirstPhase};  // 2 * the phase's number, modulo 2^32
};

struct alignas(kLine) Counter {
  std::atomic<uint32_t> next{0};
};

/// What one worker alone touches.
struct alignas(kLine) Spinner {
  SpinBudget phase, idle;
};

pid_t thread_id() {
  thread_local const pid_t id = gettid();  // a system call; ids are not used again while the thread lives
  return id;
}

void set_affinity(std::span<const int> cpus) {
  if (cpus.empty()) return;
  const size_t most = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
  cpu_set_t* set = CPU_ALLOC(most);
  if (!set) return;
  const size_t bytes = CPU_ALLOC_SIZE(most);
  CPU_ZERO_S(bytes, set);
  for (int cpu : cpus) CPU_SET_S(cpu, bytes, set);
  sched_setaffinity(0, bytes, set);  // a CPU that went offline meanwhile: the thread stays where it may run
  CPU_FREE(set);
}

/// Signals are for the threads that the daemon chose for them: a worker blocks all, and inherits that when started.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

struct WorkerPool::Impl {
  Impl(const Topology& topology, uint32_t threads, bool pin);

  void start_threads(WorkerPool& pool);
  void stop_threads();
  void pin_caller();
  void work(WorkerPool& pool, uint32_t index);
  bool arrive(uint32_t index);
  void release(uint32_t phase);
  void barrier(uint32_t index, uint32_t phase);
  Counter* bank(uint32_t phase) { return &counters[(phase & 1) * kCounters]; }

  const uint32_t count;
  bool pinned;
  std::vector<int> cpus;       // of the whole mask, for those not pinned
  std::vector<int> core_cpus;  // one per worker when pinned
  std::vector<Group> groups;
  std::vector<Spinner> spinners;
  Counter counters[2 * kCounters];
  alignas(kLine) std::atomic<uint32_t> groups_arrived{0};
  alignas(kLine) WaitWord joined{2 * kFirstPhase};    // 2 * the phase in which the last job ended
  alignas(kLine) uint32_t phase = kFirstPhase;        // worker 0's: the phase that the workers wait to leave
  const std::function<void(Worker&)>* job = nullptr;  // written before release(), read after it; null: stop
  pid_t caller = 0;
  std::vector<std::thread> threads;
};

WorkerPool::Impl::Impl(const Topology& topology, uint32_t threads, bool pin)
    : count(std::max(threads, 1u)), pinned(pin && count <= topology.cores.size()), cpus(topology.cpus),
      groups((count + kGroup - 1) / kGroup) {
  for (uint32_t i = 0; i < count; ++i) ++groups[i / kGroup].size;
  for (uint32_t i = 0; pinned && i < count; ++i) core_cpus.push_back(topology.cores[i].cpu);
  // With more threads than CPUs, who spins keeps the one that it waits for from running.
  const bool crowded = (topology.logical_cpus > 0 && count > static_cast<uint32_t>(topology.logical_cpus)) ||
                       (topology.quota_cpus > 0 && count > std::max(topology.quota_cpus, 1.0));
  for (uint32_t i = 0; i < count; ++i)
    spinners.push_back({SpinBudget(crowded ? 0 : kPhaseSpinNs), SpinBudget(crowded ? 0 : kIdleSpinNs)});
}

void WorkerPool::Impl::start_threads(WorkerPool& pool) {
  SignalsBlocked blocked;
  threads.reserve(count - 1);
  try {
    for (uint32_t i = 1; i < count; ++i) threads.emplace_back([this, &pool, i] { work(pool, i); });
  } catch (const std::system_error& e) {
    stop_threads();
    throw std::system_error(e.code(), "cannot start " + std::to_string(count) + " threads");
  } catch (...) {
    stop_threads();
    throw;
  }
}

void WorkerPool::Impl::stop_threads() {
  job = nullptr;
  release(++phase);
  for (std::thread& thread : threads) thread.join();
}

void WorkerPool::Impl::pin_caller() {
  const pid_t self = thread_id();
  if (caller == self) return;
  caller = self;
  if (pinned) set_affinity(std::span(core_cpus).first(1));
}

void WorkerPool::Impl::work(WorkerPool& pool, uint32_t index) {
  pthread_setname_np(pthread_self(), ("ellm-worker-" + std::to_string(index)).substr(0, 15).c_str());
  // Not pinned: the creating thread may be, so the mask is set in either case.
  set_affinity(pinned ? std::span(core_cpus).subspan(index, 1) : std::span(cpus));
  Group& group = groups[index / kGroup];
  for (uint32_t seen = kFirstPhase;;) {
    spinners[index].idle.wait_while(group.phase, 2 * seen);
    if (!job) return;
    Worker worker(pool, index, count, group.phase.value() / 2);
    (*job)(worker);
    seen = worker.phase_;
    if (arrive(index)) joined.set(2 * seen);
  }
}

/// Counts this worker in. True for the last of all, after everyone's writes.
bool WorkerPool::Impl::arrive(uint32_t index) {
  Group& group = groups[index / kGroup];
  if (group.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != group.size) return false;
  group.arrived.store(0, std::memory_order_relaxed);  // nobody arrives again before the release
  if (groups.size() == 1) return true;
  if (groups_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != groups.size()) return false;
  groups_arrived.store(0, std::memory_order_relaxed);
  return true;
}

/// Lets everyone into `next`, then clears the counters of the phase that ended.
void WorkerPool::Impl::release(uint32_t next) {
  for (Group& group : groups) group.phase.set(2 * next);
  Counter* ended = bank(next - 1);
  for (uint32_t i = 0; i < kCounters; ++i)  // a counter that nobody used stays shared in everyone's cache
    if (ended[i].next.load(std::memory_order_relaxed) != 0) ended[i].next.store(0, std::memory_order_relaxed);
}

void WorkerPool::Impl::barrier(uint32_t index, uint32_t phase) {
  if (arrive(index)) return release(phase + 1);
  spinners[index].phase.wait_while(groups[index / kGroup].phase, 2 * phase);
}

WorkerPool::WorkerPool(const Topology& topology, uint32_t threads, bool pin)
    : impl_(std::make_unique<Impl>(topology, threads, pin)) {
  impl_->start_threads(*this);
}

WorkerPool::~WorkerPool() {
  impl_->stop_threads();
  if (impl_->pinned && impl_->caller == thread_id()) set_affinity(impl_->cpus);
}

uint32_t WorkerPool::size() const { return impl_->count; }

void WorkerPool::run(const std::function<void(Worker&)>& job) {
  impl_->pin_caller();
  impl_->job = &job;
  impl_->release(++impl_->phase);
  Worker worker(*this, 0, impl_->count, impl_->phase);
  [&]() noexcept { job(worker); }();
  const uint32_t last = worker.phase_;
  const uint32_t joined_before = impl_->joined.value();
  if (impl_->arrive(0)) impl_->joined.set(2 * last);
  else impl_->spinners[0].phase.wait_while(impl_->joined, joined_before);
  impl_->phase = last;
}

void Worker::barrier() { pool_.impl_->barrier(index_, phase_++); }

std::pair<uint32_t, uint32_t> Worker::share(uint32_t n, uint32_t granule) const {
  assert(granule > 0);
  const uint64_t pieces = (uint64_t{n} + granule - 1) / granule;
  const uint64_t each = pieces / count_, more = pieces % count_;  // the first `more` workers take one piece more
  const auto edge = [&](uint64_t i) {
    return static_cast<uint32_t>(std::min<uint64_t>(n, (i * each + std::min(i, more)) * granule));
  };
  return {edge(index_), edge(index_ + 1)};
}

uint32_t Worker::next(uint32_t which) {
  assert(which < kCounters);
  return pool_.impl_->bank(phase_)[which].next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ellm::runtime
