// RoPE: our sine and cosine against the C library's in long double; the rotation of every level against double.
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/kernel_set.h"
#include "tests/kernels/guarded.h"
#include "tests/kernels/levels.h"
#include "tests/kernels/same_bits.h"

namespace ellm::kernels {
namespace {

using tests::Guarded;
using tests::same_bits;

TEST(RopeAngles, WithinTheBound) {
  std::mt19937_64 rng(1);
  double worst = 0;
  const auto look = [&](double angle) {
    const SinCos a = sin_cos(angle);
    worst = std::max(worst, static_cast<double>(fabsl(a.sin - sinl(angle))));
    worst = std::max(worst, static_cast<double>(fabsl(a.cos - cosl(angle))));
  };
  for (const double range : {1e-9, 0.1, 1.0, 10.0, 1e3, 1e5, 1e7}) {
    std::uniform_real_distribution<double> uniform(-range, range);
    for (int i = 0; i < 100000; ++i) look(uniform(rng));
  }
  for (int k = 0; k < 100000; ++k) {  // next to the multiples of pi / 4
    const double a = k * 0.78539816339744831;
    look(a);
    look(std::nextafter(a, 0.0));
    look(std::nextafter(a, 1e9));
  }
  std::cout << "sin_cos: largest error " << worst << "\n";
  EXPECT_LT(worst, 1e-15);
}

TEST(RopeAngles, ExactPointsAndNonsense) {
  EXPECT_EQ(sin_cos(0).sin, 0);
  EXPECT_EQ(sin_cos(0).cos, 1);
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(sin_cos(inf).sin));
  EXPECT_TRUE(std::isnan(sin_cos(-inf).cos));
  EXPECT_TRUE(std::isnan(sin_cos(std::nan("")).cos));
}

TEST(RopeAngles, RoundedAfterTheMagnitude) {
  const double frequency[] = {1, 0.31, 0.0005, 1e-6};
  float cos[4], sin[4];
  for (const double position : {0.0, 1.0, 777.0, 131071.0}) {
    rope_angles(position, frequency, 4, 1.25f, cos, sin);
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(cos[i], 1.25 * std::cos(position * frequency[i]), 1.25 * 0x1p-24);
      EXPECT_NEAR(sin[i], 1.25 * std::sin(position * frequency[i]), 1.25 * 0x1p-24);
    }
  }
}

class Rope : public ::testing::TestWithParam<const KernelSet*> {};
INSTANTIATE_TEST_SUITE_P(Levels, Rope, ::testing::ValuesIn(levels_with_own(&KernelSet::rope)),
                         [](const auto& info) { return level_label(*info.param); });

TEST_P(Rope, EverySizeEqualsScalarAndTwin) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal(0, 3);
  for (uint32_t half = 0; half <= 70; ++half) {
    for (const bool neox : {false, true}) {
      SCOPED_TRACE(testing::Message() << "half " << half << (neox ? " neox" : " pairs"));
      Guarded<float> head(2 * half), cos(half), sin(half);
      for (float& x : head) x = normal(rng);
      for (uint32_t i = 0; i < half; ++i) {
        const float angle = normal(rng);
        cos[i] = std::cos(angle);
        sin[i] = std::sin(angle);
      }
      if (half == 20) head[7] = std::numeric_limits<float>::infinity();
      if (half == 21) head[7] = -0.0f, head[8] = 1e-40f, cos[4] = 0;
      const std::vector<float> before(head.begin(), head.end());
      std::vector<float> scalar = before;
      GetParam()->rope(head.data(), cos.data(), sin.data(), half, neox);
      kernel_set(Level::scalar)->rope(scalar.data(), cos.data(), sin.data(), half, neox);
      ASSERT_TRUE(same_bits(head.data(), scalar.data(), scalar.size()));
      for (uint32_t i = 0; i < half; ++i) {
        const uint32_t a = neox ? i : 2 * i, b = neox ? i + half : 2 * i + 1;
        const double x = before[a], y = before[b], c = cos[i], s = sin[i];
        if (!std::isfinite(x) || !std::isfinite(y)) continue;
        const double bound = (std::fabs(x) + std::fabs(y)) * 0x1p-23 + 1e-44;
        ASSERT_NEAR(head[a], x * c - y * s, bound);
        ASSERT_NEAR(head[b], y * c + x * s, bound);
      }
    }
  }
}

}  // namespace
}  // namespace ellm::kernels
