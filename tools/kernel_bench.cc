// kernel-bench: the matrix products of every level against what the machine can do at most, in one run. Prefill is set
// beside a loop of nothing but the type's dot-product instructions (`of_peak`), decode beside a loop that only reads
// memory
// (`of_bandwidth`). And how fast weights are repacked. Single-threaded; run it alone on the machine.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_set.h"
#include "kernels/weight_type.h"
#include "tools/bench/loops.h"

namespace {

using namespace ellm::kernels;

/// CPU time of this thread: what others do to the machine meanwhile disturbs less.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
double seconds(double since) { return now() - since; }

using ellm::bench::HugeMemory;
HugeMemory allocate(size_t bytes) {
  HugeMemory m = ellm::bench::allocate_huge(bytes);
  std::memset(m.get(), 0x11, bytes);
  return m;
}

/// Operations per second of nothing but a type's instructions.
double peak_of(Level level, WeightType type) {
  constexpr uint64_t kSteps = 500000;
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    const uint64_t operations = is_quantised(type)
                                    ? ellm::bench::run_integer_loop(level, ellm::bench::products_added(type), kSteps)
                                    : ellm::bench::run_fma_loop(level, kSteps);
    best = std::max(best, static_cast<double>(operations) / seconds(start));
  }
  return best;
}

constexpr size_t kStream = size_t{384} << 20;  // larger than any cache that one core is given

/// The best of one, two and four streams.
double read_bandwidth(Level level, const std::byte* p) {
  double best = 0;
  for (const int streams : {1, 2, 4}) {
    const double start = now();
    benchmark::DoNotOptimize(ellm::bench::read_memory(level, p, kStream, streams));
    best = std::max(best, kStream / seconds(start));
  }
  return best;
}

/// Panels of plausible bytes (scales small), as many matrices as fill `bytes`.
struct Weights {
  HugeMemory memory;
  PanelMatrix matrix;
  size_t count;

  Weights(WeightType type, uint32_t rows, uint32_t cols, size_t bytes) {
    matrix = {type, rows, cols, nullptr, panel_bytes(type, cols)};
    const size_t each = matrix.panels() * matrix.panel_bytes;
    count = bytes / each + 1;
    memory = allocate(count * each);
  }
  PanelMatrix at(size_t i) const {
    PanelMatrix m = matrix;
    m.data = memory.get() + i % count * (m.panels() * m.panel_bytes);
    return m;
  }
};

struct Tokens {
  HugeMemory memory;
  Activations x;

  Tokens(const KernelSet& set, WeightType type, uint32_t rows, uint32_t cols)
      : memory(allocate(Activations::bytes(rows, cols))) {
    x = Activations::bind(memory.get(), rows, cols);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(cols);
    for (uint32_t r = 0; r < rows; ++r) {
      for (float& v : row) v = normal(rng);
      (is_quantised(type) ? set.pack_q8 : set.pack_f32)(x, r, row.data(), 0, x.blocks());
    }
  }
};

void prefill(benchmark::State& state, const KernelSet* set, WeightType type, uint32_t rows, uint32_t cols,
             uint32_t tokens) {
  const Weights w(type, rows, cols, 0);
  const Tokens t(*set, type, tokens, cols);
  std::vector<float> out(size_t{tokens} * rows);
  double peak = peak_of(set->level, type), time = 0;
  for (auto _ : state) {
    const double start = now();
    set->matmul({w.at(0), t.x, 0, w.matrix.panels(), out.data(), rows});
    time += seconds(start);
    benchmark::ClobberMemory();
  }
  peak = std::max(peak, peak_of(set->level, type));
  const double rate = 2.0 * rows * cols * tokens * static_cast<double>(state.iterations()) / time;
  state.counters["GOP/s"] = rate / 1e9;
  state.counters["peak_GOP/s"] = peak / 1e9;
  state.counters["of_peak"] = rate / peak;
}

void decode(benchmark::State& state, const KernelSet* set, WeightType type, uint32_t rows, uint32_t cols,
            uint32_t tokens) {
  const Weights w(type, rows, cols, kStream);
  const Tokens t(*set, type, tokens, cols);
  std::vector<float> out(size_t{tokens} * rows);
  double best = 0, time = 0;
  size_t i = 0;
  for (auto _ : state) {
    best = std::max(best, read_bandwidth(set->level, w.memory.get()));
    const double start = now();
    for (size_t n = 0; n < w.count; ++n) set->matmul({w.at(i++), t.x, 0, w.matrix.panels(), out.data(), rows});
    time += seconds(start);
    benchmark::ClobberMemory();
  }
  const double rate = static_cast<double>(i * w.matrix.panels() * w.matrix.panel_bytes) / time;
  state.counters["GB/s"] = rate / 1e9;
  state.counters["read_GB/s"] = best / 1e9;
  state.counters["of_bandwidth"] = rate / best;
}

void pack(benchmark::State& state, const KernelSet* set, uint32_t cols) {
  Tokens t(*set, WeightType::q8_0, 16, cols);
  std::vector<float> row(cols, 0.5f);
  for (auto _ : state) {
    for (uint32_t r = 0; r < 16; ++r) set->pack_q8(t.x, r, row.data(), 0, t.x.blocks());
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] =
      benchmark::Counter(16.0 * 4 * cols, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

/// As a load does it: rows that were just read, into memory that the kernel has cleared, 4 MB at a time.
void repack(benchmark::State& state, const KernelSet* set, WeightType type) {
  constexpr size_t kPiece = 128 << 10, kChunk = 4 << 20, kRing = 64 << 20;
  const uint32_t cols = 1536;
  PanelMatrix m = {type, 0, cols, nullptr, panel_bytes(type, cols)};
  m.rows = kPanelRows * static_cast<uint32_t>(std::max(kPiece / m.panel_bytes, size_t{1}));
  const size_t piece = m.panels() * m.panel_bytes;
  const BlockShape shape = block_shape(type);
  const HugeMemory from = allocate(size_t{m.rows} * (cols / shape.weights) * shape.bytes), to = allocate(kRing);
  const Repack repack = repack_of(set->level);
  double time = 0, written = 0;
  for (auto _ : state) {
    for (std::byte* chunk = to.get(); chunk != to.get() + kRing; chunk += kChunk) {
      std::memset(chunk, 0, kChunk);
      const double start = now();
      size_t at = 0;
      for (; at + piece <= kChunk; at += piece) repack(m, chunk + at, from.get(), 0, m.panels());
      time += seconds(start);
      written += static_cast<double>(at);
    }
  }
  state.counters["GB/s"] = written / time / 1e9;
}

void register_level(const KernelSet* set) {
  for (WeightType type : kWeightTypes) {
    const BlockShape shape = block_shape(type);
    const std::string name = std::string(set->name) + "/" + shape.name + "/";
    for (uint32_t cols : {2048u, 1536u, 896u, 576u}) {
      const uint32_t k = shape.weights == 256 ? (cols + 255) / 256 * 256 : cols;
      benchmark::RegisterBenchmark(("prefill/" + name + std::to_string(k)).c_str(), prefill, set, type, cols, k, 64)
          ->MinTime(0.1);
    }
    benchmark::RegisterBenchmark((std::string("repack/") + set->name + "/" + shape.name).c_str(), repack, set, type)
        ->MinTime(0.1);
    for (uint32_t tokens : {1u, 2u, 4u, 8u}) {
      const std::string full = "decode/" + name + "1536/" + std::to_string(tokens);
      benchmark::RegisterBenchmark(full.c_str(), decode, set, type, 1536, 1536, tokens)->Iterations(4);
    }
  }
  benchmark::RegisterBenchmark((std::string("pack/") + set->name).c_str(), pack, set, 1536)->MinTime(0.1);
}

}  // namespace

int main(int argc, char** argv) {
  for (Level level : {Level::amx, Level::avx512, Level::avx2, Level::scalar}) {
    if (ellm::bench::runs_here(level)) register_level(kernel_set(level));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
