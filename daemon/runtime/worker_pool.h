// The pinned compute threads and their barrier. One owner (the engine thread, which is worker 0) calls run(); inside a
// job the workers meet at barriers that spin for a while, then park.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/runtime/topology.h"

namespace ellm::runtime {

class WorkerPool;

/// A worker's view of the job that it takes part in.
class Worker {
 public:
  uint32_t index() const { return index_; }
  uint32_t count() const { return count_; }
  /// Waits until every worker of the job is here. Everything written before it is visible to all after it.
  void barrier();
  /// This worker's share [first, last) of n items, in pieces that are multiples of `granule`.
  std::pair<uint32_t, uint32_t> share(uint32_t n, uint32_t granule = 1) const;
  /// Dynamic sharing: the next item number of counter `which` (0 … 7), counted from 0 in each phase between barriers;
  /// take items until the number is not below your n. A barrier at which all workers meet resets the counters.
  uint32_t next(uint32_t which = 0);

 private:
  friend class WorkerPool;
  Worker(WorkerPool& pool, uint32_t index, uint32_t count, uint32_t phase)
      : pool_(pool), index_(index), count_(count), phase_(phase) {}
  WorkerPool& pool_;
  uint32_t index_, count_, phase_;
};

class WorkerPool {
 public:
  /// `threads` workers (at least 1), the caller of run() being the first; the others are started now and pinned to the
  /// topology's cores in turn if `pin`; the caller is pinned to the first core by its first run(), until the pool is
  /// destroyed. More threads than cores is allowed: nobody is pinned then. Throws std::system_error.
  WorkerPool(const Topology& topology, uint32_t threads, bool pin = true);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;

  uint32_t size() const;
  /// Runs `job` on every worker, the calling thread included, and returns when all are done. Not reentrant. Between
  /// runs the workers spin for a moment, then sleep.
  /// `job` must not throw.
  void run(const std::function<void(Worker&)>& job);

 private:
  friend class Worker;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::runtime
