// Panels: their sizes, and what stands in them. Baseline code; any thread.
#include "kernels/panel.h"

#include <string.h>

#include "kernels/blocks.h"
#include "kernels/panel_layout.h"
#include "kernels/panel_place.h"

namespace ellm::kernels {
namespace {

uint32_t word(const std::byte* p, uint32_t lane) {
  uint32_t v;
  memcpy(&v, p + 4 * lane, 4);
  return v;
}

/// plane_pieces of all code widths that occur.
struct PieceTable {
  PlanePieces of[9][8] = {};
  constexpr PieceTable() {
    for (int bits = 2; bits <= 8; ++bits) {
      for (int g = 0; g < 8 && bits != 7; ++g) of[bits][g] = plane_pieces(bits, g);
    }
  }
};
constexpr PieceTable kPieces;

void read_planes(const std::byte* planes, int bits, uint32_t lane, uint32_t* code) {
  for (int g = 0; g < 8; ++g) {
    const PlanePieces& p = kPieces.of[bits][g];
    for (int i = 0; i < p.count; ++i) {
      const PlanePiece& piece = p.piece[i];
      code[g] |= (word(planes + 64 * piece.vector, lane) >> piece.bit & bytes_of_bits(piece.width)) << piece.to;
    }
  }
}

}  // namespace

LaneBlock read_lane(WeightType type, const std::byte* panel, size_t block, uint32_t lane) noexcept {
  const QuantLayout l = quant_layout(type);
  const PanelPlace at = panel_place(l, block);
  const bool k_quant = l.blocks > 1;
  const std::byte* d = panel + (k_quant ? at.header : at.scales);
  LaneBlock b{};
  memcpy(&b.d, d + 2 * lane, 2);
  if (l.has_minimum) memcpy(&b.m, d + 32 + 2 * lane, 2);
  if (k_quant) {
    for (size_t i = 0; i < scale_bytes(l); ++i) memcpy(&b.sc[i], panel + at.scales + scale_byte(l, lane, i), 1);
  }
  read_planes(panel + at.planes, l.bits, lane, b.code);
  return b;
}

size_t panel_bytes_used(WeightType type, uint32_t cols) noexcept {
  const size_t blocks = (size_t{cols} + kBlock - 1) / kBlock;
  if (!is_quantised(type)) return blocks * kBlock * kPanelRows * block_shape(type).bytes;
  const QuantLayout l = quant_layout(type);
  const size_t headers = (blocks + l.blocks - 1) / l.blocks;
  return headers * (l.header + size_t{l.blocks} * l.block());
}

size_t panel_bytes(WeightType type, uint32_t cols) noexcept { return (panel_bytes_used(type, cols) + 63) / 64 * 64; }

void dequantize_row(const PanelMatrix& m, uint32_t row, float* dst) noexcept {
  const std::byte* panel = m.data + row / kPanelRows * m.panel_bytes;
  const uint32_t lane = row % kPanelRows;
  if (is_quantised(m.type)) {
    for (size_t b = 0; b < m.cols / kBlock; ++b) expand(m.type, read_lane(m.type, panel, b, lane), dst + b * kBlock);
    return;
  }
  const size_t size = block_shape(m.type).bytes;
  for (size_t c = 0; c < m.cols; ++c) dequantize(m.type, panel + (c * kPanelRows + lane) * size, 1, dst + c);
}

}  // namespace ellm::kernels
