// kernel-bench: the matrix products of every level against what the machine can do at most, in one run. Prefill is set
// beside a loop of nothing but dot-product instructions (`of_peak`), decode beside a loop that only reads memory
// (`of_bandwidth`). Single-threaded; run it alone on the machine.
#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_set.h"
#include "kernels/weight_type.h"

namespace {

using namespace ellm::kernels;

/// CPU time of this thread: what others do to the machine meanwhile disturbs less.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
double seconds(double since) { return now() - since; }

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, Free>;
Memory allocate(size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  const size_t length = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  Memory m(static_cast<std::byte*>(std::aligned_alloc(kHugePage, length)));
  madvise(m.get(), length, MADV_HUGEPAGE);   // as the daemon does with weights
  std::memset(m.get(), 0x11, bytes);
  return m;
}

bool runs(Level level) {
  switch (level) {
    case Level::scalar: return true;
    case Level::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Level::avx512: return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  }
  return false;
}

// Ten independent chains of dot products that never leave the registers; assembly, so that no compiler spoils the peak.
__attribute__((target("avx512f,avx512vnni"), noinline)) double peak_avx512() {
  constexpr int kSteps = 2000000;
  const double start = now();
  for (int n = 0; n < kSteps; ++n) {
    asm volatile(
        "vpdpbusd %%zmm30, %%zmm31, %%zmm0\n vpdpbusd %%zmm30, %%zmm31, %%zmm1\n vpdpbusd %%zmm30, %%zmm31, %%zmm2\n"
        "vpdpbusd %%zmm30, %%zmm31, %%zmm3\n vpdpbusd %%zmm30, %%zmm31, %%zmm4\n vpdpbusd %%zmm30, %%zmm31, %%zmm5\n"
        "vpdpbusd %%zmm30, %%zmm31, %%zmm6\n vpdpbusd %%zmm30, %%zmm31, %%zmm7\n vpdpbusd %%zmm30, %%zmm31, %%zmm8\n"
        "vpdpbusd %%zmm30, %%zmm31, %%zmm9\n" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9");
  }
  return 2.0 * 64 * 10 * kSteps / seconds(start);
}
#define ELLM_PEAK_STEP(sum, product)                                                   \
  "vpmaddubsw %%ymm14, %%ymm15, %%" product "\n vpmaddwd %%ymm13, %%" product ", %%" product \
  "\n vpaddd %%" product ", %%" sum ", %%" sum "\n"
__attribute__((target("avx2"), noinline)) double peak_avx2() {
  constexpr int kSteps = 2000000;
  const double start = now();
  for (int n = 0; n < kSteps; ++n) {
    asm volatile(ELLM_PEAK_STEP("ymm0", "ymm6") ELLM_PEAK_STEP("ymm1", "ymm7") ELLM_PEAK_STEP("ymm2", "ymm8")
                     ELLM_PEAK_STEP("ymm3", "ymm9") ELLM_PEAK_STEP("ymm4", "ymm10") ELLM_PEAK_STEP("ymm5", "ymm11")
                 ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
  }
  return 2.0 * 32 * 6 * kSteps / seconds(start);
}
double int8_peak(Level level) {   // operations per second
  double best = 0;
  for (int i = 0; i < 3; ++i) best = std::max(best, level == Level::avx512 ? peak_avx512() : peak_avx2());
  return best;
}

constexpr size_t kStream = size_t{384} << 20;   // larger than any cache that one core is given

__attribute__((target("avx2"), noinline)) double read_bandwidth(const std::byte* p) {
  __m256i sum[4] = {};
  const double start = now();
  for (size_t i = 0; i < kStream; i += 256) {
    for (int k = 0; k < 4; ++k) {
      const __m256i* at = reinterpret_cast<const __m256i*>(p + i + 64 * k);
      sum[k] = _mm256_xor_si256(sum[k], _mm256_xor_si256(_mm256_load_si256(at), _mm256_load_si256(at + 1)));
    }
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  const double time = seconds(start);
  benchmark::DoNotOptimize(all);
  return kStream / time;
}

/// Panels of plausible bytes (scales small), as many matrices as fill `bytes`.
struct Weights {
  Memory memory;
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
  Memory memory;
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
  double peak = int8_peak(set->level), time = 0;
  for (auto _ : state) {
    const double start = now();
    set->matmul({w.at(0), t.x, 0, w.matrix.panels(), out.data(), rows});
    time += seconds(start);
    benchmark::ClobberMemory();
  }
  peak = std::max(peak, int8_peak(set->level));
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
    best = std::max(best, read_bandwidth(w.memory.get()));
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
  state.counters["GB/s"] = benchmark::Counter(16.0 * 4 * cols, benchmark::Counter::kIsIterationInvariantRate,
                                              benchmark::Counter::kIs1000);
}

void register_level(const KernelSet* set) {
  for (WeightType type : kWeightTypes) {
    const BlockShape shape = block_shape(type);
    const std::string name = std::string(set->name) + "/" + shape.name + "/";
    for (uint32_t cols : {1536u, 896u, 576u}) {
      const uint32_t k = shape.weights == 256 ? (cols + 255) / 256 * 256 : cols;
      benchmark::RegisterBenchmark(("prefill/" + name + std::to_string(k)).c_str(), prefill, set, type, cols, k, 64)
          ->MinTime(0.1);
    }
    for (uint32_t tokens : {1u, 2u, 4u}) {
      const std::string full = "decode/" + name + "1536/" + std::to_string(tokens);
      benchmark::RegisterBenchmark(full.c_str(), decode, set, type, 1536, 1536, tokens)->Iterations(4);
    }
  }
  benchmark::RegisterBenchmark((std::string("pack/") + set->name).c_str(), pack, set, 1536)->MinTime(0.1);
}

}  // namespace

int main(int argc, char** argv) {
  for (Level level : {Level::avx512, Level::avx2, Level::scalar}) {
    if (runs(level)) register_level(kernel_set(level));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
