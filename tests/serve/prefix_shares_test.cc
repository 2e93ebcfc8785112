// Users of one cache: a flood does not push out what another has within his share, and a cache far too small for the
// work makes requests wait, not fail.
#include <gtest/gtest.h>

#include <numeric>

#include "daemon/serve/engine.h"
#include "tests/serve/answer.h"

namespace ellm::serve::testing {
namespace {

using Tokens = std::vector<uint32_t>;

RequestStats ask(Rig& rig, uint32_t uid, const Tokens& prompt, uint32_t max_tokens = 4,
                 std::optional<uint64_t> name_space = {}, std::vector<uint64_t> usable = {}) {
  Answer answer;
  EngineRequest request = greedy(prompt, max_tokens, answer);
  request.uid = uid;
  request.name_space = name_space;
  request.usable_namespaces = std::move(usable);
  EXPECT_EQ(rig.engine->submit(std::move(request)).refusal, Refusal::none);
  EXPECT_TRUE(answer.wait());
  EXPECT_EQ(answer.tokens, alone(prompt, max_tokens, true));
  return answer.stats;
}

/// Many requests at once, each answered as if it were alone.
void crowd(Rig& rig, uint32_t uid, uint32_t requests, uint32_t tokens, uint32_t max_tokens) {
  std::vector<std::unique_ptr<Answer>> answers;
  for (uint32_t i = 0; i < requests; ++i) {
    answers.push_back(std::make_unique<Answer>());
    EngineRequest request = greedy(prompt_of(tokens, 1000 * uid + i), max_tokens, *answers[i]);
    request.uid = uid;
    ASSERT_EQ(rig.engine->submit(std::move(request)).refusal, Refusal::none);
  }
  for (uint32_t i = 0; i < requests; ++i) {
    ASSERT_TRUE(answers[i]->wait());
    EXPECT_EQ(answers[i]->tokens, alone(prompt_of(tokens, 1000 * uid + i), max_tokens, true)) << i;
  }
}

TEST(PrefixShares, AFloodLeavesAnothersWorkingSet) {
  Rig rig;  // 64 pages
  std::vector<Tokens> mine;
  for (uint32_t i = 0; i < 5; ++i) {  // 5 pages each: 25 of a share of 32
    mine.push_back(prompt_of(150, 7 + i));
    ask(rig, 1, mine[i]);
  }
  crowd(rig, 2, 40, 200, 20);  // as many as run at once would take all pages
  for (const Tokens& prompt : mine) EXPECT_EQ(ask(rig, 1, prompt).cached_tokens, prompt.size() - 1);
  crowd(rig, 3, 20, 300, 20);
  for (uint32_t i = 4; i > 0; --i)  // of a third, 21 pages, what was used last
    EXPECT_EQ(ask(rig, 1, mine[i]).cached_tokens, mine[i].size() - 1) << i;
}

/// A request larger than a share still runs, if nothing else of that user does.
TEST(PrefixShares, NobodyStarves) {
  Rig rig;
  for (uint32_t uid = 1; uid < 9; ++uid) ask(rig, uid, prompt_of(220, uid));  // 7 of 8 pages each
  ask(rig, 9, prompt_of(450, 90));
  crowd(rig, 9, 6, 400, 8);
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(PrefixShares, AWorkingSetOfTenCachesIsAnsweredAll) {
  EngineLimits limits = Rig::small();
  limits.max_queued = 256;
  Rig rig({}, limits);  // 64 pages = 2,048 tokens
  uint64_t evicted = 0;
  for (uint32_t round = 0; round < 2; ++round) {
    crowd(rig, 1, 60, 200, 40);  // 60 requests of 8 pages: seven and a half caches
    crowd(rig, 2, 60, 60, 40);
    for (const uint32_t uid : {1u, 2u}) {
      const auto stats = ask(rig, uid, prompt_of(uid == 1 ? 200 : 60, 1000 * uid));
      evicted += stats.recomputed[static_cast<size_t>(Reason::evicted)];
      EXPECT_EQ(std::accumulate(stats.recomputed.begin(), stats.recomputed.end(), stats.cached_tokens),
                stats.prompt_tokens);
    }
  }
  EXPECT_GT(evicted, 0u);
  EXPECT_EQ(rig.free(), rig.pages);
}

/// What is asked for in a named namespace is found by all who use it; there one's own is found, too, but not the other
/// way round, and who could have used it is told.
TEST(PrefixShares, ANamedNamespaceIsShared) {
  Rig rig;
  const uint64_t docs = shm::namespace_of_name("docs");
  const auto told = [](const RequestStats& stats, Reason reason) {
    return stats.recomputed[static_cast<size_t>(reason)];
  };
  const Tokens text = prompt_of(150, 1);
  Tokens longer = text;
  longer.resize(180, 5);
  EXPECT_EQ(ask(rig, 1, text).cached_tokens, 0u);
  const auto copied = ask(rig, 1, longer, 4, docs);
  EXPECT_EQ(copied.cached_tokens, 150u);
  EXPECT_EQ(told(copied, Reason::fresh), 30u);
  EXPECT_EQ(ask(rig, 2, longer, 4, docs).cached_tokens, 179u);
  const auto unused = ask(rig, 2, longer, 4, {}, {docs});
  EXPECT_EQ(unused.cached_tokens, 0u);
  EXPECT_EQ(told(unused, Reason::name_space), 180u);
  EXPECT_EQ(told(ask(rig, 3, longer), Reason::fresh), 180u);
  EXPECT_EQ(ask(rig, 4, text, 4, docs).cached_tokens, 149u);
  EXPECT_EQ(ask(rig, 3, text, 4, docs).cached_tokens, 149u);
  Tokens private_text = prompt_of(64, 9);
  ask(rig, 1, private_text);
  EXPECT_EQ(ask(rig, 2, private_text, 4, docs).cached_tokens, 0u);
  EXPECT_EQ(rig.free(), rig.pages);
}

}  // namespace
}  // namespace ellm::serve::testing
