// Repacking GGUF rows into panels and back. Baseline code; any thread.
#include "kernels/panel.h"

#include <string.h>

#include "kernels/blocks.h"
#include "kernels/kv_block.h"
#include "kernels/panel_layout.h"

namespace ellm::kernels {
namespace {

constexpr uint32_t kNibbles = 0x0f0f0f0f, kBits = 0x01010101, kPairs = 0x03030303;

/// Where a block stands in its panel.
struct Place {
  size_t header, scales, low, high;
};
Place place_of(const QuantLayout& l, size_t block) {
  const size_t super = block / l.blocks * (l.header + size_t{l.blocks} * l.block());
  Place p;
  p.header = super;
  p.scales = super + l.header + block % l.blocks * l.block();
  p.low = p.scales + l.scales;
  p.high = p.low + l.low;
  return p;
}

uint32_t word(const std::byte* p, uint32_t lane) {
  uint32_t v;
  memcpy(&v, p + 4 * lane, 4);
  return v;
}
void set_word(std::byte* p, uint32_t lane, uint32_t v) { memcpy(p + 4 * lane, &v, 4); }

void write_planes(const QuantLayout& l, std::byte* low, std::byte* high, uint32_t lane, const uint32_t* code) {
  if (l.low == 512) {
    for (int g = 0; g < 8; ++g) set_word(low + 64 * g, lane, code[g]);
    return;
  }
  for (int j = 0; j < 4; ++j) set_word(low + 64 * j, lane, (code[j] & kNibbles) | (code[j + 4] & kNibbles) << 4);
  if (l.high == 64) {
    uint32_t bits = 0;
    for (int g = 0; g < 8; ++g) bits |= (code[g] >> 4 & kBits) << g;
    set_word(high, lane, bits);
  } else if (l.high == 128) {
    for (int v = 0; v < 2; ++v) {
      uint32_t pairs = 0;
      for (int k = 0; k < 4; ++k) pairs |= (code[4 * v + k] >> 4 & kPairs) << (2 * k);
      set_word(high + 64 * v, lane, pairs);
    }
  }
}

void read_planes(const QuantLayout& l, const std::byte* low, const std::byte* high, uint32_t lane, uint32_t* code) {
  if (l.low == 512) {
    for (int g = 0; g < 8; ++g) code[g] = word(low + 64 * g, lane);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    const uint32_t v = word(low + 64 * j, lane);
    code[j] = v & kNibbles;
    code[j + 4] = v >> 4 & kNibbles;
  }
  if (l.high == 64) {
    for (int g = 0; g < 8; ++g) code[g] |= (word(high, lane) >> g & kBits) << 4;
  } else if (l.high == 128) {
    for (int g = 0; g < 8; ++g) code[g] |= (word(high + 64 * (g / 4), lane) >> (2 * (g % 4)) & kPairs) << 4;
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
    memcpy(&b.sc[0], panel + at.scales + lane, 1);
    memcpy(&b.sc[1], panel + at.scales + 16 + lane, 1);
  }
  read_planes(l, panel + at.low, panel + at.high, lane, b.code);
  return b;
}

void write_lane(WeightType type, std::byte* panel, size_t block, uint32_t lane, const LaneBlock& b) noexcept {
  const QuantLayout l = quant_layout(type);
  const Place at = place_of(l, block);
  const bool k_quant = l.blocks > 1;
  std::byte* d = panel + (k_quant ? at.header : at.scales);
  memcpy(d + 2 * lane, &b.d, 2);
  if (l.has_minimum) memcpy(d + 32 + 2 * lane, &b.m, 2);
  if (k_quant) {
    memcpy(panel + at.scales + lane, &b.sc[0], 1);
    memcpy(panel + at.scales + 16 + lane, &b.sc[1], 1);
  }
  write_planes(l, panel + at.low, panel + at.high, lane, b.code);
}

size_t panel_bytes(WeightType type, uint32_t cols) noexcept {
  const size_t blocks = (size_t{cols} + kBlock - 1) / kBlock;
  if (!is_quantised(type)) return blocks * kBlock * kPanelRows * element_bytes(type);
  const QuantLayout l = quant_layout(type);
  const size_t headers = (blocks + l.blocks - 1) / l.blocks;
  return round_up(headers * (l.header + size_t{l.blocks} * l.block()), 64);
}

void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept {
  const BlockShape shape = block_shape(dst.type);
  const size_t row_bytes = size_t{dst.cols} / shape.weights * shape.bytes;
  for (uint32_t p = first; p < last; ++p) {
    std::byte* panel = dst_data + p * dst.panel_bytes;
    const std::byte* rows = src + size_t{p} * kPanelRows * row_bytes;
    const uint32_t left = dst.rows - p * kPanelRows, n = left < kPanelRows ? left : kPanelRows;
    memset(panel, 0, dst.panel_bytes);
    if (!is_quantised(dst.type)) {
      repack_floats(dst, panel, rows, n);
      continue;
    }
    for (uint32_t r = 0; r < n; ++r) {
      for (size_t b = 0; b < dst.cols / kBlock; ++b) {
        write_lane(dst.type, panel, b, r, read_gguf(dst.type, rows + r * row_bytes, b));
      }
    }
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
