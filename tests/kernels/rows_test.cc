// Norm, activation, arg max and log-sum-exp of every level: to the bit equal to the scalar level in guarded memory at
// every size and misalignment, extremes included, and within a bound of plain double arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
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

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

const KernelSet& scalar() { return *kernel_set(Level::scalar); }

/// A row at a guarded end, `slack` floats before it, so that every alignment is met.
struct Row {
  Guarded<float> memory;
  uint32_t n;
  Row(uint32_t size, uint32_t slack) : memory(size + slack), n(size) {
    std::fill(memory.begin(), memory.end(), 777.0f);
  }
  float* data() const { return memory.data(); }
  float& operator[](size_t i) const { return memory[i]; }
  void expect_slack_untouched() const {
    for (size_t i = n; i < memory.size(); ++i) ASSERT_EQ(memory[i], 777.0f);
  }
};

/// Rows of every size 0 … 99 and some of a model's, without slack and with, of normal numbers and with extremes inside.
void for_rows(const std::function<void(const Row&, std::mt19937&)>& f) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 4);
  const float extremes[] = {kInf, -kInf, kNan, 1e-40f, -1e-45f, 3e38f, -3e38f, 0.0f, -0.0f, 88.0f, -104.0f};
  std::vector<uint32_t> sizes{576, 1000, 4096, 4099};
  for (uint32_t n = 0; n < 100; ++n) sizes.push_back(n);
  for (const uint32_t n : sizes) {
    for (const uint32_t slack : {0u, 1u, 5u}) {
      for (const bool strange : {false, true}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " slack " << slack << (strange ? " with extremes" : ""));
        const Row row(n, slack);
        for (uint32_t i = 0; i < n; ++i) row[i] = normal(rng);
        for (uint32_t i = 0; strange && i < n; i += 1 + rng() % 20) row[i] = extremes[rng() % std::size(extremes)];
        f(row, rng);
        if (testing::Test::HasFatalFailure()) return;
        row.expect_slack_untouched();
      }
    }
  }
}

class RowFunctions : public ::testing::TestWithParam<const KernelSet*> {
 protected:
  const KernelSet& set() const { return *GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Levels, RowFunctions, ::testing::ValuesIn(levels_with_own(&KernelSet::rms_norm)),
                         [](const auto& info) { return level_label(*info.param); });

TEST_P(RowFunctions, RmsNorm) {
  for_rows([&](const Row& x, std::mt19937& rng) {
    if (x.n == 0) return;
    const Row weight(x.n, 2), out(x.n, 3);
    std::normal_distribution<float> normal(1, 0.2f);
    for (uint32_t i = 0; i < x.n; ++i) weight[i] = normal(rng);
    std::vector<float> expected(x.n);
    set().rms_norm(x.data(), weight.data(), x.n, 1e-5f, out.data());
    scalar().rms_norm(x.data(), weight.data(), x.n, 1e-5f, expected.data());
    ASSERT_TRUE(same_bits(out.data(), expected.data(), x.n));
    out.expect_slack_untouched();
    double squares = 0;
    for (uint32_t i = 0; i < x.n; ++i) squares += static_cast<double>(x[i]) * x[i];
    if (squares < 1e30) {
      // n / 16 + 4 additions of positive numbers, halved by the root, and five roundings.
      const double inverse = 1 / std::sqrt(squares / x.n + 1e-5f), relative = (x.n / 32.0 + 8) * 0x1p-24;
      for (uint32_t i = 0; i < x.n; ++i) {
        const double y = x[i] * inverse * weight[i];
        ASSERT_NEAR(out[i], y, std::fabs(y) * relative + 1e-44);
      }
    }
    set().rms_norm(x.data(), weight.data(), x.n, 1e-5f, x.data());  // in place
    ASSERT_TRUE(same_bits(x.data(), expected.data(), x.n));
  });
}

TEST_P(RowFunctions, SiluMul) {
  for_rows([&](const Row& gate, std::mt19937& rng) {
    const Row up(gate.n, 1), out(gate.n, 4);
    std::normal_distribution<float> normal(0, 2);
    for (uint32_t i = 0; i < gate.n; ++i) up[i] = normal(rng);
    std::vector<float> expected(gate.n);
    set().silu_mul(gate.data(), up.data(), gate.n, out.data());
    scalar().silu_mul(gate.data(), up.data(), gate.n, expected.data());
    ASSERT_TRUE(same_bits(out.data(), expected.data(), gate.n));
    out.expect_slack_untouched();
    for (uint32_t i = 0; i < gate.n; ++i) {
      const double y = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      if (std::isfinite(y) && std::fabs(y) < 3e38) {
        ASSERT_NEAR(out[i], y, std::fabs(y) * 5 * 0x1p-24 + 1e-35) << gate[i];
      }
    }
  });
}

TEST_P(RowFunctions, GeluMul) {
  for_rows([&](const Row& gate, std::mt19937& rng) {
    const Row up(gate.n, 1), out(gate.n, 4);
    std::normal_distribution<float> normal(0, 2);
    for (uint32_t i = 0; i < gate.n; ++i) up[i] = normal(rng);
    std::vector<float> expected(gate.n);
    set().gelu_mul(gate.data(), up.data(), gate.n, out.data());
    scalar().gelu_mul(gate.data(), up.data(), gate.n, expected.data());
    ASSERT_TRUE(same_bits(out.data(), expected.data(), gate.n));
    out.expect_slack_untouched();
    for (uint32_t i = 0; i < gate.n; ++i) {
      const double x = gate[i], u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      if (!(std::fabs(u) < 40)) continue;
      const double y = x / (1 + std::exp(-2 * u)) * up[i];  // = x / 2 * (1 + tanh(u)) * up, without its cancellation
      ASSERT_NEAR(out[i], y, std::fabs(y) * (8 * std::fabs(u) + 5) * 0x1p-24 + 1e-35) << gate[i];
      ASSERT_NEAR(y, x / 2 * (1 + std::tanh(u)) * up[i], std::fabs(x * up[i]) * 1e-14 + 1e-40);
    }
  });
}

TEST_P(RowFunctions, SoftCap) {
  for_rows([&](const Row& x, std::mt19937&) {
    for (const float cap : {30.0f, 50.0f, 0.7f}) {
      Row out(x.n, 3);
      std::copy_n(x.data(), x.n, out.data());
      std::vector<float> expected(x.data(), x.data() + x.n);
      set().soft_cap(out.data(), x.n, cap);
      scalar().soft_cap(expected.data(), x.n, cap);
      ASSERT_TRUE(same_bits(out.data(), expected.data(), x.n));
      out.expect_slack_untouched();
      for (uint32_t i = 0; i < x.n; ++i) {
        if (std::isnan(x[i])) continue;
        ASSERT_NEAR(out[i], cap * std::tanh(static_cast<double>(x[i]) / cap), cap * 6 * 0x1p-24) << x[i];
        if (x[i] == 0) {
          ASSERT_EQ(out[i], 0.0f);
        }
      }
    }
  });
}

// exp of all levels through silu: a dense sweep of the floats.
TEST_P(RowFunctions, ExpEqualsScalarOverAllFloats) {
  std::vector<float> x, ones(4096, 1.0f), a(4096), b(4096);
  for (uint64_t bits = 0; bits <= 0xffffffff;) {
    x.clear();
    for (; bits <= 0xffffffff && x.size() < 4096; bits += 1999) {
      const uint32_t word = static_cast<uint32_t>(bits);
      float f;
      std::memcpy(&f, &word, 4);
      x.push_back(f);
    }
    set().silu_mul(x.data(), ones.data(), static_cast<uint32_t>(x.size()), a.data());
    scalar().silu_mul(x.data(), ones.data(), static_cast<uint32_t>(x.size()), b.data());
    ASSERT_TRUE(same_bits(a.data(), b.data(), x.size())) << "before bits " << bits;
  }
}

uint32_t naive_argmax(const float* x, uint32_t n) {
  uint32_t best = 0;
  float value = -kInf;
  for (uint32_t i = 0; i < n; ++i) {
    if (!std::isnan(x[i]) && x[i] > value) {
      value = x[i];
      best = i;
    }
  }
  return best;
}

TEST_P(RowFunctions, ArgMax) {
  for_rows([&](const Row& x, std::mt19937& rng) {
    ASSERT_EQ(set().argmax(x.data(), x.n), naive_argmax(x.data(), x.n));
    for (uint32_t i = 0; i < x.n; ++i) x[i] = static_cast<float>(rng() % 5);  // ties
    ASSERT_EQ(set().argmax(x.data(), x.n), naive_argmax(x.data(), x.n));
    for (uint32_t i = 0; i < x.n; ++i) x[i] = rng() % 2 ? 0.0f : -0.0f;
    ASSERT_EQ(set().argmax(x.data(), x.n), 0u);
    for (uint32_t i = 0; i < x.n; ++i) x[i] = rng() % 2 ? kNan : -kInf;
    ASSERT_EQ(set().argmax(x.data(), x.n), 0u);
    if (x.n > 0) {
      x[x.n - 1] = -3e38f;
      ASSERT_EQ(set().argmax(x.data(), x.n), x.n - 1);
    }
  });
  std::vector<float> large(151936, -1.0f);
  for (const uint32_t at : {0u, 15u, 16u, 77777u, 151920u, 151935u}) {
    large[at] = 1.0f + static_cast<float>(at);
    EXPECT_EQ(set().argmax(large.data(), 151936), at);
  }
}

TEST_P(RowFunctions, LogSumExp) {
  for_rows([&](const Row& x, std::mt19937&) {
    const float got = set().log_sum_exp(x.data(), x.n);
    ASSERT_TRUE(same_bits(got, scalar().log_sum_exp(x.data(), x.n)));
    double most = -kInf, sum = 0;
    for (uint32_t i = 0; i < x.n; ++i) {
      if (std::isnan(x[i])) return;
      most = std::max<double>(most, x[i]);
    }
    for (uint32_t i = 0; i < x.n; ++i) sum += std::exp(x[i] - most);
    if (std::isinf(most)) {
      ASSERT_EQ(got, static_cast<float>(most));
    } else {
      const double y = most + std::log(sum);
      ASSERT_NEAR(got, y, std::fabs(y) * 0x1p-24 + (x.n / 16.0 + 8) * 0x1p-24);
    }
  });
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(151936);
  for (float& v : logits) v = normal(rng);
  double sum = 0;
  for (float v : logits) sum += std::exp(static_cast<double>(v));
  const float got = set().log_sum_exp(logits.data(), 151936);
  EXPECT_NEAR(got, std::log(sum), 2e-5);
  EXPECT_TRUE(same_bits(got, scalar().log_sum_exp(logits.data(), 151936)));
  const float single[] = {0.0f, 5.0f, -3.25f, 1e-40f};
  for (const float v : single) EXPECT_EQ(set().log_sum_exp(&v, 1), v);
  const float broken[] = {1.0f, kNan, 2.0f};
  EXPECT_TRUE(std::isnan(set().log_sum_exp(broken, 3)));
}

/// As of the row that was scaled before.
TEST_P(RowFunctions, TemperedLogSumExp) {
  for_rows([&](const Row& x, std::mt19937&) {
    const float peak = x.n == 0 ? 0 : x[scalar().argmax(x.data(), x.n)];
    if (x.n == 0 || !std::isfinite(peak)) return;
    for (const float temperature : {0.7f, 1.0f, 1e-3f, 100.0f}) {
      std::vector<float> scaled(x.n);
      for (uint32_t i = 0; i < x.n; ++i) {
        scaled[i] = (x[i] - peak) / temperature;
        if (std::isnan(scaled[i])) scaled[i] = -kInf;
      }
      const float got = set().tempered_log_sum_exp(x.data(), x.n, peak, temperature);
      ASSERT_TRUE(same_bits(got, scalar().log_sum_exp(scaled.data(), x.n))) << x.n << " " << temperature;
    }
  });
}

}  // namespace
}  // namespace ellm::kernels
