// The bytes of a panel, and one lane's block between GGUF, panel and floats. Internal to kernels/.
//
// A panel of a quantised type: (header, `blocks` blocks) again and again. In the header and before a block's quants
// stand the scales of the 16 rows:
//   Q8_0 Q4_0 Q5_0 IQ4_NL   block [f16 d][16]
//   MXFP4                   block [bf16 d][16]: 2^-128 … 2^127, all exact
//   Q4_1 Q5_1               block [f16 d][16] [f16 m][16]
//   Q4_K Q5_K               header [f16 d][16] [f16 dmin][16]   block [u8 scale][16] [u8 minimum][16]
//   Q6_K                    header [f16 d][16]    block [i8 scale of columns 0…15][16] [… of 16…31][16]
//   IQ4_XS                  header [f16 d][16]    block [i8 scale][16]
//   Q2_K                    header [f16 d][16] [f16 dmin][16]   block [(scale | minimum << 4) of both halves][16]
//   Q3_K                    header [f16 -d][16]   block [i8 -scale of both halves][16]: HACKING.md says why negated
// Then the quants as unsigned codes of `bits` bits, in `bits` 64-byte vectors [16 rows][4 columns]: column group j <
// bits in the low bits of vector j's bytes; the other groups in what is left above, whole where that fits
// (`PlanePieces`). A panel of a float type: [column][16 rows], columns padded to a multiple of 32.
#pragma once
#include "kernels/panel.h"

namespace ellm::kernels {

struct QuantLayout {
  uint32_t blocks = 1;  // per header
  uint32_t header = 0;  // bytes
  uint32_t scales = 0;  // bytes in front of a block's quants
  int bits = 0;         // of a code
  int offset = 0;       // the weight is code - offset; with a codebook: what makes its values unsigned
  bool has_minimum = false;
  const int8_t* codebook = nullptr;  // 16 weights by code
  bool halves_in_dot = false;        // integer scales of both halves count into a block's integer dot product

  constexpr uint32_t block() const { return scales + static_cast<uint32_t>(bits) * 64; }
  constexpr int weight(uint32_t code) const {
    return codebook != nullptr ? codebook[code] : static_cast<int>(code) - offset;
  }
};

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the E2M1 values

/// Layout of a quantised type.
static constexpr QuantLayout quant_layout(WeightType type) {
  switch (type) {
    case WeightType::q4_0: return {.scales = 32, .bits = 4, .offset = 8};
    case WeightType::q4_1: return {.scales = 64, .bits = 4, .has_minimum = true};
    case WeightType::q5_0: return {.scales = 32, .bits = 5, .offset = 16};
    case WeightType::q5_1: return {.scales = 64, .bits = 5, .has_minimum = true};
    case WeightType::q2_k:
      return {.blocks = 8, .header = 64, .scales = 32, .bits = 2, .has_minimum = true, .halves_in_dot = true};
    case WeightType::q3_k:
      return {.blocks = 8, .header = 32, .scales = 32, .bits = 3, .offset = 4, .halves_in_dot = true};
    case WeightType::q4_k: return {.blocks = 8, .header = 64, .scales = 32, .bits = 4, .has_minimum = true};
    case WeightType::q5_k: return {.blocks = 8, .header = 64, .scales = 32, .bits = 5, .has_minimum = true};
    case WeightType::q6_k: return {.blocks = 8, .header = 32, .scales = 32, .bits = 6, .offset = 32};
    case WeightType::iq4_nl: return {.scales = 32, .bits = 4, .offset = 128, .codebook = kIq4Values};
    case WeightType::iq4_xs:
      return {.blocks = 8, .header = 32, .scales = 16, .bits = 4, .offset = 128, .codebook = kIq4Values};
    case WeightType::mxfp4: return {.scales = 32, .bits = 4, .offset = 16, .codebook = kMxfp4Values};
    default: return {.scales = 32, .bits = 8, .offset = 128};  // Q8_0
  }
}

/// Where the codes of a column group are: bits [to, to + width) at bit `bit` of the bytes of vector `vector`.
struct PlanePiece {
  int vector, bit, width, to;
};
struct PlanePieces {
  PlanePiece piece[3];
  int count;
};
/// Groups are laid down in order: into a vector that has room for the whole of one, else in parts wherever room is
/// left.
static constexpr PlanePieces plane_pieces(int bits, int group) {
  if (group < bits) return {{{group, 0, bits, 0}}, 1};
  int used[8] = {bits, bits, bits, bits, bits, bits, bits, bits};
  PlanePieces p{};
  for (int g = bits; g <= group; ++g) {
    p = {};
    int whole = 0, done = 0;
    while (whole < bits && 8 - used[whole] < bits) ++whole;
    for (int v = whole < bits ? whole : 0; done < bits; ++v) {
      const int room = 8 - used[v], width = room < bits - done ? room : bits - done;
      if (width == 0) continue;
      p.piece[p.count++] = {v, used[v], width, done};
      used[v] += width;
      done += width;
    }
  }
  return p;
}

/// 32 weights of one row: the codes of group g are the bytes of code[g], first column lowest; scales as in the panel.
struct LaneBlock {
  uint32_t code[8];
  uint16_t d, m;  // f16 (MXFP4: bf16): d and m or dmin
  uint8_t sc[2];  // Q4_K Q5_K: scale, minimum; IQ4_XS: the scale; else what belongs to each half
};

/// Scales of a lane's block as f32: weight = d[column / 16] * layout.weight(code) + m[column / 16].
struct LaneScales {
  float d[2];
  float m[2];  // signed as it is added; unused without a minimum
};

/// Block `block` (of 32 weights) of a GGUF row.
LaneBlock read_gguf(WeightType type, const std::byte* row, size_t block) noexcept;
/// Block `block` of a panel's lane.
LaneBlock read_lane(WeightType type, const std::byte* panel, size_t block, uint32_t lane) noexcept;

LaneScales lane_scales(WeightType type, const LaneBlock& b) noexcept;
/// Q2_K, Q3_K: the integer scale of each half (Q3_K: negated).
static constexpr int half_scale(WeightType type, uint8_t sc) {
  return type == WeightType::q2_k ? sc & 15 : static_cast<int8_t>(sc);
}
/// The 32 weights.
void expand(WeightType type, const LaneBlock& b, float* dst) noexcept;

}  // namespace ellm::kernels
