// The right-hand side of the matrix products: n token rows of `cols` values, packed in token tiles so that a kernel
// finds the tokens of its register tile at constant distances. A view; memory belongs to the caller.
//
// Rows are cut into tiles of 16, and what is left into 8, 4, 2, 1 (13 rows: 8 + 4 + 1). In a tile of w rows:
//   values:      [block of 32 columns][w rows][32]   int8 (quantised) or f32
//   scale, sums: [block of 32 columns][w rows]; the sums of halves: [block of 32 columns][w rows][2]
// The tile that starts at row r lies at r * padded_cols values and r * blocks scales.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ellm::kernels {

inline constexpr uint32_t kTokenTile = 16;

/// Width of the tile that begins at row `first` (a tile boundary) of `n` rows.
constexpr uint32_t tile_width(uint32_t first, uint32_t n) {
  const uint32_t left = n - first;
  uint32_t w = kTokenTile;
  while (w > left) w >>= 1;
  return w;
}

/// The tile that row `row` of `n` lies in.
struct TokenTile {
  uint32_t first, width;
};
constexpr TokenTile tile_of(uint32_t row, uint32_t n) {
  TokenTile t{row / kTokenTile * kTokenTile, 0};
  for (t.width = tile_width(t.first, n); row >= t.first + t.width; t.width = tile_width(t.first, n)) t.first += t.width;
  return t;
}

/// Packed activations. `f32` is filled for float weights, all others for quantised ones.
struct Activations {
  uint32_t rows = 0, cols = 0;     // tokens, values per token
  int8_t* q = nullptr;             // -127…127
  float* scale = nullptr;          // about max|x| / 127 of the block (fitted, HACKING.md), 0 for a block of zeros
  float* scaled_sum = nullptr;     // scale * (sum of the block's q)
  float* scaled_halves = nullptr;  // the same of columns 0 … 15 and 16 … 31 (Q2_K's minima)
  int16_t* half_sums = nullptr;    // sums of q of columns 0 … 15 and 16 … 31 (Q3_K's offset)
  // What a weight's offset adds to the integer dot product: minus the sum of the block's q, times the offset.
  int32_t* minus_sum8 = nullptr;      // Q4_0
  int32_t* minus_sum16 = nullptr;     // Q5_0, MXFP4
  int32_t* minus_sum128 = nullptr;    // Q8_0, whose panels hold the weights plus 128; IQ4's codebook
  int32_t* minus_halves32 = nullptr;  // Q6_K: of the block's columns 0 … 15 and 16 … 31
  // The same as two sums of 16 bits, of columns 0 and 1 of every four, 2 and 3 of every four. Only the AVX2 level reads
  // them; those above leave them unwritten.
  int16_t* minus_pairs16 = nullptr;
  int16_t* minus_pairs32 = nullptr;
  float* f32 = nullptr;  // the values themselves, zero-padded

  uint32_t blocks() const { return (cols + 31) / 32; }
  uint32_t padded_cols() const { return blocks() * 32; }
  /// Bytes that `bind` needs for `rows` x `cols` (both forms).
  static size_t bytes(uint32_t rows, uint32_t cols);
  /// Lays the arrays out in `memory` (64-byte aligned).
  static Activations bind(void* memory, uint32_t rows, uint32_t cols);
};

/// x -= scale * q over columns [32 * first_block, 32 * last_block) of row `row`: what packing left of the row at `x`.
void subtract_packed(const Activations& packed, uint32_t row, uint32_t first_block, uint32_t last_block,
                     float* x) noexcept;

}  // namespace ellm::kernels
