// The row of the emulated AVX-512 level (ELLM_EMULATE_AVX512 is defined for this file).
#include "tests/kernels/emulated_level.h"

#include "kernels/avx512/level.h"
#include "kernels/level_table.h"

namespace ellm::kernels {

const KernelSet& emulated_avx512_set() noexcept {
  static constexpr KernelSet set = {"avx512 emulated", Level::avx512, ELLM_MATMUL(emulated_avx512),
                                    ELLM_ATTENTION(emulated_avx512), ELLM_ROWS(emulated_avx512)};
  return set;
}

Repack emulated_avx512_repack() noexcept { return emulated_avx512::repack; }

}  // namespace ellm::kernels
