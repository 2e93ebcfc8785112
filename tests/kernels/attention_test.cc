// Attention of every level: to the bit equal to the scalar level, a chunk to its rows one by one, the whole to its
// segments merged; within a bound of full softmax in double; in guarded memory with NaN in all unwritten slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/kernels/attention_twin.h"
#include "tests/kernels/levels.h"
#include "tests/kernels/same_bits.h"

namespace ellm::kernels {
namespace {

using tests::attention_twin;
using tests::Guarded;
using tests::KvBlocks;
using tests::same_bits;

constexpr float kUntouched = 12345.5f;

/// Rows of queries with room between them, and the same for outputs, in guarded memory.
struct Rows {
  uint32_t rows, group, head_dim;
  size_t q_stride, out_stride;
  uint32_t window = 0;
  float soft_cap = 0;
  Guarded<float> q, out;

  Rows(uint32_t r, uint32_t g, uint32_t h)
      : rows(r), group(g), head_dim(h), q_stride(g * h + 3), out_stride(g * h + 5), q((r - 1) * q_stride + g * h),
        out((r - 1) * out_stride + g * h) {
    std::fill(q.begin(), q.end(), 0.0f);
    std::fill(out.begin(), out.end(), kUntouched);
  }
  void fill(std::mt19937& rng, float size = 1) {
    std::normal_distribution<float> normal(0, size);
    for (float& x : q) x = normal(rng);
  }
  AttentionArgs args(const KvBlocks& kv, uint32_t first_position, uint32_t row = 0, uint32_t n = 0) const {
    AttentionArgs a = kv.args();
    a.q = q.data() + row * q_stride;
    a.q_stride = q_stride;
    a.out = out.data() + row * out_stride;
    a.out_stride = out_stride;
    a.rows = n ? n : rows;
    a.group = group;
    a.first_position = first_position + row;
    a.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    a.window = window;
    a.soft_cap = soft_cap;
    return a;
  }
  void expect_gaps_untouched() const {
    for (uint32_t r = 0; r + 1 < rows; ++r) {
      for (size_t i = group * head_dim; i < out_stride; ++i) ASSERT_EQ(out[r * out_stride + i], kUntouched);
    }
  }
};

void fill_kv(KvBlocks& kv, uint32_t head_dim, uint32_t from, uint32_t to, std::mt19937& rng, float size = 1) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> k(head_dim), v(head_dim);
  for (uint32_t t = from; t < to; ++t) {
    for (float& x : k) x = normal(rng);
    for (float& x : v) x = normal(rng);
    kv.store(*kernel_set(Level::scalar), t, k.data(), v.data());
  }
}

std::string type_label(KvType type) {
  return type == KvType::f16 ? "f16" : type == KvType::int8 ? "int8" : type == KvType::int4 ? "int4" : "f32";
}

class Attention : public ::testing::TestWithParam<std::tuple<const KernelSet*, KvType>> {
 protected:
  const KernelSet& set() const { return *std::get<0>(GetParam()); }
  KvType type() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Levels, Attention,
                         ::testing::Combine(::testing::ValuesIn(levels_under_test()),
                                            ::testing::Values(KvType::f16, KvType::int8, KvType::int4, KvType::f32)),
                         [](const auto& info) {
                           return level_label(*std::get<0>(info.param)) + "_" + type_label(std::get<1>(info.param));
                         });

// Of all levels at once, so that the scalar level and the twin compute each case once.
class AttentionOfLevels : public ::testing::TestWithParam<KvType> {};
INSTANTIATE_TEST_SUITE_P(KvTypes, AttentionOfLevels,
                         ::testing::Values(KvType::f16, KvType::int8, KvType::int4, KvType::f32),
                         [](const auto& info) { return type_label(info.param); });

/// Runs every level but the scalar one on the queries of `scalar` and compares its output.
void expect_levels_equal(const Rows& scalar, const KvBlocks& kv, uint32_t first_position) {
  for (const KernelSet* set : levels_under_test()) {
    if (set->level == Level::scalar) continue;
    Rows rows(scalar.rows, scalar.group, scalar.head_dim);
    std::copy(scalar.q.begin(), scalar.q.end(), rows.q.begin());
    rows.window = scalar.window;
    rows.soft_cap = scalar.soft_cap;
    set->attention(rows.args(kv, first_position));
    ASSERT_TRUE(same_bits(rows.out.data(), scalar.out.data(), rows.out.size())) << set->name;
  }
}

TEST_P(AttentionOfLevels, DecodeEqualsScalarAndTwin) {
  std::mt19937 rng(1);
  const uint32_t positions[] = {0, 1, 15, 16, 31, 32, 100, 511, 512, 513, 1300};
  for (const uint32_t head_dim : {8u, 12u, 24u, 64u, 80u, 96u, 128u, 256u}) {
    KvBlocks kv(GetParam(), GetParam(), head_dim, 1301);
    uint32_t stored = 0;
    for (const uint32_t position : positions) {
      fill_kv(kv, head_dim, stored, position + 1, rng);
      stored = position + 1;
      for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 17u}) {
        if (position == 1300 && head_dim > 96 && group != 3) continue;  // the scalar level takes its time
        SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " group " << group << " position " << position);
        Rows rows(1, group, head_dim);
        rows.fill(rng);
        kernel_set(Level::scalar)->attention(rows.args(kv, position));
        expect_levels_equal(rows, kv, position);
        const uint32_t head = position % group;
        const auto twin =
            attention_twin(kv, rows.q.data() + head * head_dim, head_dim, position, rows.args(kv, position).scale);
        for (uint32_t d = 0; d < head_dim; ++d) {
          ASSERT_NEAR(rows.out[head * head_dim + d], twin.out[d], twin.bound[d]) << "dimension " << d;
        }
      }
    }
  }
}

// Rows of a chunk see what a decode step at their position sees, whatever is written behind them.
TEST_P(Attention, ChunkEqualsItsRowsOneByOne) {
  std::mt19937 rng(2);
  struct Case {
    uint32_t head_dim, group, rows, first_position;
  };
  for (const Case& c :
       {Case{64, 3, 70, 0}, Case{64, 1, 130, 17}, Case{128, 7, 20, 500}, Case{12, 2, 33, 31}, Case{80, 4, 9, 505},
        Case{256, 2, 35, 500}, Case{96, 5, 8, 1020}, Case{24, 16, 10, 28}, Case{8, 1, 560, 5}}) {
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << " group " << c.group << " rows " << c.rows
                                    << " from " << c.first_position);
    const uint32_t tokens = c.first_position + c.rows;
    KvBlocks chunk_kv(type(), type(), c.head_dim, tokens), step_kv(type(), type(), c.head_dim, tokens);
    std::mt19937 chunk_rng(7), step_rng(7);
    fill_kv(chunk_kv, c.head_dim, 0, tokens, chunk_rng);
    fill_kv(step_kv, c.head_dim, 0, c.first_position, step_rng);
    Rows chunk(c.rows, c.group, c.head_dim), steps(c.rows, c.group, c.head_dim);
    chunk.fill(rng);
    std::copy(chunk.q.begin(), chunk.q.end(), steps.q.begin());
    set().attention(chunk.args(chunk_kv, c.first_position));
    for (uint32_t r = 0; r < c.rows; ++r) {
      fill_kv(step_kv, c.head_dim, c.first_position + r, c.first_position + r + 1, step_rng);
      set().attention(steps.args(step_kv, c.first_position, r, 1));
    }
    ASSERT_TRUE(same_bits(chunk.out.data(), steps.out.data(), chunk.out.size()));
    chunk.expect_gaps_untouched();
    for (float x : steps.out) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(Attention, SegmentsMergedEqualTheWhole) {
  std::mt19937 rng(3);
  struct Case {
    uint32_t head_dim, group, rows, first_position;
  };
  for (const Case& c :
       {Case{64, 3, 1, 1300}, Case{128, 2, 1, 511}, Case{80, 7, 40, 490}, Case{12, 1, 70, 1000}, Case{64, 9, 1, 0}}) {
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << " rows " << c.rows << " from " << c.first_position);
    const uint32_t tokens = c.first_position + c.rows, segments = (tokens + kAttentionSegment - 1) / kAttentionSegment;
    KvBlocks kv(type(), type(), c.head_dim, tokens);
    fill_kv(kv, c.head_dim, 0, tokens, rng);
    Rows whole(c.rows, c.group, c.head_dim), merged(c.rows, c.group, c.head_dim);
    whole.fill(rng);
    std::copy(whole.q.begin(), whole.q.end(), merged.q.begin());
    set().attention(whole.args(kv, c.first_position));
    Guarded<float> partials(size_t{c.rows} * c.group * segments * attention_partial_floats(c.head_dim));
    std::fill(partials.begin(), partials.end(), std::numeric_limits<float>::quiet_NaN());
    const AttentionArgs args = merged.args(kv, c.first_position);
    for (uint32_t s = segments; s-- > 0;) set().attention_partial(args, s, segments, partials.data());
    const uint32_t cut = c.rows / 3;  // two threads would merge a range of rows each
    set().attention_merge(args, cut, c.rows, segments, partials.data());
    set().attention_merge(args, 0, cut, segments, partials.data());
    ASSERT_TRUE(same_bits(whole.out.data(), merged.out.data(), whole.out.size()));
    merged.expect_gaps_untouched();
  }
}

// Rows of several sequences that share pages up to different tokens: stacked, they give what each gives alone.
TEST_P(Attention, StackedRowsEqualEachAlone) {
  std::mt19937 rng(9);
  const uint32_t head_dim = 80, tokens = 1100;
  KvBlocks common(type(), type(), head_dim, tokens);
  fill_kv(common, head_dim, 0, tokens, rng);
  struct Case {
    uint32_t group, window;
    std::vector<std::pair<uint32_t, uint32_t>> rows;  // pages shared with `common`, position
  };
  for (const Case& c : {Case{4, 0, {{34, 1090}, {34, 1099}, {20, 1000}, {20, 650}, {7, 900}, {0, 40}}},
                        Case{7,
                             0,
                             {{16, 513},
                              {16, 514},
                              {16, 515},
                              {16, 600},
                              {16, 700},
                              {16, 511},
                              {16, 812},
                              {16, 530},
                              {16, 531},
                              {16, 1}}},
                        Case{1, 300, {{30, 970}, {30, 1000}, {3, 777}}}}) {
    SCOPED_TRACE(testing::Message() << "group " << c.group << " window " << c.window);
    const auto count = static_cast<uint32_t>(c.rows.size());
    constexpr uint32_t kPages = (tokens + kPageTokens - 1) / kPageTokens,
                       kSegments = (tokens - 1) / kAttentionSegment + 1;
    std::vector<std::unique_ptr<KvBlocks>> own;
    std::vector<std::vector<const std::byte*>> k(count), v(count);
    Rows alone(count, c.group, head_dim), stacked(count, c.group, head_dim);
    alone.window = stacked.window = c.window;
    alone.fill(rng);
    std::copy(alone.q.begin(), alone.q.end(), stacked.q.begin());
    const size_t floats = size_t{kSegments} * c.group * attention_partial_floats(head_dim);
    std::vector<float> partials(count * floats, std::numeric_limits<float>::quiet_NaN());
    std::vector<StackedRow> stack;
    for (uint32_t r = 0; r < count; ++r) {
      const auto [shared, position] = c.rows[r];
      own.push_back(std::make_unique<KvBlocks>(type(), type(), head_dim, position + 1));
      fill_kv(*own[r], head_dim, 0, position + 1, rng);
      for (uint32_t p = 0; p <= position / kPageTokens; ++p) {
        const AttentionArgs args = (p < shared ? common : *own[r]).args();
        k[r].push_back(args.k_blocks[p]);
        v[r].push_back(args.v_blocks[p]);
      }
      AttentionArgs args = alone.args(common, position - r, r, 1);
      args.k_blocks = k[r].data();
      args.v_blocks = v[r].data();
      set().attention(args);
      k[r].resize(kPages + kSegmentPages);
      v[r].resize(kPages + kSegmentPages);
      stack.push_back({stacked.q.data() + r * stacked.q_stride, position, partials.data() + r * floats});
    }
    for (uint32_t segment = 0; segment < kSegments; ++segment) {
      std::vector<const std::byte*> k_table, v_table;
      for (uint32_t r = 0; r < count; ++r) {
        const auto at = static_cast<long>(segment * kSegmentPages);
        k_table.insert(k_table.end(), k[r].begin() + at, k[r].begin() + at + kSegmentPages);
        v_table.insert(v_table.end(), v[r].begin() + at, v[r].begin() + at + kSegmentPages);
      }
      AttentionArgs args = stacked.args(common, 0);
      args.stack = stack.data();
      args.stack_pages = kSegmentPages;
      args.k_blocks = k_table.data();
      args.v_blocks = v_table.data();
      set().attention_partial(args, segment, 0, nullptr);
    }
    for (uint32_t r = 0; r < count; ++r) {
      set().attention_merge(stacked.args(common, c.rows[r].second - r, r, 1), 0, 1,
                            c.rows[r].second / kAttentionSegment + 1, partials.data() + r * floats);
    }
    ASSERT_TRUE(same_bits(alone.out.data(), stacked.out.data(), alone.out.size()));
  }
}

// Large scores, vanishing weights, subnormals, infinities and NaN in visible tokens: the levels agree on all of them.
TEST_P(AttentionOfLevels, ExtremesEqualScalar) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 rng(4);
  const uint32_t head_dim = 72, group = 3, rows = 30, first_position = 497, tokens = first_position + rows;
  const KernelSet& scalar = *kernel_set(Level::scalar);
  for (const float size : {1e-30f, 1e-6f, 30.0f, 300.0f}) {
    for (const float strange : {0.0f, 1e-40f, -70000.0f, inf, -inf, nan}) {
      SCOPED_TRACE(testing::Message() << "size " << size << " strange " << strange);
      KvBlocks kv(GetParam(), GetParam(), head_dim, tokens);
      fill_kv(kv, head_dim, 0, tokens, rng, size);
      std::vector<float> k(head_dim, 0.5f), v(head_dim, -0.25f);
      k[3] = strange;
      kv.store(scalar, 13, k.data(), v.data());
      v[70] = strange;
      kv.store(scalar, 510, v.data(), v.data());
      Rows a(rows, group, head_dim);
      a.fill(rng, size);
      if (strange == 0) std::fill(a.q.begin(), a.q.begin() + 2 * head_dim, -0.0f);
      scalar.attention(a.args(kv, first_position));
      expect_levels_equal(a, kv, first_position);
      if (std::isfinite(strange) && strange > -1000) {
        for (float x : a.out) ASSERT_FALSE(std::isnan(x));
      }
    }
  }
}

struct WindowCase {
  uint32_t head_dim, group, rows, first_position, window;
  float soft_cap;
};
const WindowCase kWindowCases[] = {
    {32, 2, 40, 0, 16, 50.0f},   {24, 3, 70, 40, 1, 0.0f},     {64, 1, 130, 0, 33, 0.0f},
    {12, 5, 33, 31, 32, 3.0f},   {64, 4, 25, 1010, 512, 0.0f}, {256, 4, 9, 1300, 512, 50.0f},
    {80, 7, 12, 700, 100, 1.0f}, {8, 1, 90, 1000, 40, 0.0f},   {64, 2, 20, 520, 4096, 20.0f},
    {16, 16, 66, 480, 31, 0.0f},
};

// A window and a soft cap change nothing of the rule: levels, chunks, single rows and merged segments give the same
// bits.
TEST_P(AttentionOfLevels, WindowAndSoftCapEqualScalarAndTwin) {
  std::mt19937 rng(6);
  for (const WindowCase& c : kWindowCases) {
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << " from " << c.first_position << " window "
                                    << c.window);
    const uint32_t tokens = c.first_position + c.rows;
    const uint32_t gone =
        c.first_position >= c.window ? (c.first_position + 1 - c.window) / kPageTokens * kPageTokens : 0;
    KvBlocks kv(GetParam(), GetParam(), c.head_dim, tokens);  // pages wholly before the window stay full of NaN
    fill_kv(kv, c.head_dim, gone, tokens, rng);
    Rows rows(c.rows, c.group, c.head_dim);
    rows.window = c.window;
    rows.soft_cap = c.soft_cap;
    rows.fill(rng, 3);
    kernel_set(Level::scalar)->attention(rows.args(kv, c.first_position));
    expect_levels_equal(rows, kv, c.first_position);
    for (uint32_t r = 0; r < c.rows; ++r) {
      const size_t head = r % c.group * c.head_dim;
      const auto twin = attention_twin(kv, rows.q.data() + r * rows.q_stride + head, c.head_dim, c.first_position + r,
                                       rows.args(kv, 0).scale, c.window, c.soft_cap);
      for (uint32_t d = 0; d < c.head_dim; ++d) {
        ASSERT_NEAR(rows.out[r * rows.out_stride + head + d], twin.out[d], twin.bound[d]) << "row " << r;
      }
    }
  }
}

TEST_P(Attention, WindowedChunkEqualsItsRowsAndItsSegments) {
  std::mt19937 rng(8);
  for (const WindowCase& c : kWindowCases) {
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << " from " << c.first_position << " window "
                                    << c.window);
    const uint32_t tokens = c.first_position + c.rows, segments = (tokens + kAttentionSegment - 1) / kAttentionSegment;
    KvBlocks kv(type(), type(), c.head_dim, tokens);
    fill_kv(kv, c.head_dim, 0, tokens, rng);
    Rows chunk(c.rows, c.group, c.head_dim);
    chunk.window = c.window;
    chunk.soft_cap = c.soft_cap;
    chunk.fill(rng, 3);
    set().attention(chunk.args(kv, c.first_position));
    chunk.expect_gaps_untouched();
    const std::vector<float> expected(chunk.out.begin(), chunk.out.end());
    for (uint32_t r = 0; r < c.rows; ++r) set().attention(chunk.args(kv, c.first_position, r, 1));
    ASSERT_TRUE(same_bits(chunk.out.data(), expected.data(), expected.size()));
    Guarded<float> partials(size_t{c.rows} * c.group * segments * attention_partial_floats(c.head_dim));
    std::fill(partials.begin(), partials.end(), std::numeric_limits<float>::quiet_NaN());
    std::fill(chunk.out.begin(), chunk.out.end(), kUntouched);
    const AttentionArgs args = chunk.args(kv, c.first_position);
    for (uint32_t s = segments; s-- > 0;) set().attention_partial(args, s, segments, partials.data());
    set().attention_merge(args, c.rows / 3, c.rows, segments, partials.data());
    set().attention_merge(args, 0, c.rows / 3, segments, partials.data());
    ASSERT_TRUE(same_bits(chunk.out.data(), expected.data(), expected.size()));
  }
}

TEST_P(Attention, MixedKvTypes) {
  std::mt19937 rng(5);
  const uint32_t head_dim = 80, position = 75;
  for (const KvType other : {KvType::f16, KvType::int8, KvType::int4}) {
    KvBlocks kv(type(), other, head_dim, position + 1);
    fill_kv(kv, head_dim, 0, position + 1, rng);
    for (const uint32_t group : {1u, 6u, 20u}) {
      Rows rows(1, group, head_dim);
      rows.fill(rng);
      set().attention(rows.args(kv, position));
      for (uint32_t h = 0; h < group; ++h) {
        const auto twin =
            attention_twin(kv, rows.q.data() + h * head_dim, head_dim, position, rows.args(kv, position).scale);
        for (uint32_t d = 0; d < head_dim; ++d) ASSERT_NEAR(rows.out[h * head_dim + d], twin.out[d], twin.bound[d]);
      }
    }
  }
}

/// A key mean with one large channel, by angles of a RoPE, whole and in parts.
struct MeanFixture {
  std::vector<float> mean, part, cos, sin, turns;
  std::vector<uint32_t> pair_dims;
  KeyMean view;
  MeanFixture(uint32_t head_dim, uint32_t half, bool neox, uint32_t pairs, uint32_t pages, std::mt19937& rng)
      : mean(head_dim), part(head_dim, 1.0f), cos((pages + 15) / 16 * 16 * half), sin(cos.size()) {
    std::normal_distribution<float> normal(0, 3);
    for (float& x : mean) x = normal(rng);
    mean[half / 2] = 40;
    std::vector<double> frequency(half);
    for (uint32_t i = 0; i < half; ++i) {
      frequency[i] = std::pow(10000.0, -double(i) / half);
      part[neox ? i : 2 * i] = part[neox ? i + half : 2 * i + 1] = static_cast<float>(i) / static_cast<float>(half);
    }
    for (uint32_t p = 0; p < pages; ++p) {
      for (uint32_t i = 0; i < half; ++i) {
        const size_t at = (p / 16 * half + i) * 16 + p % 16;
        rope_angles(p * 32 + 15.5, &frequency[i], 1, 1, &cos[at], &sin[at]);
      }
    }
    for (uint32_t p = 0; p < pairs; ++p) {
      const uint32_t i = (5 * p + 3) % half, x = neox ? i : 2 * i, y = neox ? i + half : 2 * i + 1;
      pair_dims.insert(pair_dims.end(), {x, y});
      part[x] = part[y] = 0;
      std::vector<float> c(32), s(32);
      for (uint32_t t = 0; t < 32; ++t) rope_angles(t - 15.5, &frequency[i], 1, 1, &c[t], &s[t]);
      turns.insert(turns.end(), c.begin(), c.end());
      turns.insert(turns.end(), s.begin(), s.end());
    }
    view = {mean.data(), part.data(), cos.data(), sin.data(), half, neox, pairs, pair_dims.data(), turns.data()};
  }
};

/// A context's first token is kept to 16 bits (int8) or 12 (int4): its score beside a key of zeros shows in what it
/// takes of two values.
TEST_P(AttentionOfLevels, FirstTokenIsKeptFinely) {
  if (!is_quantised(GetParam())) return;
  std::mt19937 rng(9);
  std::normal_distribution<float> normal(0, 1);
  for (uint32_t head_dim : {64u, 80u, 128u}) {
    KvBlocks kv(GetParam(), GetParam(), head_dim, 2);
    std::vector<float> k(head_dim), v(head_dim), zeros(head_dim, 0.0f);
    for (uint32_t d = 0; d < head_dim; ++d) k[d] = 20 * normal(rng), v[d] = normal(rng);
    kv.store(*kernel_set(Level::scalar), 0, k.data(), v.data());
    kv.store(*kernel_set(Level::scalar), 1, zeros.data(), zeros.data());
    const double finest = GetParam() == KvType::int8 ? 2e-4 : 5e-4;
    const float most = std::fabs(*std::ranges::max_element(v, {}, [](float x) { return std::fabs(x); }));
    for (const KernelSet* set : levels_under_test()) {
      for (int n = 0; n < 8; ++n) {
        Rows rows(1, 1, head_dim);
        rows.fill(rng, 0.1f);
        const AttentionArgs args = rows.args(kv, 1);
        set->attention(args);
        double score = 0;
        for (uint32_t d = 0; d < head_dim; ++d) score += double{rows.q[d]} * k[d] * args.scale;
        const double taken = 1 / (1 + std::exp(-score));
        for (uint32_t d = 0; d < head_dim; ++d) ASSERT_NEAR(rows.out[d], taken * v[d], finest * most) << set->name;
      }
    }
  }
}

// With the mean's part taken out of K by one call and put back by the other, attention is that of the whole K: to the
// bit equal at all levels, near the twin, and, where a channel is huge, nearer to f32 than without.
TEST_P(AttentionOfLevels, KeyMeanIsPutBack) {
  if (!is_quantised(GetParam())) return;
  std::mt19937 rng(8);
  const uint32_t position = 600, group = 3;
  for (const auto& [head_dim, half, neox, pairs] :
       {std::tuple{64u, 32u, true, 0u}, {64u, 32u, true, 7u}, {80u, 20u, false, 1u}, {128u, 64u, true, 16u}}) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim);
    const MeanFixture mean(head_dim, half, neox, pairs, position / 32 + 1, rng);
    KvBlocks without(GetParam(), KvType::f32, head_dim, position + 1),
        plain(GetParam(), KvType::f32, head_dim, position + 1), exact(KvType::f32, KvType::f32, head_dim, position + 1);
    std::normal_distribution<float> normal(0, 1);
    const KernelSet& scalar = *kernel_set(Level::scalar);
    for (uint32_t t = 0; t <= position; ++t) {
      std::vector<float> k(head_dim), v(head_dim), removed(head_dim, 0.0f);
      scalar.remove_key_mean(mean.view, head_dim, t, removed.data());
      for (uint32_t d = 0; d < head_dim; ++d) k[d] = normal(rng) - removed[d], v[d] = normal(rng);
      exact.store(scalar, t, k.data(), v.data());
      plain.store(scalar, t, k.data(), v.data());
      for (const KernelSet* set : levels_under_test()) {
        std::vector<float> other = k;
        set->remove_key_mean(mean.view, head_dim, t, other.data());
        std::vector<float> same = k;
        scalar.remove_key_mean(mean.view, head_dim, t, same.data());
        ASSERT_TRUE(same_bits(other.data(), same.data(), head_dim)) << set->name;
      }
      scalar.remove_key_mean(mean.view, head_dim, t, k.data());
      without.store(scalar, t, k.data(), v.data());
    }
    Rows rows(1, group, head_dim);
    rows.fill(rng, 0.3f);
    const auto run = [&](const KernelSet& set, const KvBlocks& kv, const KeyMean* key_mean) {
      AttentionArgs args = rows.args(kv, position);
      args.key_mean = key_mean;
      set.attention(args);
      return std::vector<float>(rows.out.begin(), rows.out.end());
    };
    const auto want = run(scalar, exact, nullptr), rough = run(scalar, plain, nullptr),
               got = run(scalar, without, &mean.view);
    double error = 0, rough_error = 0;
    for (uint32_t i = 0; i < group * head_dim; ++i) {
      error += std::abs(got[i] - want[i]);
      rough_error += std::abs(rough[i] - want[i]);
    }
    EXPECT_LT(error, rough_error * 0.7);
    for (uint32_t h = 0; h < group; ++h) {
      const auto twin = attention_twin(without, rows.q.data() + h * head_dim, head_dim, position,
                                       rows.args(without, 0).scale, 0, 0, &mean.view);
      for (uint32_t d = 0; d < head_dim; ++d) ASSERT_NEAR(got[h * head_dim + d], twin.out[d], twin.bound[d]);
    }
    for (const KernelSet* set : levels_under_test())
      ASSERT_TRUE(same_bits(run(*set, without, &mean.view).data(), got.data(), got.size())) << set->name;
  }
}

}  // namespace
}  // namespace ellm::kernels
