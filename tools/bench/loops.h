// Loops that do nothing but what a machine is limited by: dot products of bytes, fused multiply-adds, reads of memory.
// The caller times them (limits.h on all workers; kernel-bench on one core). Pure; any thread that runs the level.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/kernel_set.h"

namespace ellm::bench {

/// Whether this CPU and this process have the level.
bool runs_here(kernels::Level level);

/// Dot products of bytes, the accumulators in registers. AMX: tdpbssd. AVX-512: vpdpbusd. AVX2: maddubs, whose sums of
/// `added` products (1, 2, 4, 8: as many as stay within 16 bits for codes of 8, 6, 5, 4 bits) are added before madd and
/// add. Returns the operations (a multiplication or an addition of a weight: 2 a weight).
uint64_t run_integer_loop(kernels::Level level, int added, uint64_t steps);

/// `added` of the codes of a quantised type. 1 also for codebooks of 8 bits.
int products_added(kernels::WeightType type);

/// Fused multiply-adds of f32. Returns the operations, 2 a lane.
uint64_t run_fma_loop(kernels::Level level, uint64_t steps);

/// Reads `bytes` (a multiple of 4096 * streams) once, by 1, 2 or 4 streams side by side. Returns a value that depends
/// on all of it.
uint64_t read_memory(kernels::Level level, const std::byte* from, size_t bytes, int streams);

struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* p) const;
};
using HugeMemory = std::unique_ptr<std::byte[], Unmap>;
/// In huge pages where the kernel gives them, as weights and KV have it. Not touched yet. Throws std::bad_alloc.
HugeMemory allocate_huge(size_t bytes);

}  // namespace ellm::bench
