// Attention and the row functions of every kernel level (AMX has those of AVX-512) on one core: decode in bytes of KV
// per second beside the memory's read bandwidth, prefill in floating-point operations per second beside the peak of
// fused multiply-adds, both measured here.
//   decode/LEVEL/KV/head_dim/group/depth   one query row; pages at random places in 256 MB
//   (KV int8 and int4: with the mean of K taken out, as served; int8-bare, int4-bare: without, to see what it costs)
//   prefill/LEVEL/KV/head_dim/group/depth   512 rows behind `depth` tokens
//   private, shared/LEVEL/KV/head_dim/group/depth   a step's decodes of 16 sequences and 8 KV heads: each with pages of
//   its own, or all over one prefix of `depth` tokens, stacked rms_norm, silu_mul, argmax, log_sum_exp /LEVEL/n   in
//   bytes of floats read and written per second
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_set.h"
#include "tools/bench/loops.h"

namespace ellm {
namespace {

using kernels::AttentionArgs;
using kernels::KernelSet;
using kernels::kPageTokens;
using kernels::KvType;
using kernels::Level;

// What the machine can do.

void fma_peak(benchmark::State& state, Level level) {
  constexpr uint64_t kSteps = 100000;
  uint64_t operations = 0;
  for (auto _ : state) operations = bench::run_fma_loop(level, kSteps);
  state.counters["FLOP"] =
      benchmark::Counter(static_cast<double>(operations), benchmark::Counter::kIsIterationInvariantRate);
}

/// Zeroed memory in huge pages where the kernel gives them, as the KV segment has it.
bench::HugeMemory zeroed(size_t bytes) {
  bench::HugeMemory memory = bench::allocate_huge(bytes);
  std::memset(memory.get(), 0, bytes);
  return memory;
}

void read_bandwidth(benchmark::State& state) {
  constexpr size_t kBytes = size_t{256} << 20;
  const bench::HugeMemory memory = zeroed(kBytes);
  for (auto _ : state) benchmark::DoNotOptimize(bench::read_memory(Level::avx2, memory.get(), kBytes, 1));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

/// Pages of many sequences at random places of one large piece of memory, filled with stored rows.
struct Cache {
  size_t k_bytes, v_bytes;
  bench::HugeMemory memory;
  std::vector<const std::byte*> k, v;  // (page)

  Cache(const KernelSet& set, KvType type, uint32_t head_dim, size_t bytes)
      : k_bytes(k_block_bytes(type, head_dim)), v_bytes(v_block_bytes(type, head_dim)), memory(zeroed(bytes)) {
    const size_t pages = bytes / (k_bytes + v_bytes);
    std::byte* base = memory.get();
    std::mt19937 rng(1);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> rows(head_dim * 64);
    for (float& x : rows) x = normal(rng);
    for (size_t page = 0; page < pages; ++page) {
      std::byte* at = base + page * (k_bytes + v_bytes);
      if (page > 0) {
        std::memcpy(at, base, k_bytes + v_bytes);
      } else {
        for (uint32_t t = 0; t < kPageTokens; ++t) {
          set.store_k(type, head_dim, &rows[t * head_dim], at, t);
          set.store_v(type, head_dim, &rows[(t + 32) * head_dim], at + k_bytes, t);
        }
      }
      k.push_back(at);
    }
    std::shuffle(k.begin(), k.end(), rng);
    for (const std::byte* block : k) v.push_back(block + k_bytes);
  }
};

/// A KV type, and whether K's mean is taken out.
struct Stored {
  std::string name;
  KvType type;
  bool mean;
};
const std::vector<Stored> kStored = {{"f16", KvType::f16, false},
                                     {"int8", KvType::int8, true},
                                     {"int8-bare", KvType::int8, false},
                                     {"int4", KvType::int4, true},
                                     {"int4-bare", KvType::int4, false}};

/// A key mean for contexts of up to 64K tokens.
struct Mean {
  std::vector<float> mean, part, cos, sin, turns;
  std::vector<uint32_t> pair_dims;
  kernels::KeyMean view;
  Mean(uint32_t head_dim, uint32_t pairs)
      : mean(head_dim, 2.0f), part(head_dim, 0.5f), cos(size_t{2048} * head_dim / 2, 0.6f), sin(cos.size(), 0.8f) {
    turns.assign(pairs * 2 * kPageTokens, 0.5f);
    for (uint32_t p = 0; p < pairs; ++p) pair_dims.insert(pair_dims.end(), {p, p + head_dim / 2});
    view = {mean.data(), part.data(), cos.data(),       sin.data(),  head_dim / 2,
            true,        pairs,       pair_dims.data(), turns.data()};
  }
};

struct Queries {
  std::vector<float> q, out;
  Mean mean;
  AttentionArgs args{};

  Queries(const Cache& cache, const Stored& stored, uint32_t head_dim, uint32_t group, uint32_t rows, uint32_t depth)
      : q(rows * group * head_dim), out(q.size()), mean(head_dim, stored.type == KvType::int4 ? 12 : 4) {
    std::mt19937 rng(2);
    std::normal_distribution<float> normal(0, 1);
    for (float& x : q) x = normal(rng);
    args.q = q.data();
    args.out = out.data();
    args.q_stride = args.out_stride = group * head_dim;
    args.rows = rows;
    args.group = group;
    args.head_dim = head_dim;
    args.first_position = depth;
    args.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    args.k_type = args.v_type = stored.type;
    if (stored.mean) args.key_mean = &mean.view;
    args.k_blocks = cache.k.data();
    args.v_blocks = cache.v.data();
  }
};

void decode(benchmark::State& state, const KernelSet& set, const Stored& stored, uint32_t head_dim, uint32_t group,
            uint32_t depth) {
  const Cache cache(set, stored.type, head_dim, 256u << 20);
  Queries queries(cache, stored, head_dim, group, 1, depth - 1);
  const size_t pages = depth / kPageTokens;
  size_t at = 0;
  for (auto _ : state) {
    queries.args.k_blocks = cache.k.data() + at;
    queries.args.v_blocks = cache.v.data() + at;
    set.attention(queries.args);
    at = at + 2 * pages <= cache.k.size() ? at + pages : 0;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * pages * (cache.k_bytes + cache.v_bytes)));
}

void prefill(benchmark::State& state, const KernelSet& set, const Stored& stored, uint32_t head_dim, uint32_t group,
             uint32_t depth) {
  constexpr uint32_t kRows = 512;
  const Cache cache(set, stored.type, head_dim, depth > 4096 ? 32u << 20 : 8u << 20);
  Queries queries(cache, stored, head_dim, group, kRows, depth);
  for (auto _ : state) set.attention(queries.args);
  double pairs = 0;
  for (uint32_t r = 0; r < kRows; ++r) pairs += depth + r + 1;
  state.counters["FLOP"] =
      benchmark::Counter(4.0 * head_dim * group * pairs, benchmark::Counter::kIsIterationInvariantRate);
}

constexpr uint32_t kSharers = 16, kShareHeads = 8;

void private_prefix(benchmark::State& state, const KernelSet& set, const Stored& stored, uint32_t head_dim,
                    uint32_t group, uint32_t depth) {
  const Cache cache(set, stored.type, head_dim, 512u << 20);
  Queries queries(cache, stored, head_dim, group, 1, depth - 1);
  const size_t pages = depth / kPageTokens;
  size_t at = 0;
  for (auto _ : state) {
    for (uint32_t i = 0; i < kSharers * kShareHeads; ++i) {
      queries.args.k_blocks = cache.k.data() + at;
      queries.args.v_blocks = cache.v.data() + at;
      set.attention(queries.args);
      at = at + 2 * pages <= cache.k.size() ? at + pages : 0;
    }
  }
  state.SetBytesProcessed(
      static_cast<int64_t>(state.iterations() * kSharers * kShareHeads * pages * (cache.k_bytes + cache.v_bytes)));
}

void shared_prefix(benchmark::State& state, const KernelSet& set, const Stored& stored, uint32_t head_dim,
                   uint32_t group, uint32_t depth) {
  const Cache cache(set, stored.type, head_dim, 512u << 20);
  Queries queries(cache, stored, head_dim, group, kSharers, depth - 1);
  const uint32_t pages = depth / kPageTokens, segments = pages / kernels::kSegmentPages;
  const size_t floats = size_t{segments} * group * kernels::attention_partial_floats(head_dim);
  std::vector<float> partials(kSharers * floats);
  std::vector<kernels::StackedRow> stack;
  for (uint32_t r = 0; r < kSharers; ++r)
    stack.push_back({&queries.q[r * group * head_dim], depth - 1, &partials[r * floats]});
  std::vector<const std::byte*> k(kSharers * kernels::kSegmentPages), v(k.size());
  size_t at = 0;
  for (auto _ : state) {
    for (uint32_t head = 0; head < kShareHeads; ++head) {
      AttentionArgs args = queries.args;
      args.stack = stack.data();
      args.stack_pages = kernels::kSegmentPages;
      args.k_blocks = k.data();
      args.v_blocks = v.data();
      for (uint32_t segment = 0; segment < segments; ++segment) {
        for (uint32_t i = 0; i < k.size(); ++i) {
          k[i] = cache.k[at + segment * kernels::kSegmentPages + i % kernels::kSegmentPages];
          v[i] = k[i] + cache.k_bytes;
        }
        set.attention_partial(args, segment, 0, nullptr);
      }
      for (uint32_t r = 0; r < kSharers; ++r) {
        AttentionArgs row = queries.args;
        row.rows = 1;
        row.out += r * row.out_stride;
        set.attention_merge(row, 0, 1, segments, &partials[r * floats]);
      }
      at = at + 2 * pages <= cache.k.size() ? at + pages : 0;
    }
  }
  state.SetBytesProcessed(
      static_cast<int64_t>(state.iterations() * kShareHeads * pages * (cache.k_bytes + cache.v_bytes)));
}

template <class F>
void add_row_function(const std::string& name, const std::string& level, uint32_t n, uint32_t rows_moved, F f) {
  benchmark::RegisterBenchmark((name + "/" + level + "/" + std::to_string(n)).c_str(), [=](auto& state) {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> x(n), y(n), out(n);
    for (float& v : x) v = normal(rng);
    for (float& v : y) v = normal(rng);
    for (auto _ : state) benchmark::DoNotOptimize(f(x.data(), y.data(), n, out.data()));
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * rows_moved * n * sizeof(float)));
  })->Unit(benchmark::kMicrosecond);
}

void add_row_functions(const KernelSet& set) {
  add_row_function("rms_norm", set.name, 4096, 3, [&set](const float* x, const float* w, uint32_t n, float* out) {
    set.rms_norm(x, w, n, 1e-5f, out);
    return out[0];
  });
  add_row_function("silu_mul", set.name, 11008, 3, [&set](const float* x, const float* y, uint32_t n, float* out) {
    set.silu_mul(x, y, n, out);
    return out[0];
  });
  add_row_function("argmax", set.name, 151936, 1,
                   [&set](const float* x, const float*, uint32_t n, float*) { return set.argmax(x, n); });
  add_row_function("log_sum_exp", set.name, 151936, 1,
                   [&set](const float* x, const float*, uint32_t n, float*) { return set.log_sum_exp(x, n); });
}

void add_level(const KernelSet& set) {
  const std::string level = set.name;
  add_row_functions(set);
  benchmark::RegisterBenchmark(("fma_peak/" + level).c_str(), [&set](auto& s) {
    fma_peak(s, set.level);
  })->Unit(benchmark::kMicrosecond);
  for (const Stored& stored : kStored) {
    for (const auto& [head_dim, group] :
         std::vector<std::pair<uint32_t, uint32_t>>{{64, 1}, {64, 3}, {64, 4}, {64, 7}, {128, 1}, {128, 3}, {128, 6}}) {
      const std::string shape =
          level + "/" + stored.name + "/" + std::to_string(head_dim) + "/" + std::to_string(group) + "/";
      const auto add = [&, head_dim = head_dim, group = group](const std::string& name, uint32_t depth, auto run) {
        benchmark::RegisterBenchmark((name + "/" + shape + std::to_string(depth)).c_str(), [&set, &stored, head_dim,
                                                                                            group, depth,
                                                                                            run](auto& s) {
          run(s, set, stored, head_dim, group, depth);
        })->Unit(benchmark::kMicrosecond);
      };
      for (const uint32_t depth : {4096u, 32768u}) add("decode", depth, decode);
      for (const uint32_t depth : {0u, 4096u, 32768u}) add("prefill", depth, prefill);
      add("private", 8192, private_prefix);
      add("shared", 8192, shared_prefix);
    }
  }
}

}  // namespace
}  // namespace ellm

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("read_bandwidth", ellm::read_bandwidth)->Unit(benchmark::kMicrosecond);
  for (const auto level : {ellm::kernels::Level::avx512, ellm::kernels::Level::avx2}) {
    if (ellm::bench::runs_here(level)) ellm::add_level(*ellm::kernels::kernel_set(level));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
