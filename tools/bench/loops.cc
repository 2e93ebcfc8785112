// The peaks are assembly, so that no compiler spoils them: chains enough to hide the latency, nothing leaves the
// registers.
#include "tools/bench/loops.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <new>

#include "daemon/runtime/cpu_features.h"

namespace ellm::bench {
namespace {

using kernels::Level;
using kernels::WeightType;

/// A tile is 16 rows of 64 bytes; six of sums, as one has to wait for its last product.
__attribute__((target("amx-tile,amx-int8"), noinline)) uint64_t dot_amx(uint64_t steps) {
  struct alignas(64) {
    uint8_t palette = 1, zeros[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const config;
  asm volatile("ldtilecfg %0\n" ::"m"(config));  // all tiles are zero
  for (uint64_t n = 0; n < steps; ++n) {
    asm volatile(
        "tdpbssd %tmm7, %tmm6, %tmm0\n tdpbssd %tmm7, %tmm6, %tmm1\n tdpbssd %tmm7, %tmm6, %tmm2\n"
        "tdpbssd %tmm7, %tmm6, %tmm3\n tdpbssd %tmm7, %tmm6, %tmm4\n tdpbssd %tmm7, %tmm6, %tmm5\n");
  }
  asm volatile("tilerelease\n");
  return 2 * 16 * 16 * 64 * 6 * steps;
}

__attribute__((target("avx512f,avx512vnni"), noinline)) uint64_t dot_avx512(uint64_t steps) {
  for (uint64_t n = 0; n < steps; ++n) {
    asm volatile(
        "vpdpbusd %%zmm30, %%zmm31, %%zmm0\n vpdpbusd %%zmm30, %%zmm31, %%zmm1\n vpdpbusd %%zmm30, %%zmm31, %%zmm2\n"
        "vpdpbusd %%zmm30, %%zmm31, %%zmm3\n vpdpbusd %%zmm30, %%zmm31, %%zmm4\n vpdpbusd %%zmm30, %%zmm31, %%zmm5\n"
        "vpdpbusd %%zmm30, %%zmm31, %%zmm6\n vpdpbusd %%zmm30, %%zmm31, %%zmm7\n vpdpbusd %%zmm30, %%zmm31, %%zmm8\n"
        "vpdpbusd %%zmm30, %%zmm31, %%zmm9\n" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9");
  }
  return 2 * 64 * 10 * steps;
}

// One product, `added` - 1 more added to it in 16 bits, then to 32 bits and to the sum.
#define ELLM_FIRST(product) "vpmaddubsw %%ymm14, %%ymm15, %%" product "\n"
#define ELLM_MORE(product, other) \
  "vpmaddubsw %%ymm14, %%ymm15, %%" other "\n vpaddw %%" other ", %%" product ", %%" product "\n"
#define ELLM_LAST(sum, product) \
  "vpmaddwd %%ymm13, %%" product ", %%" product "\n vpaddd %%" product ", %%" sum ", %%" sum "\n"
#define ELLM_TWICE(x) x x
#define ELLM_DOT_1(sum, p, o) ELLM_FIRST(p) ELLM_LAST(sum, p)
#define ELLM_DOT_2(sum, p, o) ELLM_FIRST(p) ELLM_MORE(p, o) ELLM_LAST(sum, p)
#define ELLM_DOT_4(sum, p, o) ELLM_FIRST(p) ELLM_MORE(p, o) ELLM_TWICE(ELLM_MORE(p, o)) ELLM_LAST(sum, p)
#define ELLM_DOT_8(sum, p, o) \
  ELLM_FIRST(p) ELLM_MORE(p, o) ELLM_TWICE(ELLM_MORE(p, o)) ELLM_TWICE(ELLM_TWICE(ELLM_MORE(p, o))) ELLM_LAST(sum, p)
#define ELLM_LOOP(DOT)                                                                                              \
  for (uint64_t n = 0; n < steps; ++n) {                                                                            \
    asm volatile(DOT("ymm0", "ymm4", "ymm8") DOT("ymm1", "ymm5", "ymm9") DOT("ymm2", "ymm6", "ymm10")               \
                     DOT("ymm3", "ymm7", "ymm11")::                                                                 \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                           "xmm11");                                                                                \
  }
__attribute__((target("avx2"), noinline)) uint64_t dot_avx2(int added, uint64_t steps) {
  switch (added) {
    case 8: ELLM_LOOP(ELLM_DOT_8) break;
    case 4: ELLM_LOOP(ELLM_DOT_4) break;
    case 2: ELLM_LOOP(ELLM_DOT_2) break;
    default: added = 1; ELLM_LOOP(ELLM_DOT_1) break;
  }
  return 2 * 32 * 4 * static_cast<uint64_t>(added) * steps;
}

uint64_t dot_scalar(uint64_t steps) {
  int32_t sums[8] = {}, code = 3;
  for (uint64_t n = 0; n < steps; ++n) {
    asm volatile("" : "+r"(code));
    for (int32_t& s : sums) s += code * code;
  }
  asm volatile("" ::"m"(sums));
  return 2 * 8 * steps;
}

// Twelve chains; zeros, which no unit is slow with.
#define ELLM_FMA(r) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" r "\n"
__attribute__((target("avx512f"), noinline)) uint64_t fma_avx512(uint64_t steps) {
  for (uint64_t n = 0; n < steps; ++n) {
    asm volatile("vpxord %%zmm30, %%zmm30, %%zmm30\n vpxord %%zmm31, %%zmm31, %%zmm31\n" ELLM_FMA("0") ELLM_FMA("1")
                     ELLM_FMA("2") ELLM_FMA("3") ELLM_FMA("4") ELLM_FMA("5") ELLM_FMA("6") ELLM_FMA("7") ELLM_FMA("8")
                         ELLM_FMA("9") ELLM_FMA("10") ELLM_FMA("11")::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                               "xmm11");
  }
  return 2 * 16 * 12 * steps;
}
#define ELLM_FMA_256(r) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" r "\n"
__attribute__((target("avx2,fma"), noinline)) uint64_t fma_avx2(uint64_t steps) {
  for (uint64_t n = 0; n < steps; ++n) {
    asm volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n vpxor %%ymm15, %%ymm15, %%ymm15\n" ELLM_FMA_256("0")
                     ELLM_FMA_256("1") ELLM_FMA_256("2") ELLM_FMA_256("3") ELLM_FMA_256("4") ELLM_FMA_256("5")
                         ELLM_FMA_256("6") ELLM_FMA_256("7") ELLM_FMA_256("8") ELLM_FMA_256("9") ELLM_FMA_256("10")
                             ELLM_FMA_256("11")::
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                                   "xmm10", "xmm11", "xmm14", "xmm15");
  }
  return 2 * 8 * 12 * steps;
}
uint64_t fma_scalar(uint64_t steps) {
  float sums[8] = {}, x = 0;
  for (uint64_t n = 0; n < steps; ++n) {
    asm volatile("" : "+x"(x));
    for (float& s : sums) s = s * x + x;
  }
  asm volatile("" ::"m"(sums));
  return 2 * 8 * steps;
}

/// Each stream reads a line (64 bytes) in turn; four sums, so that additions never wait.
template <int kStreams>
__attribute__((target("avx2"), noinline)) uint64_t read_avx2(const std::byte* from, size_t bytes) {
  const size_t length = bytes / kStreams;
  __m256i sum[4] = {};
  for (size_t i = 0; i < length; i += 256) {
    for (int s = 0; s < kStreams; ++s) {
      const auto* at = reinterpret_cast<const __m256i*>(from + static_cast<size_t>(s) * length + i);
      for (int k = 0; k < 4; ++k)
        sum[k] = _mm256_xor_si256(sum[k],
                                  _mm256_xor_si256(_mm256_loadu_si256(at + 2 * k), _mm256_loadu_si256(at + 2 * k + 1)));
    }
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  uint64_t words[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), all);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}
uint64_t read_scalar(const std::byte* from, size_t bytes) {
  uint64_t sum[4] = {};
  const auto* at = reinterpret_cast<const uint64_t*>(from);
  for (size_t i = 0; i < bytes / 8; i += 4)
    for (size_t k = 0; k < 4; ++k) sum[k] ^= at[i + k];
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

constexpr size_t kHugePage = 2 << 20;

}  // namespace

bool runs_here(Level level) {
  static const runtime::CpuFeatures cpu = runtime::detect_cpu();
  switch (level) {
    case Level::amx: return cpu.runs_amx();
    case Level::avx512: return cpu.runs_avx512();
    case Level::avx2: return cpu.runs_avx2();
    case Level::scalar: return true;
  }
  return false;
}

int products_added(WeightType type) {
  switch (type) {
    case WeightType::q2_k:
    case WeightType::q3_k:
    case WeightType::q4_0:
    case WeightType::q4_1:
    case WeightType::q4_k: return 8;
    case WeightType::q5_0:
    case WeightType::q5_1:
    case WeightType::q5_k: return 4;
    case WeightType::q6_k: return 2;
    default: return 1;
  }
}

uint64_t run_integer_loop(Level level, int added, uint64_t steps) {
  if (level == Level::amx) return dot_amx(steps);
  if (level == Level::avx512) return dot_avx512(steps);
  return level == Level::avx2 ? dot_avx2(added, steps) : dot_scalar(steps);
}

uint64_t run_fma_loop(Level level, uint64_t steps) {
  if (level >= Level::avx512) return fma_avx512(steps);
  return level == Level::avx2 ? fma_avx2(steps) : fma_scalar(steps);
}

uint64_t read_memory(Level level, const std::byte* from, size_t bytes, int streams) {
  if (level == Level::scalar) return read_scalar(from, bytes);  // one stream
  if (streams == 4) return read_avx2<4>(from, bytes);
  return streams == 2 ? read_avx2<2>(from, bytes) : read_avx2<1>(from, bytes);
}

void Unmap::operator()(std::byte* p) const { ::munmap(p, bytes); }

HugeMemory allocate_huge(size_t bytes) {
  const size_t length = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  auto* base = static_cast<std::byte*>(
      ::mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (base == MAP_FAILED) throw std::bad_alloc();
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;  // unmapped again
  if (before > 0) ::munmap(base, before);
  ::munmap(base + before + length, kHugePage - before);
  ::madvise(base + before, length, MADV_HUGEPAGE);
  return HugeMemory(base + before, Unmap{length});
}

}  // namespace ellm::bench
