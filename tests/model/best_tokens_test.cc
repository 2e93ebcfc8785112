// The best of a row beside a whole sort of it.
#include "daemon/model/best_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace ellm::model {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Ranked = std::vector<std::pair<uint32_t, float>>;

/// Values with many equal ones, zeros of both signs, infinities and NaN.
std::vector<float> row_of(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(n);
  for (float& x : out) {
    x = normal(random);
    if (random() % 3 == 0) x = std::round(x);
    if (random() % 40 == 0) x = random() % 2 ? 0.0f : -0.0f;
    if (random() % 40 == 0) x = random() % 2 ? std::nanf("") : -kInfinity;
  }
  return out;
}

Ranked sorted(const std::vector<float>& row) {
  Ranked all;
  for (uint32_t i = 0; i < row.size(); ++i) all.emplace_back(i, std::isnan(row[i]) ? -kInfinity : row[i]);
  std::ranges::stable_sort(all, [](auto& a, auto& z) { return a.second > z.second; });
  return all;
}

Ranked found(BestTokens& best) {
  Ranked all;
  for (size_t i = 0; i < best.size(); ++i) all.emplace_back(best.id(i), best.value(i));
  return all;
}

TEST(BestTokens, AreThoseOfAWholeSort) {
  BestTokens best;
  for (const size_t n : {1u, 2u, 31u, 32u, 33u, 64u, 95u, 1000u, 5000u}) {
    const auto row = row_of(n, static_cast<uint32_t>(n));
    const Ranked all = sorted(row);
    best.look_at(row);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, n / 32 + 1, n / 2, n, n + 5}) {
      best.find_best(count);
      EXPECT_EQ(found(best), Ranked(all.begin(), all.begin() + std::min(count, n))) << n << " " << count;
    }
    for (const float floor : {-kInfinity, -2.5f, 0.0f, 3.0f, kInfinity}) {
      best.find_above(floor);
      const auto end = std::ranges::find_if(all, [&](auto& a) { return a.second < floor; });
      EXPECT_EQ(found(best), Ranked(all.begin(), end)) << n << " " << floor;
    }
  }
}

TEST(BestTokens, AreSortedAsFarAsTheyAreLookedAt) {
  BestTokens best;
  const auto row = row_of(5000, 7);
  const Ranked all = sorted(row);
  best.look_at(row);
  best.find_above(-kInfinity);
  for (const size_t i : {0u, 31u, 32u, 5u, 300u, 4999u, 4000u}) EXPECT_EQ(best.id(i), all[i].first) << i;
  best.find_above(-kInfinity);
  EXPECT_EQ(best.id(40), all[40].first);
  best.keep_first(10);
  EXPECT_EQ(found(best), Ranked(all.begin(), all.begin() + 10));
}

TEST(BestTokens, ScaledAreTheSameRow) {
  BestTokens best;
  for (const size_t n : {1u, 31u, 32u, 33u, 1000u}) {
    const auto row = row_of(n, 3);
    std::vector<float> scaled;
    for (const float x : row) scaled.push_back(std::isnan(x) ? -kInfinity : (x - 9.5f) / 0.7f);
    const Ranked all = sorted(scaled);
    best.look_at_scaled(row, 9.5f, 0.7f);
    for (const size_t count : {size_t{1}, n}) {
      best.find_best(count);
      EXPECT_EQ(found(best), Ranked(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)));
    }
  }
}

TEST(BestTokens, MoreAreFoundBehindThoseThatWere) {
  BestTokens best;
  const auto row = row_of(20000, 9);
  const Ranked all = sorted(row);
  best.look_at(row);
  best.find_above(9);
  for (const float floor : {5.0f, 5.0f, 2.0f, -1.0f, -kInfinity}) {
    EXPECT_EQ(best.id(1), all[1].first);
    best.find_down_to(floor);
    const auto end = std::ranges::find_if(all, [&](auto& a) { return a.second < floor; });
    EXPECT_EQ(found(best), Ranked(all.begin(), end)) << floor;
  }
}

}  // namespace
}  // namespace ellm::model
