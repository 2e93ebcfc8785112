// Attention of every level: to the bit equal to the scalar level, a chunk to its rows one by one, the whole to its
// segments merged; within a bound of full softmax in double; in guarded memory with NaN in all unwritten slots.
#include <limits>

#include "tests/kernels/attention_rows.h"

namespace ellm::kernels {
namespace {

using tests::attention_twin;
using tests::expect_levels_equal;
using tests::fill_kv;
using tests::Guarded;
using tests::KvBlocks;
using tests::Rows;
using tests::same_bits;

class Attention : public tests::AttentionOfOne {};
INSTANTIATE_TEST_SUITE_P(Levels, Attention, Attention::all(), Attention::label);

class AttentionOfLevels : public tests::AttentionOfLevels {};
INSTANTIATE_TEST_SUITE_P(KvTypes, AttentionOfLevels,
                         ::testing::Values(KvType::f16, KvType::int8, KvType::int4, KvType::f32),
                         AttentionOfLevels::label);

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
    std::fill(chunk.out.begin(), chunk.out.end(), tests::kUntouched);
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

}  // namespace
}  // namespace ellm::kernels
