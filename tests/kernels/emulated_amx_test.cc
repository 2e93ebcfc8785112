// The emulated tiles against the processor's, where it has them; and what they refuse.
#include "tests/kernels/emulated_amx.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/kernels/levels.h"

namespace ellm::kernels {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[8] = {}, reserved_row_bytes[8] = {};
  uint8_t rows[8] = {}, reserved_rows[8] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// Tile 0 (m, n) += tile 1 (m, k) * tile 2 (k, n).
TileConfig product(int m, int n, int k) {
  TileConfig c;
  const int rows[] = {m, m, k}, words[] = {n, k, n};
  for (int i = 0; i < 3; ++i)
    c.rows[i] = static_cast<uint8_t>(rows[i]), c.row_bytes[i] = static_cast<uint16_t>(4 * words[i]);
  return c;
}

struct Operands {
  std::vector<uint8_t> bytes[3];  // tiles of 16 rows, kStride apart
  static constexpr int64_t kStride = 80;
};

void emulated(const TileConfig& config, Operands& o) {
  _tile_loadconfig(&config);
  _tile_loadd(0, o.bytes[0].data(), o.kStride);
  _tile_loadd(1, o.bytes[1].data(), o.kStride);
  _tile_loadd(2, o.bytes[2].data(), o.kStride);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, o.bytes[0].data(), o.kStride);
  _tile_zero(1);
  _tile_stored(1, o.bytes[1].data(), o.kStride);
  _tile_release();
}
void native(const TileConfig& config, Operands& o) {
  asm volatile(
      "ldtilecfg (%0)\n"
      "tileloadd (%1, %4), %%tmm0\n tileloadd (%2, %4), %%tmm1\n tileloadd (%3, %4), %%tmm2\n"
      "tdpbssd %%tmm2, %%tmm1, %%tmm0\n tilestored %%tmm0, (%1, %4)\n"
      "tilezero %%tmm1\n tilestored %%tmm1, (%2, %4)\n tilerelease\n" ::"r"(&config),
      "r"(o.bytes[0].data()), "r"(o.bytes[1].data()), "r"(o.bytes[2].data()), "r"(o.kStride)
      : "memory");
}

TEST(EmulatedAmx, EqualsTheProcessor) {
  if (!cpu_has_amx()) GTEST_SKIP() << "no AMX here";
  std::mt19937 rng(1);
  for (int i = 0; i < 300; ++i) {
    const auto upto = [&](int most) { return 1 + static_cast<int>(rng() % static_cast<unsigned>(most)); };
    const TileConfig config = i == 0 ? product(16, 16, 16) : product(upto(16), upto(16), upto(16));
    Operands a;
    for (auto& tile : a.bytes) {
      tile.resize(16 * a.kStride);
      for (uint8_t& byte : tile) byte = static_cast<uint8_t>(rng());
    }
    Operands b = a;
    emulated(config, a);
    native(config, b);
    for (int tile = 0; tile < 3; ++tile) ASSERT_EQ(a.bytes[tile], b.bytes[tile]) << i << " " << tile;
  }
}

using EmulatedAmxDeathTest = testing::Test;

TEST_F(EmulatedAmxDeathTest, RefusesWhatWouldFault) {
  const auto configure = [](auto change) {
    TileConfig config = product(16, 16, 16);
    change(config);
    _tile_loadconfig(&config);
  };
  EXPECT_DEATH(configure([](auto& c) { c.palette = 2; }), "palette");
  EXPECT_DEATH(configure([](auto& c) { c.reserved_rows[0] = 1; }), "reserved");
  EXPECT_DEATH(configure([](auto& c) { c.rows[7] = 17, c.row_bytes[7] = 4; }), "larger than 16 rows");
  EXPECT_DEATH(configure([](auto& c) { c.row_bytes[0] = 65; }), "larger than 16 rows");
  EXPECT_DEATH(configure([](auto& c) { c.rows[0] = 0; }), "bytes without rows");
  EXPECT_DEATH(_tile_zero(0), "not configured");
  configure([](auto& c) { c.rows[1] = 8; });
  EXPECT_DEATH(_tile_zero(3), "not configured");
  EXPECT_DEATH(_tile_dpbssd(0, 1, 2), "do not fit");
  EXPECT_DEATH(_tile_dpbssd(0, 2, 2), "the same tile");
  _tile_release();
  EXPECT_DEATH(_tile_zero(0), "not configured");
}

}  // namespace
}  // namespace ellm::kernels
