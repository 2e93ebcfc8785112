// The exponential against expl of the C library, over the whole range: the error that HACKING.md states.
#include "kernels/exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/lanes/exp.h"
#include "kernels/scalar/lanes.h"

namespace ellm::kernels {
namespace {

constexpr float kLowest = -87.33654f, kHighest = 88.37626f;

double error_in_ulp(float x) {
  const long double exact = expl(x);
  int exponent;
  frexpl(exact, &exponent);
  return static_cast<double>(fabsl(exp_spec(x) - exact) / ldexpl(1, exponent - 24));
}

TEST(Exp, BelowOneUlpEverywhere) {
  double worst = 0;
  float worst_at = 0;
  const auto look = [&](float x) {
    const double error = error_in_ulp(x);
    if (error > worst) {
      worst = error;
      worst_at = x;
    }
  };
  // Every 1499th float of the range.
  for (uint32_t bits = 0; bits < 0x42b00000; bits += 1499) {
    float x;
    std::memcpy(&x, &bits, 4);
    if (x <= kHighest) look(x);
    if (-x >= kLowest) look(-x);
  }
  for (int n = -126; n <= 127; ++n) {  // around the points where n changes
    float x = static_cast<float>((n + 0.5) * 0.69314718055994531);
    for (int i = 0; i < 40; ++i, x = std::nextafter(x, 100.0f)) {
      if (x > kLowest && x < kHighest) look(x);
    }
  }
  std::cout << "exp_spec: largest error " << worst << " ulp at " << worst_at << "\n";
  EXPECT_LT(worst, 0.9);
  EXPECT_GT(worst, 0.5);  // below would mean that the measure is wrong
}

TEST(Exp, Limits) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_spec(0.0f), 1.0f);
  EXPECT_EQ(exp_spec(-0.0f), 1.0f);
  EXPECT_EQ(exp_spec(-inf), 0.0f);
  EXPECT_EQ(exp_spec(-87.337f), 0.0f);
  EXPECT_GE(exp_spec(kLowest), std::numeric_limits<float>::min());
  EXPECT_EQ(exp_spec(-3e38f), 0.0f);
  EXPECT_LT(exp_spec(kHighest), inf);
  EXPECT_GT(exp_spec(kHighest), 2.4e38f);
  EXPECT_EQ(exp_spec(88.377f), inf);
  EXPECT_EQ(exp_spec(3e38f), inf);
  EXPECT_EQ(exp_spec(inf), inf);
  EXPECT_TRUE(std::isnan(exp_spec(std::numeric_limits<float>::quiet_NaN())));
}

/// One value beside the lanes of every level, which its tests hold against the scalar ones.
TEST(Exp, OfOneValueIsThatOfALane) {
  for (uint32_t bits = 0; bits < 0xff800000; bits += 7919) {
    float x;
    std::memcpy(&x, &bits, 4);
    const float got = exp_spec(x), expected = exp_any(ScalarLanes::broadcast(x)).first();
    ASSERT_TRUE(std::memcmp(&got, &expected, 4) == 0 || (std::isnan(x) && std::isnan(got))) << x;
  }
}

}  // namespace
}  // namespace ellm::kernels
