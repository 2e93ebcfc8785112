// Sampling against brute force in double, known answers of the generator, and OpenAI's definitions of the penalties.
#include "daemon/model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "daemon/model/forward.h"

namespace ellm::model {
namespace {

const kernels::KernelSet& level() { return choose_kernels("auto"); }

std::vector<float> random_logits(size_t n, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

/// The distribution that a request asks for: (id, probability), best first; by the book, in double.
std::vector<std::pair<uint32_t, double>> brute_force(const std::vector<float>& logits, const SamplingParams& p) {
  double peak = -INFINITY, sum = 0;
  for (float x : logits) peak = std::max<double>(peak, x);
  std::vector<std::pair<uint32_t, double>> all;
  for (uint32_t i = 0; i < logits.size(); ++i) all.emplace_back(i, std::exp((logits[i] - peak) / p.temperature));
  std::ranges::stable_sort(all, [](auto& a, auto& z) { return a.second > z.second; });
  if (p.min_p > 0) std::erase_if(all, [&](auto& a) { return a.second < p.min_p; });
  if (p.top_k > 0 && all.size() > p.top_k) all.resize(p.top_k);
  for (auto& a : all) sum += a.second;
  double kept = 0;
  size_t n = 0;
  while (n < all.size() && (n == 0 || (p.top_p < 1 ? kept < p.top_p * sum : true))) kept += all[n++].second;
  all.resize(n);
  for (auto& a : all) a.second /= kept;
  return all;
}

TEST(UniformDraw, EqualsPhilox4x32_10KnownAnswers) {  // Random123's kat_vectors
  EXPECT_EQ(uniform_draw(0, 0, 0), static_cast<float>(0x6627e8d5u >> 8) * 0x1p-24f);
  EXPECT_NE(uniform_draw(0, 0, 1), uniform_draw(0, 0, 0));
  EXPECT_NE(uniform_draw(0, 1, 0), uniform_draw(0, 0, 0));
  EXPECT_NE(uniform_draw(1ull << 32, 0, 0), uniform_draw(0, 0, 0));
}

TEST(UniformDraw, IsUniform) {
  constexpr int kDraws = 100000, kCells = 50;
  std::vector<int> cells(kCells);
  for (int i = 0; i < kDraws; ++i) ++cells[static_cast<size_t>(uniform_draw(7, 3, static_cast<uint64_t>(i)) * kCells)];
  double chi = 0;
  for (int c : cells) chi += std::pow(c - kDraws / kCells, 2) / (kDraws / kCells);
  EXPECT_LT(chi, 85.4);  // 99.9 % quantile for 49 degrees of freedom
}

TEST(Sampler, GreedyTakesTheBestAndTheLowestOfEquals) {
  Sampler s({.temperature = 0}, level());
  std::vector<float> logits = {1, 5, 3, 5, -1};
  EXPECT_EQ(s.sample(logits, 0, false).token, 1u);
}

struct Setting {
  const char* name;
  SamplingParams params;
};

class Distribution : public testing::TestWithParam<Setting> {};

/// Many draws at different positions follow the brute-force distribution (chi-square over the likely tokens) and never
/// leave it.
TEST_P(Distribution, FollowsTheBook) {
  const auto logits = random_logits(300, 11);
  const auto expected = brute_force(logits, GetParam().params);
  Sampler sampler(GetParam().params, level());
  constexpr int kDraws = 20000;
  std::map<uint32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(logits, static_cast<uint64_t>(i), false).token];
  double chi = 0, rest_expected = 0, rest = 0;
  int cells = 0;
  for (const auto& [id, p] : expected) {
    const double n = counts.contains(id) ? counts[id] : 0;
    counts.erase(id);
    if (p * kDraws < 10) {
      rest_expected += p * kDraws;
      rest += n;
      continue;
    }
    chi += std::pow(n - p * kDraws, 2) / (p * kDraws);
    ++cells;
  }
  if (rest_expected >= 10) {
    chi += std::pow(rest - rest_expected, 2) / rest_expected;
    ++cells;
  }
  EXPECT_TRUE(counts.empty()) << "drew " << counts.begin()->first << ", which the settings exclude";
  EXPECT_LT(chi, cells + 4.5 * std::sqrt(2.0 * cells)) << cells << " cells";
}

INSTANTIATE_TEST_SUITE_P(Settings, Distribution,
                         testing::Values(Setting{"plain", {.temperature = 1, .top_p = 1}}, Setting{"default", {}},
                                         Setting{"hot", {.temperature = 2.5f, .top_p = 1}},
                                         Setting{"top_k", {.temperature = 1, .top_k = 5, .top_p = 1}},
                                         Setting{"top_k_p", {.temperature = 1.5f, .top_k = 40, .top_p = 0.7f}},
                                         Setting{"top_p", {.temperature = 1, .top_p = 0.5f}},
                                         Setting{"min_p", {.temperature = 1, .top_p = 1, .min_p = 0.1f}},
                                         Setting{"all",
                                                 {.temperature = 0.9f, .top_k = 30, .top_p = 0.9f, .min_p = 0.02f}},
                                         Setting{"tiny_p", {.temperature = 1, .top_p = 1e-6f}}),
                         [](const auto& info) { return info.param.name; });

TEST(Sampler, ADrawDependsOnSeedSampleAndPositionAlone) {
  const auto logits = random_logits(1000, 5);
  const SamplingParams params{.temperature = 1, .top_p = 1, .seed = 42};
  std::vector<uint32_t> forwards, backwards;
  Sampler a(params, level()), b(params, level());
  for (uint64_t i = 0; i < 50; ++i) forwards.push_back(a.sample(logits, i, false).token);
  for (uint64_t i = 50; i-- > 0;) backwards.push_back(b.sample(logits, i, true).token);
  std::ranges::reverse(backwards);
  EXPECT_EQ(forwards, backwards);
  EXPECT_GT(std::set(forwards.begin(), forwards.end()).size(), 10u);
}

TEST(Sampler, EveryLevelDrawsTheSame) {
  const auto logits = random_logits(5000, 6);
  for (const char* name : {"scalar", "auto"}) {
    Sampler one({.temperature = 1.3f}, choose_kernels("scalar")), other({.temperature = 1.3f}, choose_kernels(name));
    for (uint64_t i = 0; i < 100; ++i)
      EXPECT_EQ(one.sample(logits, i, false).token, other.sample(logits, i, false).token);
  }
}

TEST(Sampler, PenaltiesAndBias) {
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, 0.5f};
  Sampler presence({.temperature = 0, .presence_penalty = 0.2f}, level());
  EXPECT_EQ(presence.sample(logits, 0, false).token, 0u);
  presence.accept(0);
  EXPECT_EQ(presence.sample(logits, 1, false).token, 1u);  // 1.8 < 1.9
  Sampler frequency({.temperature = 0, .frequency_penalty = 0.04f}, level());
  frequency.accept(0);
  frequency.accept(0);
  EXPECT_EQ(frequency.sample(logits, 0, false).token, 0u);  // 1.92 > 1.9
  frequency.accept(0);
  EXPECT_EQ(frequency.sample(logits, 0, false).token, 1u);  // 1.88 < 1.9
  Sampler repetition({.temperature = 0, .repetition_penalty = 1.1f}, level());
  repetition.accept_prompt(0);
  EXPECT_EQ(repetition.sample(logits, 0, false).token, 1u);  // 2 / 1.1 < 1.9
  Sampler bias({.temperature = 0, .logit_bias = {{2, 100.0f}, {99, 5.0f}}}, level());
  EXPECT_EQ(bias.sample(logits, 0, false).token, 2u);
  Sampler ban({.temperature = 0, .logit_bias = {{0, -100.0f}}}, level());
  EXPECT_EQ(ban.sample(logits, 0, false).token, 1u);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const auto logits = random_logits(2000, 8);
  double sum = 0;
  for (float x : logits) sum += std::exp(double{x});
  Sampler sampler({.temperature = 0.3f, .top_k = 3, .logprobs = 4}, level());
  const Sampled s = sampler.sample(logits, 0, true);
  EXPECT_NEAR(s.logprob, logits[s.token] - std::log(sum), 1e-4);
  auto sorted = logits;
  std::ranges::sort(sorted, std::greater());
  ASSERT_EQ(s.top.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(logits[s.top[i].first], sorted[i]);
    EXPECT_NEAR(s.top[i].second, sorted[i] - std::log(sum), 1e-4);
  }
}

TEST(Sampler, SurvivesNanAndInfinity) {
  const float inf = INFINITY, nan = NAN;
  for (float t : {0.0f, 1.0f}) {
    Sampler s({.temperature = t, .logprobs = 2}, level());
    EXPECT_LT(s.sample(std::vector{nan, nan, nan}, 0, true).token, 3u);
    EXPECT_EQ(s.sample(std::vector{nan, 1.0f, -inf}, 0, true).token, 1u);
    EXPECT_EQ(s.sample(std::vector{0.0f, inf, 1.0f}, 0, true).token, 1u);
    EXPECT_LT(s.sample(std::vector{-inf, -inf}, 0, true).token, 2u);
  }
}

}  // namespace
}  // namespace ellm::model
