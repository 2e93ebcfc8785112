// What a request finds of those before it and beside it, and how that is counted. Over the model that is a hash of the
// tokens before, read back from its pages: a wrong page changes the answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/serve/answer.h"

namespace ellm::serve::testing {
namespace {

using Tokens = std::vector<uint32_t>;

/// {fresh, last_token, logits_needed, evicted, namespace, fingerprint, retokenised, unsealed}
using Reasons = std::array<uint32_t, kReasons>;

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Runs one request to its end: its answer is right, and every token of its prompt is counted once.
void ask(Rig& rig, Answer& answer, const Tokens& prompt, uint32_t max_tokens, uint32_t uid = 0) {
  auto request = greedy(prompt, max_tokens, answer);
  request.uid = uid;
  ASSERT_EQ(rig.engine->submit(std::move(request)).refusal, Refusal::none);
  ASSERT_TRUE(answer.wait());
  ASSERT_EQ(answer.tokens, alone(prompt, max_tokens, true));
  const auto& reasons = answer.stats.recomputed;
  ASSERT_EQ(std::accumulate(reasons.begin(), reasons.end(), answer.stats.cached_tokens), prompt.size());
  ASSERT_EQ(rig.free(), rig.pages);
}

uint32_t computed_rows(Rig& rig) {
  std::lock_guard lock(rig.script->mutex);
  uint32_t rows = 0;
  for (const auto& step : rig.script->steps) {
    for (const auto& [first, count] : step) rows += count;
  }
  return rows;
}

TEST(Prefix, TheSamePromptAgainComputesItsLastToken) {
  for (uint32_t length = 1; length <= 100; ++length) {
    Rig rig;
    Answer first, second;
    ask(rig, first, prompt_of(length, 1), 1);
    EXPECT_EQ(first.stats.cached_tokens, 0u);
    EXPECT_EQ(first.stats.recomputed, (Reasons{length}));
    ask(rig, second, prompt_of(length, 1), 1);
    EXPECT_EQ(second.stats.cached_tokens, length - 1);
    EXPECT_EQ(second.stats.recomputed, (Reasons{0, 1}));
    EXPECT_EQ(computed_rows(rig), length + 1);
    EXPECT_EQ(rig.engine->counters().cached_tokens, length - 1);
  }
}

TEST(Prefix, AShorterPromptIsFoundInALongerOne) {
  Rig rig;
  Answer first;
  ask(rig, first, prompt_of(130, 1), 1);
  for (uint32_t length = 1; length < 130; ++length) {
    Answer answer;
    ask(rig, answer, prompt_of(length, 1), 1);
    EXPECT_EQ(answer.stats.cached_tokens, length - 1);
  }
}

TEST(Prefix, MatchesToTheTokenWhereverTextsPart) {
  for (uint32_t at = 0; at < 100; ++at) {
    Rig rig;
    Answer first, second;
    ask(rig, first, prompt_of(100, 1), 1);
    ask(rig, second, Tokens(prompt_of(at, 1)) + prompt_of(40, 2), 1);
    const uint32_t tail = prompt_of(1, 2)[0] == prompt_of(100, 1)[at] ? 1 : 0;  // by chance
    EXPECT_EQ(second.stats.cached_tokens, at + tail) << at;
    EXPECT_EQ(second.stats.recomputed, (Reasons{40 - tail}));
  }
}

TEST(Prefix, TheLongestMatchWinsWhateverItsAge) {
  Fake fake;
  fake.pages = 600;
  Rig rig(fake);
  const auto common = prompt_of(50, 1);
  Answer oldest;
  ask(rig, oldest, common + prompt_of(60, 2), 1);
  for (uint32_t salt = 10; salt < 110; ++salt) {
    Answer other;
    ask(rig, other, common + prompt_of(30, salt), 1);
  }
  Answer again;
  ask(rig, again, common + prompt_of(59, 2) + prompt_of(20, 3), 1);
  EXPECT_GE(again.stats.cached_tokens, 109u);
}

TEST(Prefix, TheNextTurnReusesTheAnswer) {
  Rig rig;
  Tokens talk = prompt_of(45, 1);
  uint32_t stored = 0;
  for (uint32_t turn = 0; turn < 6; ++turn) {
    Answer answer;
    ask(rig, answer, talk, 17);
    EXPECT_EQ(answer.stats.cached_tokens, stored);
    talk = talk + answer.tokens;
    stored = static_cast<uint32_t>(talk.size()) - 1;  // nobody has run the last one
    talk = talk + prompt_of(9, 50 + turn);
  }
}

TEST(Prefix, ACancelledRequestLeavesWhatItComputed) {
  Rig rig;
  rig.script->close();
  Answer cancelled, next;
  const auto id = rig.engine->submit(greedy(prompt_of(300, 1), 20, cancelled)).id;
  rig.script->await_step();
  rig.script->pass_one();  // 32 rows a step
  rig.script->await_step();
  rig.engine->cancel(id);
  rig.script->open();
  ASSERT_TRUE(cancelled.wait());
  EXPECT_EQ(cancelled.stats.recomputed, (Reasons{64}));
  ask(rig, next, prompt_of(300, 1), 1);
  EXPECT_EQ(next.stats.cached_tokens, 64u);
}

TEST(Prefix, AScoreComputesAllAndSaysWhy) {
  Rig rig;
  Answer first, score, second;
  ask(rig, first, prompt_of(40, 1), 1);
  auto request = greedy(prompt_of(40, 1) + prompt_of(30, 2), 1, score);
  request.score = true;
  rig.engine->submit(std::move(request));
  ASSERT_TRUE(score.wait());
  EXPECT_EQ(score.scores.size(), 69u);
  EXPECT_EQ(score.stats.cached_tokens, 0u);
  EXPECT_EQ(score.stats.recomputed, (Reasons{30, 0, 40}));
  ask(rig, second, prompt_of(40, 1) + prompt_of(30, 2), 1);
  EXPECT_EQ(second.stats.cached_tokens, 69u);
}

TEST(Prefix, UsersDoNotShare) {
  Rig rig;
  Answer mine, theirs, again;
  ask(rig, mine, prompt_of(100, 1), 1, 1000);
  ask(rig, theirs, prompt_of(100, 1), 1, 1001);
  EXPECT_EQ(theirs.stats.cached_tokens, 0u);
  EXPECT_EQ(theirs.stats.recomputed, (Reasons{100}));  // not that somebody else has it
  ask(rig, again, prompt_of(100, 1), 1, 1000);
  EXPECT_EQ(again.stats.cached_tokens, 99u);
}

TEST(Prefix, WhatWasGivenUpIsSaid) {
  Fake fake;
  fake.pages = 8;
  fake.context = 200;
  Rig rig(fake);
  Answer first, second, third;
  ask(rig, first, prompt_of(90, 1), 1);
  ask(rig, second, prompt_of(190, 2), 1);  // 6 of 8 pages
  ask(rig, third, prompt_of(90, 1), 1);
  EXPECT_EQ(third.stats.cached_tokens, 64u);  // its leaf went: 26 tokens
  EXPECT_EQ(third.stats.recomputed, (Reasons{0, 0, 0, 26}));
}

TEST(Prefix, AnswersStayRightInACacheOfAnyTightness) {
  for (uint32_t pages = 4; pages < 12; ++pages) {
    Fake fake;
    fake.pages = pages;
    fake.context = 32 * pages;
    Rig rig(fake);
    for (uint32_t i = 0; i < 60; ++i) {
      Answer answer;
      const uint32_t length = std::min(1 + i * 37 % 120, 32 * pages - 9);
      ask(rig, answer, prompt_of(length, i % 3), 8);
    }
  }
}

/// Holds the engine in a step until all have been submitted, so that they are admitted together.
void together(Rig& rig, std::vector<EngineRequest> requests, std::vector<RequestId>* ids = nullptr) {
  Answer blocker;
  rig.script->close();
  rig.engine->submit(greedy({1}, 1, blocker));
  rig.script->await_step();
  for (auto& request : requests) {
    const auto id = rig.engine->submit(std::move(request)).id;
    if (ids) ids->push_back(id);
  }
  rig.script->pass_one();
  ASSERT_TRUE(blocker.wait());
  rig.script->await_step();
}

TEST(Prefix, TwoThatArriveTogetherComputeTheirBeginningOnce) {
  Rig rig;
  Answer a, b;
  const auto common = prompt_of(200, 1);
  const auto prompt_a = common + prompt_of(20, 2), prompt_b = common + prompt_of(25, 3);
  together(rig, {greedy(prompt_a, 10, a), greedy(prompt_b, 10, b)});
  rig.script->open();
  ASSERT_TRUE(a.wait() && b.wait());
  EXPECT_EQ(a.tokens, alone(prompt_a, 10, true));
  EXPECT_EQ(b.tokens, alone(prompt_b, 10, true));
  EXPECT_EQ(a.stats.cached_tokens, 0u);
  EXPECT_EQ(a.stats.recomputed, (Reasons{220}));
  EXPECT_EQ(b.stats.cached_tokens, 192u);
  EXPECT_EQ(b.stats.recomputed, (Reasons{25, 0, 0, 0, 0, 0, 0, 8}));  // the page where they part was not sealed yet
  EXPECT_EQ(rig.engine->counters().cached_tokens, 192u);
}

EngineRequest sample(const Tokens& prompt, uint32_t index, uint32_t max_tokens, Answer& answer) {
  auto request = greedy(prompt, max_tokens, answer);
  request.sampling.temperature = 1;
  request.sampling.seed = 7;
  request.sampling.sample_index = index;
  return request;
}

/// Whatever a prompt leaves of its last page: each of the others computes the one row that gives its first logits.
TEST(Prefix, SamplesComputeTheirPromptOnce) {
  constexpr uint32_t kSamples = 8, kTokens = 20;
  for (uint32_t length : {1u, 2u, 5u, 31u, 32u, 33u, 34u, 63u, 64u, 65u, 90u, 200u}) {
    Rig rig;
    const auto prompt = prompt_of(length, 1);
    std::vector<Answer> answers(kSamples);
    std::vector<EngineRequest> requests;
    for (uint32_t i = 0; i < kSamples; ++i) requests.push_back(sample(prompt, i, kTokens, answers[i]));
    const uint32_t before = 1;  // the blocker's
    together(rig, std::move(requests));
    rig.script->open();
    for (uint32_t i = 0; i < kSamples; ++i) {
      ASSERT_TRUE(answers[i].wait());
      if (i == 0) {
        EXPECT_EQ(answers[i].stats.recomputed, (Reasons{length})) << length;
      } else {
        EXPECT_EQ(answers[i].stats.cached_tokens, length - 1) << length << " " << i;
      }
    }
    EXPECT_EQ(computed_rows(rig), before + length + (kSamples - 1) + kSamples * (kTokens - 1)) << length;
    EXPECT_EQ(rig.free(), rig.pages);
    for (uint32_t i = 0; i < kSamples; ++i) {  // what each is alone
      Rig other;
      Answer alone;
      other.engine->submit(sample(prompt, i, kTokens, alone));
      ASSERT_TRUE(alone.wait());
      EXPECT_EQ(answers[i].tokens, alone.tokens) << length << " " << i;
    }
  }
}

TEST(Prefix, SamplesGoOnWhereTheFirstOneEnds) {
  for (const uint32_t passes : {0u, 1u, 2u, 3u}) {
    Rig rig;
    const auto prompt = prompt_of(90, 1);
    std::vector<Answer> answers(4);
    std::vector<EngineRequest> requests;
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < 4; ++i) requests.push_back(sample(prompt, i, 20, answers[i]));
    together(rig, std::move(requests), &ids);
    for (uint32_t i = 0; i < passes; ++i) {
      rig.script->pass_one();
      rig.script->await_step();
    }
    rig.engine->cancel(ids[0]);
    rig.script->open();
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(answers[i].wait());
      if (i == 0) continue;
      Rig other;
      Answer alone;
      other.engine->submit(sample(prompt, i, 20, alone));
      ASSERT_TRUE(alone.wait());
      EXPECT_EQ(answers[i].tokens, alone.tokens) << i;
    }
    uint32_t computed = 0;  // of the prompt, by all
    for (const auto& answer : answers) {
      const auto& reasons = answer.stats.recomputed;
      computed += std::accumulate(reasons.begin(), reasons.end(), 0u);
    }
    EXPECT_GE(computed, 90u + 2) << passes;
    EXPECT_LE(computed, 90u + 3) << passes;
    EXPECT_EQ(rig.free(), rig.pages);
  }
}

TEST(Prefix, WhoWaitsTakesOverWhenTheOtherEnds) {
  Rig rig;
  Answer a, b;
  std::vector<RequestId> ids;
  const auto common = prompt_of(200, 1);
  together(rig, {greedy(common + prompt_of(20, 2), 10, a), greedy(common + prompt_of(25, 3), 10, b)}, &ids);
  rig.engine->cancel(ids[0]);  // while its first page is computed
  rig.script->open();
  ASSERT_TRUE(a.wait() && b.wait());
  EXPECT_EQ(a.finish, Finish::cancelled);
  EXPECT_EQ(b.tokens, alone(common + prompt_of(25, 3), 10, true));
  EXPECT_EQ(b.stats.cached_tokens, 32u);
  EXPECT_EQ(b.stats.recomputed, (Reasons{193}));
}

TEST(Prefix, WhoWaitsTakesOverWhenTheOtherFails) {
  Rig rig;
  Answer a, b;
  auto poisoned = prompt_of(64, 1);
  poisoned[40] = kPoison;
  auto healthy = poisoned;
  healthy[40] = 1;
  together(rig, {greedy(poisoned, 10, a), greedy(healthy, 10, b)});
  rig.script->open();
  ASSERT_TRUE(a.wait() && b.wait());
  EXPECT_EQ(a.failure, "poisoned");
  if (b.failure) return;  // it shared the step
  EXPECT_EQ(b.tokens, alone(healthy, 10, true));
  EXPECT_EQ(b.stats.cached_tokens, 32u);
}

TEST(Prefix, SixteenOverOneLongBeginningHoldItOnce) {
  Fake fake;
  fake.pages = 16 + 16 * 2;
  fake.context = 600;
  fake.max_rows = 64;
  auto limits = Rig::small();
  limits.max_running = 16;
  limits.step_tokens = 64;
  Rig rig(fake, limits);
  const auto common = prompt_of(512, 1);
  std::vector<Answer> answers(16);
  std::vector<EngineRequest> requests;
  for (uint32_t i = 0; i < 16; ++i) requests.push_back(greedy(common + prompt_of(10, 100 + i), 30, answers[i]));
  Answer first;
  ask(rig, first, common, 1);
  together(rig, std::move(requests));
  EXPECT_EQ(rig.engine->counters().running, 16u);  // there is no room for two private copies
  rig.script->open();
  for (uint32_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(answers[i].wait());
    EXPECT_EQ(answers[i].tokens, alone(common + prompt_of(10, 100 + i), 30, true));
    EXPECT_GE(answers[i].stats.cached_tokens, 512u);
  }
  EXPECT_EQ(rig.free(), rig.pages);
}

}  // namespace
}  // namespace ellm::serve::testing
