// Matrix products of the scalar level: the specification, in the order of HACKING.md's fixed-order rule.
#include <math.h>
#include <string.h>

#include "kernels/block_sums.h"
#include "kernels/blocks.h"
#include "kernels/panel_layout.h"
#include "kernels/scalar/level.h"

namespace ellm::kernels::scalar {
namespace {

/// A block of a panel: 16 rows, 32 columns. Scales and minima of columns 0…15 and 16…31.
struct Block {
  int16_t w[kBlock][kPanelRows];  // offset and the integer scales of halves included
  float d[2][kPanelRows];
  float m[2][kPanelRows];
};

void read_block(const PanelMatrix& w, const std::byte* panel, uint32_t block, Block& out) {
  const QuantLayout layout = quant_layout(w.type);
  for (uint32_t r = 0; r < kPanelRows; ++r) {
    const LaneBlock lane = read_lane(w.type, panel, block, r);
    const LaneScales scales = lane_scales(w.type, lane);
    for (int half = 0; half < 2; ++half) {
      out.d[half][r] = layout.halves_in_dot ? f16_to_f32(lane.d) : scales.d[half];
      out.m[half][r] = scales.m[half];
    }
    for (uint32_t c = 0; c < kBlock; ++c) {
      const int weight = layout.weight(lane.code[c / 4] >> (c % 4 * 8) & 255);
      out.w[c][r] = static_cast<int16_t>(layout.halves_in_dot ? weight * half_scale(w.type, lane.sc[c / 16]) : weight);
    }
  }
}

/// acc += weights * q over `n` columns that share a scale.
void add_group(const int16_t (*w)[kPanelRows], const float* d, const int8_t* q, float scale, uint32_t n, float* acc) {
  int32_t dot[kPanelRows] = {};
  for (uint32_t c = 0; c < n; ++c) {
    for (uint32_t r = 0; r < kPanelRows; ++r) dot[r] += w[c][r] * q[c];
  }
  for (uint32_t r = 0; r < kPanelRows; ++r) acc[r] = fmaf(static_cast<float>(dot[r]), d[r] * scale, acc[r]);
}

void add_minimum(const float* m, float scaled_sum, float* acc) {
  for (uint32_t r = 0; r < kPanelRows; ++r) acc[r] = fmaf(m[r], scaled_sum, acc[r]);
}

/// The quantised product of one panel with a tile of tokens.
void multiply_quantised(const MatmulArgs& a, const std::byte* panel, TokenTile tile, float (*acc)[kPanelRows]) {
  const Activations& x = a.x;
  const bool halves = a.w.type == WeightType::q6_k, minimum = quant_layout(a.w.type).has_minimum;
  const bool two_minima = a.w.type == WeightType::q2_k;
  const size_t values = size_t{tile.first} * x.padded_cols(), scales = size_t{tile.first} * x.blocks();
  Block block;
  for (uint32_t b = 0; b < x.blocks(); ++b) {
    read_block(a.w, panel, b, block);
    for (uint32_t t = 0; t < tile.width; ++t) {
      const size_t i = scales + size_t{b} * tile.width + t;
      const int8_t* q = x.q + values + (size_t{b} * tile.width + t) * kBlock;
      if (halves) {
        add_group(block.w, block.d[0], q, x.scale[i], 16, acc[t]);
        add_group(block.w + 16, block.d[1], q + 16, x.scale[i], 16, acc[t]);
      } else {
        add_group(block.w, block.d[0], q, x.scale[i], kBlock, acc[t]);
      }
      if (two_minima) {
        add_minimum(block.m[0], x.scaled_halves[2 * i], acc[t]);
        add_minimum(block.m[1], x.scaled_halves[2 * i + 1], acc[t]);
      } else if (minimum) {
        add_minimum(block.m[0], x.scaled_sum[i], acc[t]);
      }
    }
  }
}

/// The float product: four accumulators per lane.
void multiply_floats(const MatmulArgs& a, const std::byte* panel, TokenTile tile, float (*acc)[kPanelRows]) {
  const Activations& x = a.x;
  const size_t size = block_shape(a.w.type).bytes;
  float part[kTokenTile][4][kPanelRows] = {};
  for (uint32_t c = 0; c < x.padded_cols(); ++c) {
    float w[kPanelRows];
    dequantize(a.w.type, panel + size_t{c} * kPanelRows * size, kPanelRows, w);
    const float* block = x.f32 + size_t{tile.first} * x.padded_cols() + size_t{c / kBlock} * tile.width * kBlock;
    for (uint32_t t = 0; t < tile.width; ++t) {
      float* sum = part[t][c % 4];
      for (uint32_t r = 0; r < kPanelRows; ++r) sum[r] = fmaf(w[r], block[t * kBlock + c % kBlock], sum[r]);
    }
  }
  for (uint32_t t = 0; t < tile.width; ++t) {
    const auto& sum = part[t];
    for (uint32_t r = 0; r < kPanelRows; ++r) acc[t][r] = (sum[0][r] + sum[1][r]) + (sum[2][r] + sum[3][r]);
  }
}

void write_tile(const MatmulArgs& a, uint32_t panel, TokenTile tile, const float (*acc)[kPanelRows]) {
  const uint32_t row = panel * kPanelRows, left = a.w.rows - row, rows = left < kPanelRows ? left : kPanelRows;
  for (uint32_t t = 0; t < tile.width; ++t) {
    float* out = a.out + (tile.first + t) * a.out_stride + row;
    for (uint32_t r = 0; r < rows; ++r) {
      float v = acc[t][r];
      if (a.bias != nullptr) v += a.bias[row + r];
      if (a.accumulate) v += out[r];
      out[r] = v;
    }
  }
}

}  // namespace

void matmul(const MatmulArgs& a) noexcept {
  for (uint32_t p = a.first_panel; p < a.last_panel; ++p) {
    const std::byte* panel = a.w.data + p * a.w.panel_bytes;
    for (TokenTile tile{0, 0}; tile.first < a.x.rows; tile.first += tile.width) {
      tile.width = tile_width(tile.first, a.x.rows);
      float acc[kTokenTile][kPanelRows] = {};
      if (is_quantised(a.w.type)) {
        multiply_quantised(a, panel, tile, acc);
      } else {
        multiply_floats(a, panel, tile, acc);
      }
      write_tile(a, p, tile, acc);
    }
  }
}

/// The fitted scale of a block: 16 lanes, then their tree. Missing values are 0.
static float fit(const float* x, const int8_t* q, uint32_t n, float largest) {
  float xq[16], qq = 0;
  for (uint32_t j = 0; j < 16; ++j) {
    const float low = j < n ? x[j] : 0, high = j + 16 < n ? x[j + 16] : 0;
    xq[j] = fmaf(high, q[j + 16], low * q[j]);
    qq += static_cast<float>(q[j] * q[j] + q[j + 16] * q[j + 16]);
  }
  for (uint32_t half = 8; half > 0; half /= 2) {
    for (uint32_t j = 0; j < half; ++j) xq[j] += xq[j + half];
  }
  return fitted_scale(xq[0], qq, largest);
}

void pack_q8(const Activations& dst, uint32_t row, const float* x, uint32_t first_block, uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; ++b, x += kBlock) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    const size_t i = size_t{tile.first} * dst.blocks() + in_tile;
    int8_t* q = dst.q + size_t{tile.first} * dst.padded_cols() + in_tile * kBlock;
    const uint32_t left = dst.cols - b * kBlock, n = left < kBlock ? left : kBlock;
    float a = 0;
    for (uint32_t c = 0; c < n; ++c) {
      const float v = fabsf(x[c]);
      a = v > a ? v : a;  // NaN counts as nothing
    }
    const bool zero = a < 1e-30f;
    const float factor = zero ? 0 : 127 / a;
    PairSums pairs{};
    for (uint32_t c = 0; c < kBlock; ++c) {
      float v = c < n && !zero ? x[c] * factor : 0;
      v = v > -127 ? v : -127;  // NaN becomes -127
      v = v < 127 ? v : 127;
      q[c] = static_cast<int8_t>(lrintf(v));
      pairs.of[c / 16 * 2 + c % 4 / 2] += q[c];
    }
    store_sums(dst, i, zero ? 0 : fit(x, q, n, a), pairs);
  }
}

void pack_f32(const Activations& dst, uint32_t row, const float* x, uint32_t first_block,
              uint32_t last_block) noexcept {
  const TokenTile tile = tile_of(row, dst.rows);
  for (uint32_t b = first_block; b < last_block; ++b, x += kBlock) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    float* to = dst.f32 + size_t{tile.first} * dst.padded_cols() + in_tile * kBlock;
    const uint32_t left = dst.cols - b * kBlock, n = left < kBlock ? left : kBlock;
    memcpy(to, x, n * sizeof(float));
    for (uint32_t c = n; c < kBlock; ++c) to[c] = 0;
  }
}

}  // namespace ellm::kernels::scalar
