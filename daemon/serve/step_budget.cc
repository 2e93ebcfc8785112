// See step_budget.h.
#include "daemon/serve/step_budget.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ellm::serve {
namespace {

constexpr double kLevelMemory = 0.8, kSlopeMemory = 0.98;  // what a sample leaves of those before it
constexpr double kOutlier = 2;                             // times the expected: taken as this much
constexpr int kBelieved = 3;                               // outliers in a row that are no outliers
constexpr double kDoubt = 0.2;                             // what the samples before them count then
constexpr uint32_t kFirstSamples = 3;                      // are taken as they are
constexpr uint32_t kLeastRows = 16;                        // of a step that has prompts: a tile of the matrix products
constexpr uint32_t kUnknownRows = 64;                      // of the first step, which is to say what rows cost
constexpr double kFewRows = 32;
constexpr double kDecodeSteps = 3, kLongSteps = 4;

}  // namespace

double Line::without_outlier(double x, double y) {
  const double expected = at(x);
  const int side = samples_ < kFirstSamples ? 0 : y > expected * kOutlier ? 1 : y < expected / kOutlier ? -1 : 0;
  strikes_ = side == 0 ? 0 : side * strikes_ > 0 ? strikes_ + side : side;
  if (side == 0) return y;
  if (std::abs(strikes_) >= kBelieved) {
    weight_ *= kDoubt;
    return y;
  }
  return side > 0 ? expected * kOutlier : expected / kOutlier;
}

void Line::add(double x, double y, double weight) {
  y = without_outlier(x, y);
  ++samples_;
  weight_ = weight_ * kLevelMemory + weight;
  x_ += (x - x_) * weight / weight_;
  y_ += (y - y_) * weight / weight_;
  slope_weight_ = slope_weight_ * kSlopeMemory + weight;
  const double dx = x - slope_x_;
  slope_x_ += dx * weight / slope_weight_;
  slope_y_ += (y - slope_y_) * weight / slope_weight_;
  spread_ = spread_ * kSlopeMemory + weight * dx * (x - slope_x_);
  together_ = together_ * kSlopeMemory + weight * dx * (y - slope_y_);
}

double Line::at(double x) const {
  if (weight_ == 0) return 0;
  const double slope = std::max(0.0, together_ / (spread_ + ridge_ * ridge_ * slope_weight_));
  return std::max(y_ / 8, y_ + slope * (x - x_));
}

void StepCosts::observe(const StepLoad& load, double ms) {
  if (load.prefill_rows == 0) {
    if (load.decodes != 0) decodes_.add(load.decodes, ms, 1);
    return;
  }
  const double rows = load.prefill_rows;
  const double rest = std::max(ms - decode_ms(load.decodes), ms / 8);
  rows_.add(load.depth_sum / rows, rest / rows, rows / (rows + kFewRows));  // few rows say little of what one costs
}

double allowed_ms(const StepBounds& bounds, Urgency urgency, double decode_ms) {
  if (bounds.token_ms == 0) return std::numeric_limits<double>::infinity();
  const double token_ms = static_cast<double>(bounds.token_ms) / std::max(1u, bounds.models);
  const double ms = std::max(token_ms, kDecodeSteps * decode_ms);
  return urgency == Urgency::interactive ? ms : kLongSteps * ms;
}

RowBudget::RowBudget(const StepCosts& costs, double left_ms, uint32_t most_rows)
    : costs_(costs), left_ms_(left_ms), rows_left_(most_rows) {
  if (!costs.rows_known() && std::isfinite(left_ms)) rows_left_ = std::min(rows_left_, kUnknownRows);
}

uint32_t RowBudget::afford(uint32_t depth, uint32_t wanted) const {
  wanted = std::min(wanted, rows_left_);
  const double row_ms = costs_.row_ms(depth + wanted / 2.0);
  const double rows = row_ms > 0 ? std::max(0.0, left_ms_) / row_ms : wanted;
  const uint32_t affordable = rows >= wanted ? wanted : static_cast<uint32_t>(rows);
  const uint32_t least = std::min(wanted, kLeastRows);
  if (affordable >= least) return affordable;
  return spent_ < kLeastRows ? std::min(least, kLeastRows - spent_) : 0;
}

void RowBudget::spend(uint32_t depth, uint32_t rows) {
  left_ms_ -= rows * costs_.row_ms(depth + rows / 2.0);
  rows_left_ -= rows;
  spent_ += rows;
}

}  // namespace ellm::serve
