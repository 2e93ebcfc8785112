// The rows of the emulated levels (ELLM_EMULATE_AVX512 is defined for this file).
#include "tests/kernels/emulated_level.h"

#include "kernels/amx/level.h"
#include "kernels/avx512/level.h"
#include "kernels/level_table.h"

namespace ellm::kernels {
namespace {

constexpr KernelSet kAvx512 = {"avx512 emulated",
                               Level::avx512,
                               emulated_avx512::matmul,
                               ELLM_PACKING(emulated_avx512),
                               ELLM_ATTENTION(emulated_avx512),
                               ELLM_ROWS(emulated_avx512)};
constexpr KernelSet kAmx = {"amx emulated",
                            Level::amx,
                            emulated_amx::matmul,
                            ELLM_PACKING(emulated_avx512),
                            ELLM_ATTENTION(emulated_avx512),
                            ELLM_ROWS(emulated_avx512)};

}  // namespace

const KernelSet& emulated_avx512_set() noexcept { return kAvx512; }
const KernelSet& emulated_amx_set() noexcept { return kAmx; }
Repack emulated_repack() noexcept { return emulated_avx512::repack; }

}  // namespace ellm::kernels
