// What the worker pool costs by threads: per barrier (the counter), per phase with work in it (the work included), per
// run. `barrier-bench` prints a table; --benchmark_filter=… chooses.
#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "daemon/runtime/worker_pool.h"

namespace {

using namespace ellm::runtime;

constexpr int kBarriersPerRun = 1000;

void per_barrier(benchmark::State& state) {
  state.counters["per_barrier"] = benchmark::Counter(static_cast<double>(state.iterations()) * kBarriersPerRun,
                                                     benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

/// Threads asked for, as far as this machine has cores; beyond, workers sleep instead of spinning.
void barriers(benchmark::State& state) {
  WorkerPool pool(read_topology(), static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) {
    pool.run([](Worker& worker) {
      for (int i = 0; i < kBarriersPerRun; ++i) worker.barrier();
    });
  }
  per_barrier(state);
}

/// A phase of `work_us` on every worker, as a small model's steps have.
void barriers_with_work(benchmark::State& state) {
  WorkerPool pool(read_topology(), static_cast<uint32_t>(state.range(0)));
  const auto work = std::chrono::microseconds(state.range(1));
  for (auto _ : state) {
    pool.run([&](Worker& worker) {
      for (int i = 0; i < kBarriersPerRun; ++i) {
        const auto end = std::chrono::steady_clock::now() + work;
        while (std::chrono::steady_clock::now() < end) {
        }
        worker.barrier();
      }
    });
  }
  per_barrier(state);
}

/// Dynamic sharing: 64 items a phase.
void next_items(benchmark::State& state) {
  WorkerPool pool(read_topology(), static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) {
    pool.run([](Worker& worker) {
      for (int i = 0; i < kBarriersPerRun; ++i) {
        while (worker.next() < 64) {
        }
        worker.barrier();
      }
    });
  }
  per_barrier(state);
}

/// An empty job, right after the last one.
void runs(benchmark::State& state) {
  WorkerPool pool(read_topology(), static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) pool.run([](Worker&) {});
}

/// An empty job after the workers have gone to sleep: what the first token pays.
void runs_after_sleep(benchmark::State& state) {
  WorkerPool pool(read_topology(), static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto begin = std::chrono::steady_clock::now();
    pool.run([](Worker&) {});
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
}

void thread_counts(benchmark::internal::Benchmark* bench) {
  const auto cores = static_cast<int64_t>(read_topology().cores.size());
  for (int64_t n = 1; n < cores; n *= 2) bench->Arg(n);
  bench->Arg(cores)->Arg(2 * cores);
}

void threads_and_work(benchmark::internal::Benchmark* bench) {
  const auto cores = static_cast<int64_t>(read_topology().cores.size());
  for (int64_t work_us : {2, 20, 200}) bench->Args({cores, work_us})->Args({2 * cores, work_us});
}

BENCHMARK(barriers)->Apply(thread_counts)->UseRealTime();
BENCHMARK(barriers_with_work)->Apply(threads_and_work)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(next_items)->Apply(thread_counts)->UseRealTime();
BENCHMARK(runs)->Apply(thread_counts)->UseRealTime();
BENCHMARK(runs_after_sleep)->Apply(thread_counts)->UseManualTime()->Iterations(100);

}  // namespace

BENCHMARK_MAIN();
