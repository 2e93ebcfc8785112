// A context's first token, whose K and V keep what rounding left, of every level.
#include "tests/kernels/attention_rows.h"

namespace ellm::kernels {
namespace {

using tests::KvBlocks;
using tests::Rows;

class AttentionFirst : public tests::AttentionOfLevels {};
INSTANTIATE_TEST_SUITE_P(KvTypes, AttentionFirst, ::testing::Values(KvType::int8, KvType::int4), AttentionFirst::label);

/// A context's first token is kept to 16 bits (int8) or 12 (int4): its score beside a key of zeros shows in what it
/// takes of two values.
TEST_P(AttentionFirst, TokenIsKeptFinely) {
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
    for (const KernelSet* set : levels_with_own(&KernelSet::attention)) {
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

}  // namespace
}  // namespace ellm::kernels
