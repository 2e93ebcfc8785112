// The cost model and the budget against machines whose costs are known.
#include "daemon/serve/step_budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace ellm::serve {
namespace {

struct Costs {
  double base = 12, decode = 0.7, row = 0.9, per_depth = 0.0001;
  double ms(const StepLoad& load) const {
    return base + decode * load.decodes + row * load.prefill_rows + per_depth * load.depth_sum;
  }
};

/// A prompt beside decodes, step by step as the budget cuts it. The times of the steps.
std::vector<double> prefill(StepCosts& costs, const Costs& machine, uint32_t decodes, uint32_t from, uint32_t steps,
                            const std::function<double()>& noise, double bound = 150) {
  std::vector<double> times;
  uint32_t depth = from;
  for (uint32_t i = 0; i < steps; ++i) {
    const double decode_ms = costs.decode_ms(decodes);
    const StepBounds bounds{static_cast<uint32_t>(bound), 1};
    RowBudget budget(costs, allowed_ms(bounds, decodes ? Urgency::interactive : Urgency::nobody, decode_ms) - decode_ms,
                     512);
    const uint32_t rows = budget.afford(depth, 100000);
    EXPECT_GT(rows, 0u);
    const StepLoad load{decodes, rows, rows * (depth + rows / 2.0)};
    times.push_back(machine.ms(load) * noise());
    costs.observe(load, times.back());
    depth += rows;
  }
  return times;
}

double exactly() { return 1; }

TEST(StepBudget, ConvergesToTheBound) {
  for (const double row : {0.05, 0.3, 1.0, 6.0}) {
    StepCosts costs;
    Costs machine;
    machine.row = row;
    machine.per_depth = row * 1e-4;
    for (int i = 0; i < 4; ++i) costs.observe({4, 0, 0}, machine.ms({4, 0, 0}));
    const auto times = prefill(costs, machine, 4, 0, 60, exactly);
    for (size_t i = 3; i < times.size(); ++i) {
      if (row > 0.3) {
        EXPECT_NEAR(times[i], 150, 15) << row << " " << i;
      }
      EXPECT_LE(times[i], 165) << row << " " << i;
    }
  }
}

TEST(StepBudget, FollowsCostsThatChange) {
  StepCosts costs;
  Costs machine;
  for (int i = 0; i < 4; ++i) costs.observe({4, 0, 0}, machine.ms({4, 0, 0}));
  prefill(costs, machine, 4, 0, 30, exactly);
  machine.row *= 4;  // another process came
  auto times = prefill(costs, machine, 4, 3000, 30, exactly);
  for (size_t i = 8; i < times.size(); ++i) EXPECT_NEAR(times[i], 150, 25) << i;
  machine.row /= 4;  // and went
  times = prefill(costs, machine, 4, 4000, 30, exactly);
  for (size_t i = 12; i < times.size(); ++i) EXPECT_NEAR(times[i], 150, 25) << i;
}

TEST(StepBudget, NoiseAndSingleSlowStepsMoveItLittle) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(1, 0.1);
  StepCosts costs;
  Costs machine;
  int n = 0;
  const auto noise = [&] { return ++n % 13 == 0 ? 4.0 : std::max(0.7, normal(random)); };
  for (int i = 0; i < 4; ++i) costs.observe({4, 0, 0}, machine.ms({4, 0, 0}));
  auto times = prefill(costs, machine, 4, 0, 300, noise);
  std::sort(times.begin(), times.end());
  EXPECT_NEAR(times[150], 150, 25);  // the median
  EXPECT_LE(times[270], 200);        // 90 %
}

TEST(StepBudget, ADeepRowCostsMoreThanAShallowOne) {
  StepCosts costs;
  const Costs machine{.per_depth = 0.0003};
  prefill(costs, machine, 0, 0, 60, exactly);
  EXPECT_NEAR(costs.row_ms(0), machine.row, 0.5);
  EXPECT_NEAR(costs.row_ms(16000), machine.row + 16000 * machine.per_depth, 1.5);
  RowBudget budget(costs, 60, 512);
  EXPECT_GT(budget.afford(0, 512), 2 * budget.afford(16000, 512));
}

TEST(StepBudget, DecodesAreToldApartByTheirNumber) {
  StepCosts costs;
  const Costs machine{.decode = 3};
  for (int i = 0; i < 100; ++i) {
    const auto decodes = static_cast<uint32_t>(1 + i % 40);
    costs.observe({decodes, 0, 0}, machine.ms({decodes, 0, 0}));
  }
  for (const uint32_t decodes : {1u, 20u, 40u}) {
    EXPECT_NEAR(costs.decode_ms(decodes), machine.ms({decodes, 0, 0}), 0.1 * machine.ms({decodes, 0, 0}));
  }
}

TEST(StepBudget, AllowsThreeStepsOfAnswersAndFourTimesAsMuchWithoutInteractiveOnes) {
  const StepBounds bounds{150, 1};
  EXPECT_EQ(allowed_ms(bounds, Urgency::interactive, 20), 150);
  EXPECT_EQ(allowed_ms(bounds, Urgency::interactive, 80), 240);
  EXPECT_EQ(allowed_ms(bounds, Urgency::batch, 20), 600);
  EXPECT_EQ(allowed_ms(bounds, Urgency::nobody, 0), 600);
  EXPECT_EQ(allowed_ms({150, 3}, Urgency::interactive, 10), 50);  // two other models take their steps in between
  EXPECT_TRUE(std::isinf(allowed_ms({0, 1}, Urgency::interactive, 80)));
}

TEST(StepBudget, ATileOfRowsAtLeast) {
  StepCosts costs;
  const Costs machine{.row = 100};
  const auto times = prefill(costs, machine, 1, 0, 10, exactly);
  EXPECT_NEAR(times.back(), machine.ms({1, 16, 0}), 60);
  RowBudget budget(costs, -5, 512);
  EXPECT_EQ(budget.afford(0, 3), 3u);
  budget.spend(0, 3);
  EXPECT_EQ(budget.afford(0, 100), 13u);
  budget.spend(0, 13);
  EXPECT_EQ(budget.afford(0, 1), 0u);
}

}  // namespace
}  // namespace ellm::serve
