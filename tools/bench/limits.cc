#include "tools/bench/limits.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>

#include "daemon/runtime/memory.h"
#include "tools/bench/loops.h"

namespace ellm::bench {
namespace {

using kernels::Level;
using kernels::WeightType;
using Clock = std::chrono::steady_clock;

constexpr int kTries = 8, kMostTries = 60;
constexpr int kStreams[] = {1, 2, 4};

std::atomic<uint64_t> sink;  // keeps the reads

/// Seconds of `work` on the first `threads` workers, from when all are there until the last is done.
double time_workers(runtime::WorkerPool& pool, uint32_t threads, const std::function<void(uint32_t)>& work) {
  Clock::time_point begin, end;
  pool.run([&](runtime::Worker& w) {
    w.barrier();
    if (w.index() == 0) begin = Clock::now();
    if (w.index() < threads) work(w.index());
    w.barrier();
    if (w.index() == 0) end = Clock::now();
  });
  return std::chrono::duration<double>(end - begin).count();
}

/// The best rate: as others only ever slow it down, until it has not grown by 1 % for some tries.
double best_of(const std::function<double()>& measure) {
  double best = 0;
  for (int tries = 0, without = 0; tries < kMostTries && without < kTries; ++tries, ++without) {
    const double rate = measure();
    if (rate > best * 1.01) without = 0;
    best = std::max(best, rate);
  }
  return best;
}

/// Operations per second of all workers, in pieces of some milliseconds.
double best_rate(runtime::WorkerPool& pool, const std::function<uint64_t(uint64_t steps)>& loop) {
  std::vector<uint64_t> done(pool.size());
  uint64_t steps = 1000;
  const auto run = [&] { return time_workers(pool, pool.size(), [&](uint32_t i) { done[i] = loop(steps); }); };
  while (run() < 0.002) steps *= 2;  // shorter, it could not be told from the barrier
  return best_of([&] {
    const double seconds = run();
    uint64_t all = 0;
    for (const uint64_t d : done) all += d;
    return static_cast<double>(all) / seconds;
  });
}

std::vector<Bandwidth> measure_bandwidths(Level level, runtime::WorkerPool& pool) {
  // Beyond the caches (twice the last, which may be all workers' and hold hundreds of MB), but within a quarter of what
  // is free.
  constexpr size_t kStep = 16384;
  const size_t last_cache = static_cast<size_t>(std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE)));
  size_t each = std::max(size_t{192} << 20, 2 * last_cache / pool.size() / kStep * kStep);
  while (each > (size_t{8} << 20) && each * pool.size() > runtime::available_memory_bytes() / 4)
    each = each / 2 / kStep * kStep;
  std::vector<HugeMemory> memory(pool.size());
  for (HugeMemory& m : memory) m = allocate_huge(each);
  time_workers(pool, pool.size(),
               [&](uint32_t i) { std::memset(memory[i].get(), 0x5A, each); });  // each on its own node
  std::vector<Bandwidth> all;
  for (uint32_t threads = 1; threads <= pool.size();
       threads = threads < pool.size() ? std::min(threads * 2, pool.size()) : threads + 1) {
    for (const int streams : kStreams) {
      const auto read = [&](uint32_t w) { sink += read_memory(level, memory[w].get(), each, streams); };
      all.push_back({threads, streams,
                     best_of([&] { return static_cast<double>(each * threads) / time_workers(pool, threads, read); })});
    }
  }
  return all;
}

}  // namespace

double Limits::bandwidth() const {
  double best = 0;
  for (const Bandwidth& b : bandwidths) best = std::max(best, b.bytes_per_second);
  return best;
}

double Limits::peak(WeightType type) const {
  if (!kernels::is_quantised(type)) return floating;
  return integer[static_cast<size_t>(std::countr_zero(static_cast<unsigned>(products_added(type))))];
}

void Limits::take_better(const Limits& other) {
  for (size_t i = 0; i < bandwidths.size() && i < other.bandwidths.size(); ++i)
    bandwidths[i].bytes_per_second = std::max(bandwidths[i].bytes_per_second, other.bandwidths[i].bytes_per_second);
  for (size_t i = 0; i < integer.size(); ++i) integer[i] = std::max(integer[i], other.integer[i]);
  floating = std::max(floating, other.floating);
}

Limits measure_limits(Level level, runtime::WorkerPool& pool) {
  Limits limits;
  limits.bandwidths = measure_bandwidths(level, pool);
  for (size_t i = 0; i < limits.integer.size(); ++i)
    limits.integer[i] = best_rate(pool, [&](uint64_t steps) { return run_integer_loop(level, 1 << i, steps); });
  limits.floating = best_rate(pool, [&](uint64_t steps) { return run_fma_loop(level, steps); });
  return limits;
}

}  // namespace ellm::bench
