// What a model's steps cost, learned from the steps themselves, and how many rows of prompts the next one can afford.
// Pure arithmetic: the engine thread feeds it loads and times.
//
//   time of a step = decode_ms(decodes) + the sum over rows of prompts of row_ms(tokens before the row)
//
// Both are lines fitted online. Steps without prompts teach the first, the others the second with what the first leaves
// of their time; a wrong first part is made up for by the second, so that the sum is right where steps resemble the
// last ones. One slow step in a while (a neighbour took the CPU) moves a line only a little; three that agree are
// believed.
#pragma once
#include <cstdint>

namespace ellm::serve {

/// y as a line over x, from noisy samples of which the latest count most. Never falls, for it is a cost.
class Line {
 public:
  /// `ridge`: a spread of x below which samples say little about the slope.
  explicit Line(double ridge) : ridge_(ridge) {}
  void add(double x, double y, double weight);
  /// 0 before the first sample.
  double at(double x) const;
  bool known() const { return weight_ != 0; }

 private:
  double without_outlier(double x, double y);

  double ridge_;
  double weight_ = 0, x_ = 0, y_ = 0;                                                // the level: fast
  double slope_weight_ = 0, slope_x_ = 0, slope_y_ = 0, spread_ = 0, together_ = 0;  // slow
  uint32_t samples_ = 0;
  int strikes_ = 0;  // samples in a row that were much too high (or, negative, low)
};

/// What a step computes.
struct StepLoad {
  uint32_t decodes = 0, prefill_rows = 0;
  double depth_sum = 0;  // over the prefill rows: tokens before each
};

class StepCosts {
 public:
  void observe(const StepLoad& load, double ms);
  double decode_ms(uint32_t decodes) const { return decodes_.at(decodes); }
  double row_ms(double depth) const { return rows_.at(depth); }
  bool rows_known() const { return rows_.known(); }

 private:
  Line decodes_{2}, rows_{512};
};

/// Whom a step holds up: the most urgent request that is being answered, of any model.
enum class Urgency : uint8_t { nobody, batch, interactive };

struct StepBounds {
  uint32_t token_ms = 150;  // between tokens of an interactive request; 0: steps may take any time
  uint32_t models = 1;      // that run steps in turn
};

/// What a step may take: the bound, or three times what it takes without prompts, so that these go on, too. Four times
/// as long where no interactive request waits for its next token: fewer, larger steps are cheaper, but a cancel or a
/// newcomer shall not wait for long either. Infinite without a bound.
double allowed_ms(const StepBounds& bounds, Urgency urgency, double decode_ms);

/// The rows of one step, while it is planned.
class RowBudget {
 public:
  RowBudget(const StepCosts& costs, double left_ms, uint32_t most_rows);
  /// How many of `wanted` rows at `depth` there is time for; some at least while none are spent.
  uint32_t afford(uint32_t depth, uint32_t wanted) const;
  void spend(uint32_t depth, uint32_t rows);

 private:
  const StepCosts& costs_;
  double left_ms_;
  uint32_t rows_left_, spent_ = 0;
};

}  // namespace ellm::serve
