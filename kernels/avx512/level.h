// The AVX-512 level (F, BW, DQ, VL, VNNI): one register of 16 rows makes a panel.
// The tests compile its sources a second time over emulated intrinsics, under another namespace: sources of this level
// open `namespace ellm::kernels::ELLM_AVX512` and include kernels/avx512/intrinsics.h instead of <immintrin.h>.
#pragma once
#include "kernels/kernel_set.h"

#ifdef ELLM_EMULATE_AVX512
#define ELLM_AVX512 emulated_avx512
#else
#define ELLM_AVX512 avx512
#endif

namespace ellm::kernels::ELLM_AVX512 {
#include "kernels/level_functions.inc"

/// matmul for the tokens from `first` on, a multiple of kTokenTile.
void matmul_from(const MatmulArgs& args, uint32_t first) noexcept;

// repack.cc
void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept;
}  // namespace ellm::kernels::ELLM_AVX512
