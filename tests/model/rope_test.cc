// RoPE frequencies against numbers that an independent script made from the papers' and transformers' formulas.
#include "daemon/model/rope.h"

#include <gtest/gtest.h>

#include "tests/model/rope_expected.inc"

namespace ellm::model {
namespace {

template <size_t N>
void expect_table(const RopeTable& table, const double (&expected)[N], double tolerance = 4e-16) {
  ASSERT_EQ(table.frequency.size(), N);
  for (size_t i = 0; i < N; i++) EXPECT_NEAR(table.frequency[i] / expected[i], 1, tolerance) << "pair " << i;
}

RopeConfig rope(uint32_t dimensions, double base, RopeScaling scaling = RopeScaling::none, double factor = 1) {
  RopeConfig config;
  config.dimensions = dimensions;
  config.base = base;
  config.scaling = scaling;
  config.factor = factor;
  return config;
}

TEST(Rope, Plain) {
  expect_table(make_rope_table(rope(64, 10000)), kPlain64);
  expect_table(make_rope_table(rope(128, 1000000)), kPlain128Million);
  EXPECT_EQ(make_rope_table(rope(64, 10000)).frequency[0], 1.0);
  EXPECT_EQ(make_rope_table(rope(64, 10000)).magnitude, 1.0f);
}

TEST(Rope, Linear) { expect_table(make_rope_table(rope(20, 10000, RopeScaling::linear, 4)), kLinear20); }

TEST(Rope, Llama3ByFactors) {
  RopeConfig config = rope(64, 500000, RopeScaling::llama3);
  config.frequency_factors.assign(std::begin(kLlama3Factors), std::end(kLlama3Factors));
  expect_table(make_rope_table(config), kLlama3, 6e-8);  // the factors are f32
}

TEST(Rope, Yarn) {
  RopeConfig config = rope(128, 1000000, RopeScaling::yarn, 4);
  config.original_context = 32768;
  RopeTable table = make_rope_table(config);
  expect_table(table, kYarnQwen);
  EXPECT_FLOAT_EQ(table.magnitude, kYarnMagnitude4);

  config = rope(128, 10000, RopeScaling::yarn, 16);
  config.original_context = 4096;
  config.yarn_attention_factor = 0.5;
  table = make_rope_table(config);
  expect_table(table, kYarnLlama);
  EXPECT_FLOAT_EQ(table.magnitude, 0.5 * kYarnMagnitude16);
}

TEST(Rope, YarnWithoutExtrapolationIsLinear) {
  RopeConfig config = rope(20, 10000, RopeScaling::yarn, 4);
  config.original_context = 4096;
  config.yarn_extrapolation = 0;
  const RopeTable table = make_rope_table(config);
  expect_table(table, kLinear20);
  EXPECT_EQ(table.magnitude, 1.0f);
}

}  // namespace
}  // namespace ellm::model
