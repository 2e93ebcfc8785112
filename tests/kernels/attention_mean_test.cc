// K's mean, taken out of what is stored and put back into the scores, at every level.
#include "kernels/rope.h"
#include "tests/kernels/attention_rows.h"

namespace ellm::kernels {
namespace {

using tests::attention_twin;
using tests::KvBlocks;
using tests::Rows;
using tests::same_bits;

class AttentionMean : public tests::AttentionOfLevels {};
INSTANTIATE_TEST_SUITE_P(KvTypes, AttentionMean, ::testing::Values(KvType::int8, KvType::int4), AttentionMean::label);

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

// With the mean's part taken out of K by one call and put back by the other, attention is that of the whole K: to the
// bit equal at all levels, near the twin, and, where a channel is huge, nearer to f32 than without.
TEST_P(AttentionMean, IsPutBack) {
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
      for (const KernelSet* set : levels_with_own(&KernelSet::attention)) {
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
    for (const KernelSet* set : levels_with_own(&KernelSet::attention))
      ASSERT_TRUE(same_bits(run(*set, without, &mean.view).data(), got.data(), got.size())) << set->name;
  }
}

}  // namespace
}  // namespace ellm::kernels
