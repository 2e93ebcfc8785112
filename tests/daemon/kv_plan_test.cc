// How memory is divided: what is promised must fit, and what cannot fit is refused with the sum.
#include "daemon/kv_plan.h"

#include <gtest/gtest.h>

#include "daemon/model/model.h"

namespace ellm::daemon {
namespace {

constexpr uint64_t MB = 1'000'000, GB = 1000 * MB;

MemoryNeeds needs(uint64_t available) {
  MemoryNeeds n;
  n.available_bytes = available;
  n.weight_bytes = 400 * MB;
  n.work_bytes = 50 * MB;
  n.geometry = {24, 2, 64, shm::KvType::f16, shm::KvType::f16};  // 12,288 bytes a token
  n.trained_context = 32768;                                     // 403 MB
  return n;
}

TEST(KvPlan, TakesAQuarterWhereThatIsMoreThanAContext) {
  const auto n = needs(23 * GB);
  const KvPlan plan = plan_kv("m", Config(), n);
  EXPECT_EQ(plan.context, 32768u);
  const double bytes = static_cast<double>(plan.tokens) * 12288;
  EXPECT_NEAR(bytes, (23 * GB - 450 * MB) / 4.0, 2.0 * MB);
}

TEST(KvPlan, OneContextIfItFits) {
  const KvPlan plan = plan_kv("m", Config(), needs(1 * GB));
  EXPECT_EQ(plan.context, 32768u);
  EXPECT_EQ(plan.tokens, 32768u);
}

TEST(KvPlan, LessContextWhereItDoesNotFit) {
  const KvPlan plan = plan_kv("m", Config(), needs(650 * MB));
  EXPECT_LT(plan.context, 32768u);
  EXPECT_GT(plan.context, 10'000u);
  EXPECT_EQ(plan.tokens, plan.context);
  EXPECT_LE(plan.tokens * 12288, 200 * MB);
}

TEST(KvPlan, RefusesWithTheSum) {
  try {
    plan_kv("big", Config(), needs(460 * MB));
    FAIL();
  } catch (const model::LoadError& e) {
    EXPECT_STREQ(e.what(),
                 "big: needs 400 MB for weights, 50 MB to work and 25 MB for 2048 tokens of keys and values, "
                 "together 475 MB of memory; 460 MB are available");
  }
  EXPECT_THROW(plan_kv("big", Config(), needs(100 * MB)), model::LoadError);
  EXPECT_THROW(plan_kv("big", Config(), needs(0)), model::LoadError);
}

TEST(KvPlan, SmallModelsTakeNoMoreThanTheyCanUse) {
  auto n = needs(1000 * GB);
  Config config;
  config.limits.running = 4;
  EXPECT_EQ(plan_kv("m", config, n).tokens, 4u * 32768);
  n.trained_context = 100;  // not a multiple of a page
  const KvPlan plan = plan_kv("m", config, n);
  EXPECT_EQ(plan.context, 100u);
  EXPECT_EQ(plan.tokens, 4u * 128);
}

TEST(KvPlan, ConfiguredMemoryAndContext) {
  Config config;
  config.kv.memory.value = 100 * MB;
  config.context = 4096;
  const KvPlan plan = plan_kv("m", config, needs(10 * GB));
  EXPECT_EQ(plan.context, 4096u);
  EXPECT_NEAR(static_cast<double>(plan.tokens) * 12288, 100.0 * MB, MB);
  config.context = 1'000'000;  // a cap, not a wish
  config.kv.memory.value = 1 * GB;
  EXPECT_EQ(plan_kv("m", config, needs(10 * GB)).context, 32768u);
  EXPECT_THROW(plan_kv("m", config, needs(1 * GB)), model::LoadError);  // asked for, not there
  config.kv.memory.value = 1 * MB;                                      // not 2048 tokens
  try {
    plan_kv("m", config, needs(10 * GB));
    ADD_FAILURE();
  } catch (const model::LoadError& e) {
    EXPECT_STREQ(e.what(), "m: kv.memory is 1000 KB; 2048 tokens of keys and values need 25 MB");
  }
}

}  // namespace
}  // namespace ellm::daemon
