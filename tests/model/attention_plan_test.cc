// Which pieces a step's attention is cut into.
#include "daemon/model/attention_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace ellm::model {
namespace {

/// Items of a step of single rows at `positions`, each with pages of its own.
struct Step {
  ModelConfig config;
  std::vector<std::vector<shm::PageId>> pages;
  std::vector<Chunk> chunks;
  AttentionPlan plan;

  Step(uint32_t kv_heads, uint32_t workers, const std::vector<uint32_t>& positions)
      : config(sized(kv_heads)), plan(config, page_geometry(config, shm::KvType::int8), 8192, 8, workers, 8192) {
    static constexpr uint32_t kToken[] = {1};
    shm::PageId next = 0;
    for (const uint32_t position : positions) {
      auto& own = pages.emplace_back(position / 32 + 1);
      std::iota(own.begin(), own.end(), next);
      next += static_cast<shm::PageId>(own.size());
    }
    for (size_t i = 0; i < positions.size(); ++i) chunks.push_back({kToken, positions[i], pages[i]});
    plan.make(chunks);
  }
  static ModelConfig sized(uint32_t kv_heads) {
    ModelConfig c;
    c.layers = 1;
    c.heads = c.kv_heads = kv_heads;
    c.head_dim = 64;
    return c;
  }
};

TEST(AttentionPlan, ASingleContextIsCutWhereItsHeadsDoNotGoToTheWorkersEvenly) {
  const Step odd(3, 2, {4000}), few(2, 4, {4000});
  EXPECT_EQ(odd.plan.items().size(), 3u * 8);
  EXPECT_EQ(odd.plan.merges().size(), 3u);
  EXPECT_EQ(few.plan.items().size(), 2u * 8);
  for (const uint32_t heads : {2u, 4u}) {
    const Step even(heads, 2, {4000});
    EXPECT_EQ(even.plan.items().size(), heads);
    EXPECT_TRUE(even.plan.items()[0].whole());
    EXPECT_TRUE(even.plan.merges().empty());
  }
}

TEST(AttentionPlan, ContextsOfUnlikeLengthsAreCut) {
  const Step step(2, 2, {4000, 100});
  EXPECT_EQ(step.plan.items().size(), 2u * 8 + 2u);
}

TEST(AttentionPlan, ShortContextsStayWhole) {
  const Step step(1, 2, {1000});
  EXPECT_EQ(step.plan.items().size(), 1u);
  EXPECT_TRUE(step.plan.items()[0].whole());
}

}  // namespace
}  // namespace ellm::model
