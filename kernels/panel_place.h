// Where in a panel a block's bytes stand: what repacking and reading a lane share. Internal to kernels/. Baseline code.
#pragma once
#include <stddef.h>

#include "kernels/panel_layout.h"

namespace ellm::kernels {

struct PanelPlace {
  size_t header, scales, planes;
};
static inline PanelPlace panel_place(const QuantLayout& l, size_t block) {
  const size_t super = block / l.blocks * (l.header + size_t{l.blocks} * l.block());
  PanelPlace p;
  p.header = super;
  p.scales = super + l.header + block % l.blocks * l.block();
  p.planes = p.scales + l.scales;
  return p;
}

/// Offset of scale byte i of a lane: planar, or side by side where both count into one dot product.
static inline size_t scale_byte(const QuantLayout& l, uint32_t lane, size_t i) {
  return l.halves_in_dot ? 2 * lane + i : kPanelRows * i + lane;
}
/// Scale bytes per row and block of a K-quant.
static inline size_t scale_bytes(const QuantLayout& l) { return l.scales / kPanelRows; }

/// The lowest `bits` of each byte.
constexpr uint32_t bytes_of_bits(int bits) { return 0x01010101u * ((1u << bits) - 1); }

/// Of a panel's bytes those that are not padding.
size_t panel_bytes_used(WeightType type, uint32_t cols) noexcept;

}  // namespace ellm::kernels
