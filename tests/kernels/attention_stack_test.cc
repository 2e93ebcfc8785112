// Rows of several sequences in one stack, of every level: each has the bits that it has alone.
#include <limits>

#include "tests/kernels/attention_rows.h"

namespace ellm::kernels {
namespace {

using tests::fill_kv;
using tests::KvBlocks;
using tests::Rows;
using tests::same_bits;

class AttentionStack : public tests::AttentionOfOne {};
INSTANTIATE_TEST_SUITE_P(Levels, AttentionStack, AttentionStack::all(), AttentionStack::label);

// Rows of several sequences that share pages up to different tokens: stacked, they give what each gives alone.
TEST_P(AttentionStack, RowsEqualEachAlone) {
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

}  // namespace
}  // namespace ellm::kernels
