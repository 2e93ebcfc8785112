// The bytes of a panel, and one lane's block between GGUF, panel and floats. Internal to kernels/.
//
// A panel of a quantised type: (header, `blocks` blocks) again and again. In the header and before a block's quants
// stand the scales of the 16 rows:
//   Q8_0 Q4_0 Q5_0   block [f16 d][16]
//   Q4_1 Q5_1        block [f16 d][16] [f16 m][16]
//   Q4_K             header [f16 d][16] [f16 dmin][16]   block [u8 scale][16] [u8 minimum][16]
//   Q6_K             header [f16 d][16]                  block [i8 scale of columns 0…15][16] [… of 16…31][16]
// Then the quants as unsigned codes (weight = code - offset), planes of 64-byte vectors [16 rows][4 columns]:
//   low plane    Q8_0: 8 vectors, vector g = column group g; else 4 vectors, vector j = group j in the low nibbles and
//                group j + 4 in the high ones
//   high plane   Q5: 1 vector, bit g = group g; Q6_K: 2 vectors, bits 2k and 2k + 1 of vector v = group 4v + k
// A panel of a float type: [column][16 rows], columns padded to a multiple of 32.
#pragma once
#include "kernels/panel.h"

namespace ellm::kernels {

struct QuantLayout {
  uint32_t blocks;        // per header
  uint32_t header;        // bytes
  uint32_t scales;        // bytes in front of a block's quants
  uint32_t low, high;     // bytes of the two planes
  int offset_log2;        // 0: no offset
  bool has_minimum;

  constexpr uint32_t block() const { return scales + low + high; }
  constexpr int offset() const { return offset_log2 == 0 ? 0 : 1 << offset_log2; }
};

/// Layout of a quantised type.
constexpr QuantLayout quant_layout(WeightType type) {
  switch (type) {
    case WeightType::q4_0: return {1, 0, 32, 256, 0, 3, false};
    case WeightType::q4_1: return {1, 0, 64, 256, 0, 0, true};
    case WeightType::q5_0: return {1, 0, 32, 256, 64, 4, false};
    case WeightType::q5_1: return {1, 0, 64, 256, 64, 0, true};
    case WeightType::q4_k: return {8, 64, 32, 256, 0, 0, true};
    case WeightType::q6_k: return {8, 32, 32, 256, 128, 5, false};
    default: return {1, 0, 32, 512, 0, 7, false};   // Q8_0
  }
}

/// 32 weights of one row: the codes of group g are the bytes of code[g], first column lowest; scales as stored.
struct LaneBlock {
  uint32_t code[8];
  uint16_t d, m;          // f16: d and m or dmin
  uint8_t sc[2];          // Q4_K: scale, minimum; Q6_K: the scales (i8) of both halves
};

/// Scales of a lane's block as f32: weight = d[column / 16] * (code - offset) + m.
struct LaneScales {
  float d[2];
  float m;                // signed as it is added; unused without a minimum
};

/// Block `block` (of 32 weights) of a GGUF row.
LaneBlock read_gguf(WeightType type, const std::byte* row, size_t block) noexcept;
/// Block `block` of a panel's lane, and its inverse (onto zeroed memory).
LaneBlock read_lane(WeightType type, const std::byte* panel, size_t block, uint32_t lane) noexcept;
void write_lane(WeightType type, std::byte* panel, size_t block, uint32_t lane, const LaneBlock& b) noexcept;

LaneScales lane_scales(WeightType type, const LaneBlock& b) noexcept;
/// The 32 weights.
void expand(WeightType type, const LaneBlock& b, float* dst) noexcept;

}  // namespace ellm::kernels
