// Weights as the kernels read them: rows of the output interleaved in panels of 16, one layout for every kernel level,
// for prefill and decode alike. Baseline code; any thread (panels are independent).
#pragma once
#include "kernels/weight_type.h"

namespace ellm::kernels {

inline constexpr uint32_t kPanelRows = 16;  // one vector lane owns one output row
/// Of the bytes that repack() writes, which outlive the process: raise it when they change
/// (tests/model/kept_weights_test.cc).
inline constexpr uint32_t kPanelVersion = 1;
inline constexpr uint32_t kBlock = 32;  // columns that share an activation scale

/// A repacked matrix: (rows, cols) weights in ceil(rows / 16) panels. Does not own `data` (64-byte aligned).
struct PanelMatrix {
  WeightType type;
  uint32_t rows, cols;
  const std::byte* data;
  size_t panel_bytes;  // a multiple of 64

  uint32_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  /// Panels [first, last) as a matrix of its own.
  PanelMatrix part(uint32_t first, uint32_t last) const {
    const uint32_t before = first * kPanelRows, end = last == panels() ? rows : last * kPanelRows;
    return {type, end - before, cols, data + first * panel_bytes, panel_bytes};
  }
};

/// Bytes of one panel of `cols` columns (a multiple of 64). Float types pad the columns to a multiple of 32 with zeros.
size_t panel_bytes(WeightType type, uint32_t cols) noexcept;

/// Writes panels [first, last) of `dst.data` from GGUF rows at `src` (row-major, (rows, cols)); missing rows become
/// zeros.
void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept;
/// The same, as fast as a CPU of this level can.
using Repack = decltype(&repack);
enum class Level : uint8_t;
Repack repack_of(Level level) noexcept;

/// Row `row` as floats, `cols` of them: what `dequantize` gives for the source row, to the bit.
void dequantize_row(const PanelMatrix& m, uint32_t row, float* dst) noexcept;

}  // namespace ellm::kernels
