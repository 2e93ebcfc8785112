// How packed activations lie in memory. Baseline code; any thread.
#include "kernels/activations.h"

#include "kernels/kv_block.h"

namespace ellm::kernels {
namespace {

// Where each array begins; every one at a multiple of 64 bytes.
struct Layout {
  size_t q, scale, scaled_sum, scaled_halves, half_sums, minus_sum8, minus_sum16, minus_sum128, minus_halves32,
      minus_pairs16, minus_pairs32, f32, end;
};

Layout layout(uint32_t rows, uint32_t cols) {
  Activations shape;
  shape.cols = cols;
  const size_t values = size_t{rows} * shape.padded_cols(), scales = round_up(size_t{rows} * shape.blocks() * 4, 64);
  Layout l;
  l.q = 0;
  l.scale = round_up(values, 64);
  l.scaled_sum = l.scale + scales;
  l.scaled_halves = l.scaled_sum + scales;
  l.half_sums = l.scaled_halves + round_up(size_t{rows} * shape.blocks() * 8, 64);
  l.minus_sum8 = l.half_sums + scales;
  l.minus_sum16 = l.minus_sum8 + scales;
  l.minus_sum128 = l.minus_sum16 + scales;
  l.minus_halves32 = l.minus_sum128 + scales;
  l.minus_pairs16 = l.minus_halves32 + round_up(size_t{rows} * shape.blocks() * 8, 64);
  l.minus_pairs32 = l.minus_pairs16 + scales;
  l.f32 = l.minus_pairs32 + round_up(size_t{rows} * shape.blocks() * 8, 64);
  l.end = l.f32 + round_up(values * 4, 64);
  return l;
}

}  // namespace

size_t Activations::bytes(uint32_t rows, uint32_t cols) { return layout(rows, cols).end; }

Activations Activations::bind(void* memory, uint32_t rows, uint32_t cols) {
  const Layout l = layout(rows, cols);
  char* base = static_cast<char*>(memory);
  Activations a;
  a.rows = rows;
  a.cols = cols;
  a.q = reinterpret_cast<int8_t*>(base + l.q);
  a.scale = reinterpret_cast<float*>(base + l.scale);
  a.scaled_sum = reinterpret_cast<float*>(base + l.scaled_sum);
  a.scaled_halves = reinterpret_cast<float*>(base + l.scaled_halves);
  a.half_sums = reinterpret_cast<int16_t*>(base + l.half_sums);
  a.minus_sum8 = reinterpret_cast<int32_t*>(base + l.minus_sum8);
  a.minus_sum16 = reinterpret_cast<int32_t*>(base + l.minus_sum16);
  a.minus_sum128 = reinterpret_cast<int32_t*>(base + l.minus_sum128);
  a.minus_halves32 = reinterpret_cast<int32_t*>(base + l.minus_halves32);
  a.minus_pairs16 = reinterpret_cast<int16_t*>(base + l.minus_pairs16);
  a.minus_pairs32 = reinterpret_cast<int16_t*>(base + l.minus_pairs32);
  a.f32 = reinterpret_cast<float*>(base + l.f32);
  return a;
}

void subtract_packed(const Activations& packed, uint32_t row, uint32_t first_block, uint32_t last_block,
                     float* x) noexcept {
  const TokenTile tile = tile_of(row, packed.rows);
  for (uint32_t b = first_block; b < last_block; ++b) {
    const size_t in_tile = size_t{b} * tile.width + (row - tile.first);
    const float scale = packed.scale[size_t{tile.first} * packed.blocks() + in_tile];
    const int8_t* q = packed.q + size_t{tile.first} * packed.padded_cols() + in_tile * 32;
    for (uint32_t c = 0; c < 32; ++c) x[b * 32 + c] -= scale * static_cast<float>(q[c]);
  }
}

}  // namespace ellm::kernels
