// The table of kernel levels. Baseline code; any thread.
#include "kernels/kernel_set.h"

#include "kernels/amx/level.h"
#include "kernels/avx2/level.h"
#include "kernels/avx512/level.h"
#include "kernels/level_table.h"
#include "kernels/scalar/level.h"

namespace ellm::kernels {
namespace {

constexpr KernelSet kLevels[] = {
    {"amx", Level::amx, amx::matmul, ELLM_PACKING(avx512), ELLM_ATTENTION(avx512), ELLM_ROWS(avx512)},
    {"avx512", Level::avx512, avx512::matmul, ELLM_PACKING(avx512), ELLM_ATTENTION(avx512), ELLM_ROWS(avx512)},
    {"avx2", Level::avx2, avx2::matmul, ELLM_PACKING(avx2), ELLM_ATTENTION(avx2), ELLM_ROWS(avx2)},
    {"scalar", Level::scalar, scalar::matmul, ELLM_PACKING(scalar), ELLM_ATTENTION(scalar), ELLM_ROWS(scalar)},
};

}  // namespace

const KernelSet* kernel_set(Level level) noexcept {
  for (const KernelSet& set : kLevels) {
    if (set.level == level) return &set;
  }
  return nullptr;
}

}  // namespace ellm::kernels
