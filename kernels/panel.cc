// Repacking GGUF rows into panels and back. Baseline code; any thread.
#include "kernels/panel.h"

#include <string.h>

#include <utility>

#include "kernels/blocks.h"
#include "kernels/kv_block.h"
#include "kernels/panel_layout.h"
#include "kernels/read_block.h"

namespace ellm::kernels {
namespace {

/// Where a block stands in its panel.
struct Place {
  size_t header, scales, planes;
};
Place place_of(const QuantLayout& l, size_t block) {
  const size_t super = block / l.blocks * (l.header + size_t{l.blocks} * l.block());
  Place p;
  p.header = super;
  p.scales = super + l.header + block % l.blocks * l.block();
  p.planes = p.scales + l.scales;
  return p;
}

/// Offset of scale byte i of a lane: planar, or side by side where both count into one dot product.
size_t scale_byte(const QuantLayout& l, uint32_t lane, size_t i) {
  return l.halves_in_dot ? 2 * lane + i : kPanelRows * i + lane;
}
/// Scale bytes per row and block of a K-quant.
size_t scale_bytes(const QuantLayout& l) { return l.scales / kPanelRows; }

uint32_t word(const std::byte* p, uint32_t lane) {
  uint32_t v;
  memcpy(&v, p + 4 * lane, 4);
  return v;
}
void set_word(std::byte* p, uint32_t lane, uint32_t v) { memcpy(p + 4 * lane, &v, 4); }

/// The lowest `bits` of each byte.
constexpr uint32_t bytes_of_bits(int bits) { return 0x01010101u * ((1u << bits) - 1); }

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

/// Group g's code into its vectors. Everything is known at compile time: repacking decides how long a cold start takes.
template <int bits, int g>
inline void put_group(uint32_t* vectors, uint32_t code) {
  constexpr PlanePieces p = plane_pieces(bits, g);
  const auto put = [&]<int i>() {
    constexpr PlanePiece piece = p.piece[i];
    vectors[piece.vector] |= (code >> piece.to & bytes_of_bits(piece.width)) << piece.bit;
  };
  put.template operator()<0>();
  if constexpr (p.count > 1) put.template operator()<1>();
  if constexpr (p.count > 2) put.template operator()<2>();
}
template <int bits>
inline void write_planes(std::byte* planes, uint32_t lane, const uint32_t* code) {
  uint32_t vectors[bits] = {};
  [&]<int... g>(std::integer_sequence<int, g...>) {
    (put_group<bits, g>(vectors, code[g]), ...);
  }(std::make_integer_sequence<int, 8>());
  for (int v = 0; v < bits; ++v) set_word(planes + 64 * v, lane, vectors[v]);
}

/// One lane's block: every byte of it.
template <WeightType type>
inline void put_lane(std::byte* panel, size_t block, uint32_t lane, const LaneBlock& b) {
  constexpr QuantLayout l = quant_layout(type);
  const Place at = place_of(l, block);
  constexpr bool k_quant = l.blocks > 1;
  std::byte* d = panel + (k_quant ? at.header : at.scales);
  memcpy(d + 2 * lane, &b.d, 2);
  if constexpr (l.has_minimum) memcpy(d + 32 + 2 * lane, &b.m, 2);
  if constexpr (k_quant) {
    for (size_t i = 0; i < scale_bytes(l); ++i) memcpy(panel + at.scales + scale_byte(l, lane, i), &b.sc[i], 1);
  }
  write_planes<l.bits>(panel + at.planes, lane, b.code);
}

/// Block by block, all rows of one: the vectors of a block stay in the nearest cache until they are full.
template <WeightType type>
void repack_blocks(const PanelMatrix& m, std::byte* panel, const std::byte* rows, size_t row_bytes, uint32_t n) {
  const BlockShape shape = block_shape(type);
  for (size_t b = 0; b < m.cols / kBlock; ++b) {
    for (uint32_t r = 0; r < n; ++r) put_lane<type>(panel, b, r, read_block(type, shape, rows + r * row_bytes, b));
  }
}

/// Calls of<type>() of a quantised type's instance.
template <class Function>
void with_type(WeightType type, const Function& of) {
  switch (type) {
    case WeightType::q4_0: return of.template operator()<WeightType::q4_0>();
    case WeightType::q4_1: return of.template operator()<WeightType::q4_1>();
    case WeightType::q5_0: return of.template operator()<WeightType::q5_0>();
    case WeightType::q5_1: return of.template operator()<WeightType::q5_1>();
    case WeightType::q2_k: return of.template operator()<WeightType::q2_k>();
    case WeightType::q3_k: return of.template operator()<WeightType::q3_k>();
    case WeightType::q4_k: return of.template operator()<WeightType::q4_k>();
    case WeightType::q5_k: return of.template operator()<WeightType::q5_k>();
    case WeightType::q6_k: return of.template operator()<WeightType::q6_k>();
    case WeightType::iq4_nl: return of.template operator()<WeightType::iq4_nl>();
    case WeightType::iq4_xs: return of.template operator()<WeightType::iq4_xs>();
    case WeightType::mxfp4: return of.template operator()<WeightType::mxfp4>();
    default: return of.template operator()<WeightType::q8_0>();
  }
}

void read_planes(const std::byte* planes, int bits, uint32_t lane, uint32_t* code) {
  for (int g = 0; g < 8; ++g) {
    const PlanePieces& p = kPieces.of[bits][g];
    for (int i = 0; i < p.count; ++i) {
      const PlanePiece& piece = p.piece[i];
      code[g] |= (word(planes + 64 * piece.vector, lane) >> piece.bit & bytes_of_bits(piece.width)) << piece.to;
    }
  }
}

uint32_t element_bytes(WeightType type) { return block_shape(type).bytes; }

void repack_floats(const PanelMatrix& m, std::byte* panel, const std::byte* src, uint32_t rows) {
  const size_t size = element_bytes(m.type);
  for (uint32_t r = 0; r < rows; ++r) {
    const std::byte* row = src + size_t{r} * m.cols * size;
    if (size == 4) {
      for (size_t c = 0; c < m.cols; ++c) memcpy(panel + (c * kPanelRows + r) * 4, row + c * 4, 4);
    } else {
      for (size_t c = 0; c < m.cols; ++c) memcpy(panel + (c * kPanelRows + r) * 2, row + c * 2, 2);
    }
  }
}

}  // namespace

LaneBlock read_lane(WeightType type, const std::byte* panel, size_t block, uint32_t lane) noexcept {
  const QuantLayout l = quant_layout(type);
  const Place at = place_of(l, block);
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

namespace {
size_t panel_bytes_used(WeightType type, uint32_t cols) {
  const size_t blocks = (size_t{cols} + kBlock - 1) / kBlock;
  if (!is_quantised(type)) return blocks * kBlock * kPanelRows * element_bytes(type);
  const QuantLayout l = quant_layout(type);
  const size_t headers = (blocks + l.blocks - 1) / l.blocks;
  return headers * (l.header + size_t{l.blocks} * l.block());
}
}  // namespace

size_t panel_bytes(WeightType type, uint32_t cols) noexcept { return round_up(panel_bytes_used(type, cols), 64); }

void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept {
  const BlockShape shape = block_shape(dst.type);
  const size_t row_bytes = size_t{dst.cols} / shape.weights * shape.bytes;
  const bool padded = dst.cols % kBlock != 0 || panel_bytes_used(dst.type, dst.cols) != dst.panel_bytes;
  for (uint32_t p = first; p < last; ++p) {
    std::byte* panel = dst_data + p * dst.panel_bytes;
    const std::byte* rows = src + size_t{p} * kPanelRows * row_bytes;
    const uint32_t left = dst.rows - p * kPanelRows, n = left < kPanelRows ? left : kPanelRows;
    if (n < kPanelRows || padded) memset(panel, 0, dst.panel_bytes);
    if (!is_quantised(dst.type)) {
      repack_floats(dst, panel, rows, n);
      continue;
    }
    with_type(dst.type, [&]<WeightType type>() { repack_blocks<type>(dst, panel, rows, row_bytes, n); });
  }
}

void dequantize_row(const PanelMatrix& m, uint32_t row, float* dst) noexcept {
  const std::byte* panel = m.data + row / kPanelRows * m.panel_bytes;
  const uint32_t lane = row % kPanelRows;
  if (is_quantised(m.type)) {
    for (size_t b = 0; b < m.cols / kBlock; ++b) expand(m.type, read_lane(m.type, panel, b, lane), dst + b * kBlock);
    return;
  }
  const size_t size = element_bytes(m.type);
  for (size_t c = 0; c < m.cols; ++c) dequantize(m.type, panel + (c * kPanelRows + lane) * size, 1, dst + c);
}

}  // namespace ellm::kernels
