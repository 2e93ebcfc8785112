// The tile intrinsics over plain loops (Intel SDM volume 1, 18; volume 2, LDTILECFG, TILELOADD, TDPBSSD): eight tiles a
// thread, of palette 1. What would fault aborts and says why.
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

struct EmulatedTile {
  int rows, row_bytes;  // 0: not configured
  uint8_t bytes[16][64];
};
thread_local EmulatedTile emulated_tiles[8];

inline void require_of_tiles(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "emulated AMX: %s\n", what);
  abort();
}
inline EmulatedTile& emulated_tile(int number) {
  require_of_tiles(number >= 0 && number < 8, "there are tiles 0 to 7");
  require_of_tiles(emulated_tiles[number].rows > 0, "a tile that is not configured");
  return emulated_tiles[number];
}

inline void emulated_tile_release() { memset(emulated_tiles, 0, sizeof emulated_tiles); }

inline void emulated_tile_loadconfig(const void* config) {
  uint8_t bytes[64];
  memcpy(bytes, config, sizeof bytes);
  emulated_tile_release();
  require_of_tiles(bytes[0] == 1, "the palette is not 1");
  require_of_tiles(bytes[1] == 0, "a start row");  // it is for what a fault has interrupted
  for (int i = 2; i < 64; ++i)
    require_of_tiles((i >= 16 && i < 32) || (i >= 48 && i < 56) || bytes[i] == 0, "a reserved byte is not 0");
  for (int i = 0; i < 8; ++i) {
    const int rows = bytes[48 + i], row_bytes = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8;
    require_of_tiles(rows <= 16 && row_bytes <= 64, "a tile larger than 16 rows of 64 bytes");
    require_of_tiles((rows == 0) == (row_bytes == 0), "rows without bytes or bytes without rows");
    emulated_tiles[i].rows = rows, emulated_tiles[i].row_bytes = row_bytes;
  }
}

inline void emulated_tile_zero(int to) {
  EmulatedTile& tile = emulated_tile(to);
  memset(tile.bytes, 0, sizeof tile.bytes);
}

inline void emulated_tile_loadd(int to, const void* from, ptrdiff_t stride) {
  emulated_tile_zero(to);
  EmulatedTile& tile = emulated_tile(to);
  for (int row = 0; row < tile.rows; ++row)
    memcpy(tile.bytes[row], static_cast<const uint8_t*>(from) + row * stride, static_cast<size_t>(tile.row_bytes));
}

inline void emulated_tile_stored(int from, void* to, ptrdiff_t stride) {
  const EmulatedTile& tile = emulated_tile(from);
  for (int row = 0; row < tile.rows; ++row)
    memcpy(static_cast<uint8_t*>(to) + row * stride, tile.bytes[row], static_cast<size_t>(tile.row_bytes));
}

/// sums[m][n] += the products of a's 4 bytes (m, k) and b's 4 bytes (k, n), for all k.
inline void emulated_tile_dpbssd(int sums, int left, int right) {
  EmulatedTile& c = emulated_tile(sums);
  const EmulatedTile &a = emulated_tile(left), &b = emulated_tile(right);
  require_of_tiles(sums != left && sums != right && left != right, "operands of one product are the same tile");
  require_of_tiles(c.row_bytes % 4 == 0 && a.row_bytes % 4 == 0, "rows of a product that are not whole fours");
  require_of_tiles(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes / 4 == b.rows,
                   "shapes that do not fit a product");
  for (int m = 0; m < c.rows; ++m) {
    uint32_t row[16];  // they wrap
    memcpy(row, c.bytes[m], sizeof row);
    for (int k = 0; k < b.rows; ++k) {
      for (int n = 0; n < c.row_bytes / 4; ++n) {
        for (int i = 0; i < 4; ++i) {
          const int product = static_cast<int8_t>(a.bytes[m][4 * k + i]) * static_cast<int8_t>(b.bytes[k][4 * n + i]);
          row[n] += static_cast<uint32_t>(product);
        }
      }
    }
    memset(c.bytes[m], 0, sizeof c.bytes[m]);
    memcpy(c.bytes[m], row, static_cast<size_t>(c.row_bytes));
  }
}

}  // namespace

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig(config) emulated_tile_loadconfig(config)
#define _tile_release() emulated_tile_release()
#define _tile_zero(to) emulated_tile_zero(to)
#define _tile_loadd(to, from, stride) emulated_tile_loadd(to, from, stride)
#define _tile_stored(from, to, stride) emulated_tile_stored(from, to, stride)
#define _tile_dpbssd(sums, left, right) emulated_tile_dpbssd(sums, left, right)
