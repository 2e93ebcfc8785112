// The AVX2 level (AVX2, FMA, F16C): two registers of 8 rows make a panel.
#pragma once
#include "kernels/kernel_set.h"

namespace ellm::kernels::avx2 {
#include "kernels/level_functions.inc"

// repack.cc
void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept;
}  // namespace ellm::kernels::avx2
