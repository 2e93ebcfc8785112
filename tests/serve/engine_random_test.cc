// Many requests of all kinds from several threads, cancelled at random: every one ends once, every answer is right as
// far as it goes, and all pages come home.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/serve/answer.h"

namespace ellm::serve::testing {
namespace {

struct Case {
  std::vector<uint32_t> prompt;
  uint32_t max_tokens = 0;
  bool score = false, cancel = false, poison = false;
  Answer answer;
};

void check(Case& c) {
  ASSERT_TRUE(c.answer.wait());
  EXPECT_EQ(c.answer.ends, 1);
  if (c.answer.failure) {
    EXPECT_EQ(c.answer.failure, "poisoned");
    return;  // a poisoned prompt, or a request that shared its step
  }
  if (c.poison) {
    EXPECT_EQ(c.answer.finish, Finish::cancelled);
    return;
  }
  if (c.score) {
    if (c.answer.finish == Finish::stop) {
      EXPECT_EQ(c.answer.scores.size(), c.prompt.size() - 1);
    }
    return;
  }
  auto expected = alone(c.prompt, c.max_tokens, true);
  EXPECT_EQ(c.answer.stats.completion_tokens, c.answer.tokens.size());
  if (c.answer.finish == Finish::cancelled) {
    ASSERT_LE(c.answer.tokens.size(), expected.size());
    expected.resize(c.answer.tokens.size());
    EXPECT_TRUE(c.cancel);
  } else {
    EXPECT_EQ(c.answer.finish, Finish::length);
  }
  EXPECT_EQ(c.answer.tokens, expected);
}

/// Half of the prompts begin with a part of one of three texts.
void run_many(Rig& rig, std::vector<std::unique_ptr<Case>>& cases, uint32_t seed, bool poison) {
  std::mt19937 random(seed);
  for (auto& c : cases) {
    c = std::make_unique<Case>();
    if (random() % 2) c->prompt = prompt_of(random() % 150, random() % 3);
    const auto rest = prompt_of(1 + random() % 100, random());
    c->prompt.insert(c->prompt.end(), rest.begin(), rest.end());
    c->max_tokens = 1 + random() % 40;
    c->score = random() % 8 == 0;
    c->cancel = random() % 4 == 0;
    c->poison = poison && random() % 32 == 0;
    if (c->poison) c->prompt.back() = kPoison;
  }
  for (auto& c : cases) {
    for (;;) {
      auto request = greedy(c->prompt, c->max_tokens, c->answer);
      request.score = c->score;
      const auto submitted = rig.engine->submit(std::move(request));
      if (submitted.refusal == Refusal::queue_full) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_EQ(submitted.refusal, Refusal::none);
      if (c->cancel) {
        if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        rig.engine->cancel(submitted.id);
      }
      break;
    }
  }
}

void many(bool poison, size_t each) {
  Fake fake;
  fake.pages = 40;
  Rig rig(fake);
  std::vector<std::vector<std::unique_ptr<Case>>> all(3);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < all.size(); ++t) {
    all[t].resize(each);
    threads.emplace_back([&, t] { run_many(rig, all[t], 100 * t + poison, poison); });
  }
  for (auto& thread : threads) thread.join();
  for (auto& cases : all) {
    for (auto& c : cases) check(*c);
  }
  EXPECT_EQ(rig.free(), rig.pages);
  EXPECT_TRUE(rig.engine->requests().empty());
  EXPECT_EQ(rig.engine->counters().running, 0u);
  EXPECT_EQ(rig.engine->counters().queued, 0u);
}

TEST(EngineRandom, ManyRequests) { many(false, 300); }
TEST(EngineRandom, ManyRequestsSomeOfWhichFail) { many(true, 200); }

}  // namespace
}  // namespace ellm::serve::testing
