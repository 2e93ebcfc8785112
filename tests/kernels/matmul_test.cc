// Every level's matrix products against the twin, to the bit, in memory whose ends are guarded; and against double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "kernels/blocks.h"
#include "kernels/kernel_set.h"
#include "tests/kernels/guarded.h"
#include "tests/kernels/levels.h"
#include "tests/kernels/twin.h"

namespace ellm::kernels {
namespace {

using tests::Guarded;

uint32_t bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

/// Activations with every array in guarded memory of its own.
struct GuardedActivations {
  Guarded<int8_t> q;
  Guarded<float> scale;
  Guarded<float> scaled_sum, scaled_halves;
  Guarded<int16_t> half_sums;
  Guarded<int32_t> minus_sum8, minus_sum16, minus_sum128, minus_halves32;
  Guarded<int16_t> minus_pairs16, minus_pairs32;
  Guarded<float> f32;
  Activations view;

  GuardedActivations(uint32_t rows, uint32_t cols)
      : q(size_t{rows} * blocks(cols) * 32), scale(size_t{rows} * blocks(cols)), scaled_sum(scale.size()),
        scaled_halves(2 * scale.size()), half_sums(2 * scale.size()), minus_sum8(scale.size()),
        minus_sum16(scale.size()), minus_sum128(scale.size()), minus_halves32(2 * scale.size()),
        minus_pairs16(2 * scale.size()), minus_pairs32(4 * scale.size()), f32(q.size()) {
    view = {rows,
            cols,
            q.data(),
            scale.data(),
            scaled_sum.data(),
            scaled_halves.data(),
            half_sums.data(),
            minus_sum8.data(),
            minus_sum16.data(),
            minus_sum128.data(),
            minus_halves32.data(),
            minus_pairs16.data(),
            minus_pairs32.data(),
            f32.data()};
  }
  static uint32_t blocks(uint32_t cols) { return (cols + 31) / 32; }
};

void put(std::byte* p, int half) {
  p[0] = static_cast<std::byte>(half & 255);
  p[1] = static_cast<std::byte>(half >> 8);
}

struct Problem {
  WeightType type;
  uint32_t rows, cols, tokens;
  std::vector<std::byte> src;
  std::vector<std::vector<float>> x;
  std::unique_ptr<Guarded<std::byte>> panels;
  PanelMatrix w;

  Problem(WeightType t, uint32_t r, uint32_t c, uint32_t n, std::mt19937& rng)
      : type(t), rows(r), cols(c), tokens(n), src(twin::random_rows(t, r, c, rng)), x(n, std::vector<float>(c)) {
    std::normal_distribution<float> normal(0, 1);
    for (auto& row : x) {
      for (float& v : row) v = normal(rng);
      if (rng() % 4 == 0) std::fill_n(row.begin(), std::min<size_t>(c, 32), 0.0f);
    }
    repack_source();
  }

  void repack_source() {
    w = {type, rows, cols, nullptr, panel_bytes(type, cols)};
    panels = std::make_unique<Guarded<std::byte>>(w.panel_bytes * w.panels());
    w.data = panels->data();
    repack(w, panels->data(), src.data(), 0, w.panels());
  }
  const std::byte* row(uint32_t r) const { return src.data() + src.size() / rows * r; }
};

void pack(const KernelSet& set, const Problem& p, const Activations& a) {
  for (uint32_t t = 0; t < p.tokens; ++t) {
    (is_quantised(p.type) ? set.pack_q8 : set.pack_f32)(a, t, p.x[t].data(), 0, a.blocks());
  }
}

struct Epilogue {
  bool bias = false, accumulate = false;
};

/// (tokens, rows) by the twin; `old` is what out holds before.
std::vector<float> expected(const Problem& p, const std::vector<float>& bias, float old, Epilogue e) {
  std::vector<float> out(size_t{p.tokens} * p.rows);
  for (uint32_t t = 0; t < p.tokens; ++t) {
    const twin::Token token = twin::quantise(p.x[t]);
    for (uint32_t r = 0; r < p.rows; ++r) {
      float v = twin::dot(p.type, p.row(r), p.cols, p.x[t], token);
      if (e.bias) v += bias[r];
      if (e.accumulate) v += old;
      out[size_t{t} * p.rows + r] = v;
    }
  }
  return out;
}

::testing::AssertionResult equals(const Guarded<float>& got, const std::vector<float>& want, uint32_t rows) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = bits(got[i]) == bits(want[i]) || (std::isnan(got[i]) && std::isnan(want[i]));
    if (!same) {
      return ::testing::AssertionFailure()
             << "token " << i / rows << " row " << i % rows << ": " << got[i] << " not " << want[i];
    }
  }
  return ::testing::AssertionSuccess();
}

/// All levels on one problem.
void check(const Problem& p, Epilogue e = {}) {
  const float old = 0.75f;
  Guarded<float> bias(p.rows);
  for (uint32_t r = 0; r < p.rows; ++r) bias[r] = 0.01f * static_cast<float>(r) - 0.3f;
  const std::vector<float> want = expected(p, {bias.begin(), bias.end()}, old, e);
  for (const KernelSet* set : levels_under_test()) {
    GuardedActivations x(p.tokens, p.cols);
    pack(*set, p, x.view);
    Guarded<float> out(size_t{p.tokens} * p.rows);
    std::fill(out.begin(), out.end(), old);
    // Two calls that meet at a panel in the middle.
    const uint32_t middle = p.w.panels() / 2;
    for (auto [first, last] : {std::pair{middle, p.w.panels()}, std::pair{0u, middle}}) {
      MatmulArgs args{p.w, x.view, first, last, out.data(), p.rows, e.bias ? bias.data() : nullptr, e.accumulate};
      set->matmul(args);
    }
    ASSERT_TRUE(equals(out, want, p.rows)) << set->name << " " << block_shape(p.type).name << " rows " << p.rows
                                           << " cols " << p.cols << " tokens " << p.tokens;
  }
}

class Matmul : public ::testing::TestWithParam<WeightType> {
 protected:
  bool k_quant() const { return block_shape(GetParam()).weights == 256; }
  std::mt19937 rng_{static_cast<uint32_t>(GetParam()) + 100};
};

TEST_P(Matmul, EveryRowCount) {
  for (uint32_t rows = 1; rows <= 50; ++rows)
    check(Problem(GetParam(), rows, k_quant() ? 256 : 64, 1 + rows % 5, rng_));
}

TEST_P(Matmul, EveryTokenCount) {
  for (uint32_t tokens = 1; tokens <= 35; ++tokens) check(Problem(GetParam(), 19, k_quant() ? 256 : 96, tokens, rng_));
}

TEST_P(Matmul, Columns) {
  static constexpr uint32_t k_widths[] = {256, 512, 768, 1536}, block_widths[] = {32, 64, 96, 128, 576, 896},
                            float_widths[] = {1, 3, 8, 31, 32, 33, 64, 172, 288};
  std::span<const uint32_t> widths = block_widths;
  if (k_quant()) widths = k_widths;
  if (!is_quantised(GetParam())) widths = float_widths;
  for (uint32_t cols : widths) {
    for (uint32_t tokens : {1u, 4u, 16u, 29u}) check(Problem(GetParam(), 33, cols, tokens, rng_));
  }
}

// More panels than the group that a level keeps in the cache, and panels larger than the cache's share.
TEST_P(Matmul, ManyPanels) {
  check(Problem(GetParam(), 16 * 15 + 3, 2048, 18, rng_));
  if (GetParam() == WeightType::f32) check(Problem(GetParam(), 40, 4200, 17, rng_));
}

// More tokens than a level lets pass over the panels together, because there are many or they are wide.
TEST_P(Matmul, ManyTokens) {
  check(Problem(GetParam(), 20, k_quant() ? 256 : 96, 293, rng_));
  check(Problem(GetParam(), 3, 16384, 85, rng_));
}

TEST_P(Matmul, BiasAndAccumulate) {
  for (bool bias : {false, true}) {
    for (bool accumulate : {false, true}) {
      check(Problem(GetParam(), 37, k_quant() ? 256 : 64, 23, rng_), {bias, accumulate});
    }
  }
}

TEST_P(Matmul, ExtremeCodes) {
  if (!is_quantised(GetParam())) return;
  const uint32_t cols = 512;
  const size_t block = block_shape(GetParam()).bytes;
  for (int code : {0x00, 0x80, 0x7f, 0xff}) {
    for (float sign : {1.0f, -1.0f}) {
      Problem p(GetParam(), 17, cols, 16, rng_);
      for (std::byte& b : p.src) b = static_cast<std::byte>(code);
      const auto [d, m] = twin::scale_place(GetParam());
      for (size_t i = 0; i < p.src.size(); i += block) {  // scale and minimum 1, 0.5; MXFP4 keeps 2^code
        if (d >= 0) put(&p.src[i + d], 0x3c00);
        if (m >= 0) put(&p.src[i + m], 0x3800);
      }
      p.repack_source();
      for (auto& row : p.x) std::fill(row.begin(), row.end(), 127.0f * sign);
      check(p);
      for (size_t c = 0; c < cols; c += 2) {
        for (auto& row : p.x) row[c] = -row[c];
      }
      check(p);
    }
  }
}

// Abnormal scales give abnormal results in their rows only, and the same ones at every level.
TEST_P(Matmul, AbnormalScales) {
  if (!is_quantised(GetParam())) return;
  const int at = twin::scale_place(GetParam()).d;
  for (int half : {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x7bff}) {
    Problem p(GetParam(), 20, 256, 21, rng_);
    std::byte* row = const_cast<std::byte*>(p.row(3));
    if (at >= 0) {
      put(row + at, half);
    } else {
      *row = static_cast<std::byte>(half >> 8);  // exponents 124 252 126 0 128 123
    }
    p.repack_source();
    check(p);
  }
}

TEST_P(Matmul, NearDouble) {
  const uint32_t cols = 768;
  Problem p(GetParam(), 24, cols, 8, rng_);
  for (const KernelSet* set : levels_under_test()) {
    GuardedActivations x(p.tokens, cols);
    pack(*set, p, x.view);
    Guarded<float> out(size_t{p.tokens} * p.rows);
    set->matmul({p.w, x.view, 0, p.w.panels(), out.data(), p.rows});
    for (uint32_t t = 0; t < p.tokens; ++t) {
      for (uint32_t r = 0; r < p.rows; ++r) {
        const std::vector<float> w = twin::weights(p.type, p.row(r), cols);
        double exact = 0, size = 0, rounding = 0;
        for (uint32_t b = 0; b < cols / 32; ++b) {
          double most = 0, weights = 0;
          for (uint32_t c = b * 32; c < b * 32 + 32; ++c) {
            exact += static_cast<double>(w[c]) * p.x[t][c];
            most = std::fmax(most, std::fabs(p.x[t][c]));
            weights += std::fabs(w[c]);
          }
          size += weights * most;
          rounding += weights * most / 127 * 0.5;  // half a step of every activation
        }
        // One rounding error of each of at most three operations a block (32 for float types), relative to the largest
        // sum that can stand in the accumulator. With a minimum, w = d * q + m cancels: d * q alone is up to 32 times
        // w.
        const double steps = is_quantised(p.type) ? cols / 32 * 3 * 32 : cols;
        const double bound = (is_quantised(p.type) ? rounding * 1.0001 : 0) + steps * 0x1p-24 * size;
        ASSERT_LE(std::fabs(out[t * p.rows + r] - exact), bound) << set->name << " " << block_shape(p.type).name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Matmul, ::testing::ValuesIn(kWeightTypes),
                         [](const auto& info) { return std::string(block_shape(info.param).name); });

TEST(Pack, QuantisesAsTheTwinDoes) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  for (uint32_t rows : {1u, 2u, 3u, 7u, 13u, 16u, 31u, 50u}) {
    const uint32_t blocks = 21, cols = 32 * blocks;
    std::vector<std::vector<float>> x(rows, std::vector<float>(cols));
    for (auto& row : x) {
      for (float& v : row) v = normal(rng) * std::exp2(static_cast<float>(rng() % 60) - 30);
      for (uint32_t c = 0; c < 32; ++c)
        row[c] = static_cast<float>(static_cast<int>(rng() % 255) - 127) * 0.5f;  // ties
      row[5] = 63.5f;
      if (rng() % 3 == 0) std::fill_n(row.begin() + 64, 32, rng() % 2 == 0 ? 0.0f : 1e-31f);
    }
    for (const KernelSet* set : levels_under_test()) {
      GuardedActivations a(rows, cols);
      for (uint32_t t = 0; t < rows; ++t) {
        Guarded<float> row(cols);
        std::copy(x[t].begin(), x[t].end(), row.begin());
        set->pack_q8(a.view, t, row.data() + 64, 2, blocks);  // in two parts; 19 blocks are a group of AVX-512 and 3
        set->pack_q8(a.view, t, row.data(), 0, 2);
        set->pack_f32(a.view, t, row.data(), 0, 3);
        set->pack_f32(a.view, t, row.data() + 96, 3, blocks);
      }
      for (uint32_t t = 0; t < rows; ++t) {
        const twin::Token want = twin::quantise(x[t]);
        uint32_t first = t / 16 * 16, width = 16;  // the tile, as activations.h describes it
        for (;; first += width) {
          while (width > rows - first) width /= 2;
          if (t < first + width) break;
        }
        for (uint32_t b = 0; b < blocks; ++b) {
          const size_t i = size_t{first} * blocks + b * width + (t - first);
          ASSERT_EQ(a.scale[i], want.scale[b]) << set->name << " rows " << rows << " row " << t << " block " << b;
          ASSERT_EQ(a.minus_sum8[i], -8 * want.sum[b]) << set->name;
          ASSERT_EQ(a.minus_sum16[i], -16 * want.sum[b]) << set->name;
          ASSERT_EQ(a.minus_sum128[i], -128 * want.sum[b]) << set->name;
          ASSERT_EQ(bits(a.scaled_sum[i]), bits(want.scale[b] * static_cast<float>(want.sum[b]))) << set->name;
          int32_t half = 0, pairs[4] = {};
          for (uint32_t c = 0; c < 32; ++c) {
            ASSERT_EQ(a.q[i * 32 + c], want.q[b * 32 + c]) << set->name << " block " << b << " column " << c;
            ASSERT_EQ(a.f32[i * 32 + c], x[t][b * 32 + c]) << set->name;
            if (c < 16) half += want.q[b * 32 + c];
            pairs[c / 16 * 2 + c % 4 / 2] += want.q[b * 32 + c];
          }
          for (size_t p = 0; p < 4 && set->level < Level::avx512; ++p) {
            ASSERT_EQ(a.minus_pairs32[4 * i + p], -32 * pairs[p]) << set->name;
            ASSERT_EQ(a.minus_pairs16[2 * i + p % 2], -16 * (pairs[p % 2] + pairs[p % 2 + 2])) << set->name;
          }
          ASSERT_EQ(a.minus_halves32[2 * i], -32 * half) << set->name;
          ASSERT_EQ(a.minus_halves32[2 * i + 1], 32 * (half - want.sum[b])) << set->name;
          for (const auto& [place, sum] : {std::pair{2 * i, half}, {2 * i + 1, want.sum[b] - half}}) {
            ASSERT_EQ(a.half_sums[place], sum) << set->name;
            ASSERT_EQ(bits(a.scaled_halves[place]), bits(want.scale[b] * static_cast<float>(sum))) << set->name;
          }
        }
      }
    }
  }
}

// A last block of fewer than 32 values is filled with zeros, and nothing behind the row is read.
TEST(Pack, LastBlockIsPadded) {
  for (uint32_t cols : {1u, 8u, 15u, 16u, 17u, 31u, 33u, 50u, 63u, 481u, 512u, 530u, 1000u}) {
    Guarded<float> row(cols);
    for (uint32_t c = 0; c < cols; ++c) row[c] = static_cast<float>(c) - 20.5f;
    const twin::Token want = twin::quantise({row.begin(), row.end()});
    for (const KernelSet* set : levels_under_test()) {
      GuardedActivations a(1, cols);
      set->pack_q8(a.view, 0, row.data(), 0, a.view.blocks());
      set->pack_f32(a.view, 0, row.data(), 0, a.view.blocks());
      for (uint32_t c = 0; c < a.view.padded_cols(); ++c) {
        ASSERT_EQ(a.q[c], want.q[c]) << set->name << " cols " << cols << " column " << c;
        ASSERT_EQ(a.f32[c], c < cols ? row[c] : 0.0f) << set->name << " cols " << cols << " column " << c;
      }
    }
  }
}

TEST(Pack, AbnormalValuesAreTheSameAtEveryLevel) {
  const uint32_t blocks = 19, cols = 32 * blocks - 7;
  // A NaN is a NaN, whichever.
  const auto same = [](float a, float b) { return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b)); };
  for (float odd : {NAN, INFINITY, -INFINITY, 3.4e38f, 1e-30f, 0.9e-30f, 1e-42f, -0.0f}) {
    std::vector<float> x(cols, 1.0f);
    x[9] = odd;
    x[40] = -odd;
    std::fill_n(x.begin() + 64, 32, odd);   // nothing else
    std::fill_n(x.begin() + 96, 32, 0.0f);  // zeros beside
    x[111] = x[112] = odd;
    for (uint32_t c = 128; c < 160; ++c) x[c] = c % 2 == 0 ? odd : -odd;
    x[32 * 17] = odd;
    x[cols - 1] = odd;  // where the last block ends
    GuardedActivations first(1, cols);
    levels_under_test()[0]->pack_q8(first.view, 0, x.data(), 0, blocks);
    for (const KernelSet* set : levels_under_test()) {
      Guarded<float> row(cols);
      std::copy(x.begin(), x.end(), row.begin());
      GuardedActivations a(1, cols);
      set->pack_q8(a.view, 0, row.data(), 0, blocks);
      for (uint32_t b = 0; b < blocks; ++b) {
        const auto where = std::string(set->name) + " " + std::to_string(odd) + " block " + std::to_string(b);
        EXPECT_EQ(std::memcmp(&a.q[32 * b], &first.q[32 * b], 32), 0) << where;
        EXPECT_EQ(bits(a.scale[b]), bits(first.scale[b])) << where;
        EXPECT_PRED2(same, a.scaled_sum[b], first.scaled_sum[b]) << where;
        EXPECT_PRED2(same, a.scaled_halves[2 * b], first.scaled_halves[2 * b]) << where;
        EXPECT_PRED2(same, a.scaled_halves[2 * b + 1], first.scaled_halves[2 * b + 1]) << where;
        EXPECT_EQ(a.minus_sum8[b], first.minus_sum8[b]) << where;
        EXPECT_EQ(a.half_sums[2 * b], first.half_sums[2 * b]) << where;
        EXPECT_EQ(a.half_sums[2 * b + 1], first.half_sums[2 * b + 1]) << where;
      }
    }
  }
}

TEST(ActivationsLayout, ArraysDoNotOverlap) {
  for (auto [rows, cols] : {std::pair{1u, 32u}, {3u, 64u}, {17u, 96u}, {5u, 33u}}) {
    const size_t bytes = Activations::bytes(rows, cols);
    Guarded<std::byte> memory(bytes);
    const Activations a = Activations::bind(memory.data(), rows, cols);
    const size_t n = size_t{rows} * a.blocks();
    std::pair<void*, size_t> arrays[] = {{a.q, n * 32},
                                         {a.scale, n * 4},
                                         {a.scaled_sum, n * 4},
                                         {a.scaled_halves, n * 8},
                                         {a.half_sums, n * 4},
                                         {a.minus_sum8, n * 4},
                                         {a.minus_sum16, n * 4},
                                         {a.minus_sum128, n * 4},
                                         {a.minus_halves32, n * 8},
                                         {a.minus_pairs16, n * 4},
                                         {a.minus_pairs32, n * 8},
                                         {a.f32, n * 128}};
    const std::byte* end = memory.data();
    for (auto [p, size] : arrays) {
      EXPECT_GE(static_cast<std::byte*>(p), end);
      EXPECT_EQ((static_cast<std::byte*>(p) - memory.data()) % 64, 0);
      end = static_cast<std::byte*>(p) + size;
    }
    EXPECT_LE(end, memory.data() + bytes);
  }
}

}  // namespace
}  // namespace ellm::kernels
