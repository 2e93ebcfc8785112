// The engine's answers, order, limits and endings, over a model that is a hash function.
#include "daemon/serve/engine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/serve/answer.h"

namespace ellm::serve::testing {
namespace {

TEST(Engine, AnswersAsComputedByHand) {
  Rig rig;
  Answer answer;
  const auto prompt = prompt_of(70, 1);  // three chunks, three pages
  ASSERT_EQ(rig.engine->submit(greedy(prompt, 40, answer)).refusal, Refusal::none);
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.tokens, alone(prompt, 40, true));
  EXPECT_EQ(answer.finish, Finish::length);
  EXPECT_EQ(answer.stats.prompt_tokens, 70u);
  EXPECT_EQ(answer.stats.completion_tokens, 40u);
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(Engine, StopsAtAnEndTokenWithoutReportingIt) {
  Rig rig;
  int ended_early = 0;
  for (uint32_t salt = 0; salt < 40; ++salt) {
    Answer answer;
    auto request = greedy(prompt_of(5, salt), 60, answer);
    request.ignore_eos = false;
    rig.engine->submit(std::move(request));
    ASSERT_TRUE(answer.wait());
    const auto expected = alone(prompt_of(5, salt), 60);
    EXPECT_EQ(answer.tokens, expected);
    EXPECT_EQ(answer.stats.completion_tokens, expected.size());
    EXPECT_EQ(answer.finish, expected.size() < 60 ? Finish::stop : Finish::length);
    ended_early += expected.size() < 60;
  }
  EXPECT_GT(ended_early, 5);
  EXPECT_EQ(rig.free(), rig.pages);
}

/// After each step's callbacks, the last too, and again where it could not be done.
TEST(Engine, SaysWhenCallbacksHaveRun) {
  Answer answer;
  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0, calls_at_end = 0;
  const auto delivered = [&] {
    std::lock_guard lock(mutex);
    ++calls;
    if (answer.ended()) ++calls_at_end;
    changed.notify_all();
    return calls_at_end > 2;
  };
  Fake fake;
  runtime::WorkerPool pool{runtime::read_topology(), 2, false};
  Engine engine(*kernels::kernel_set(kernels::Level::scalar), pool, Rig::small(), &std::chrono::steady_clock::now,
                delivered);
  engine.add_servable("fake", fake.servable());
  engine.submit(greedy(prompt_of(5, 1), 40, answer));
  ASSERT_TRUE(answer.wait());
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), [&] { return calls_at_end > 2; }));
  EXPECT_GE(calls, 40);
}

TEST(Engine, EndsAtTheContext) {
  Fake fake;
  fake.context = 100;
  Rig rig(fake);
  for (uint32_t max_tokens : {0u, 1000u}) {
    Answer answer;
    rig.engine->submit(greedy(prompt_of(90, 3), max_tokens, answer));
    ASSERT_TRUE(answer.wait());
    EXPECT_EQ(answer.tokens, alone(prompt_of(90, 3), 10, true));
    EXPECT_EQ(answer.finish, Finish::length);
  }
  Answer answer;
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(100, 3), 1, answer)).refusal, Refusal::too_long);
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(99, 3), 1, answer)).refusal, Refusal::none);
  ASSERT_TRUE(answer.wait());
}

TEST(Engine, AnOwnerThatThrowsHarmsNobodyElse) {
  Rig rig;
  Answer bad, good;
  auto request = greedy(prompt_of(3, 0), 5, bad);
  request.events.on_token = [](const auto&) { throw std::runtime_error("no"); };
  request.events.on_failed = [](Fault, const std::string&) { throw std::runtime_error("no"); };
  rig.engine->submit(std::move(request));
  request = greedy(prompt_of(3, 1), 5, bad);
  request.events.on_done = [](Finish, const RequestStats&) { throw std::runtime_error("no"); };
  rig.engine->submit(std::move(request));
  rig.engine->submit(greedy(prompt_of(3, 2), 9, good));
  ASSERT_TRUE(good.wait());
  EXPECT_EQ(good.tokens, alone(prompt_of(3, 2), 9, true));
  EXPECT_TRUE(rig.engine->drain(10'000));
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(Engine, TellsWhatKvMemoryIsPromised) {
  Rig rig;
  const uint64_t page = Fake{}.servable().kv->geometry().page_bytes();
  EXPECT_EQ(rig.engine->models().at(0).promised_bytes, rig.pages * page);
  Answer answer;
  rig.engine->submit(greedy(prompt_of(2 * shm::kPageTokens, 0), 1, answer));
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(rig.free(), rig.pages);
  EXPECT_EQ(rig.engine->models().at(0).promised_bytes, (rig.pages - 2) * page);  // memory that was used stays
}

TEST(Engine, RefusesWhatItCannotServe) {
  Rig rig;
  Answer answer;
  EXPECT_EQ(rig.engine->submit(greedy({}, 1, answer)).refusal, Refusal::empty);
  EXPECT_EQ(rig.engine->submit(greedy({kVocabulary}, 1, answer)).refusal, Refusal::bad_token);
  auto other = greedy({1}, 1, answer);
  other.model = "other";
  EXPECT_EQ(rig.engine->submit(std::move(other)).refusal, Refusal::unknown_model);
  EXPECT_TRUE(rig.engine->drain(0));
  EXPECT_EQ(rig.engine->submit(greedy({1}, 1, answer)).refusal, Refusal::stopping);
}

TEST(Engine, SamplesOfARequestWaitTogether) {
  auto limits = Rig::small();
  limits.max_running = 1;
  limits.max_queued = 2;
  limits.queued_per_user = 1;
  Rig rig({}, limits);
  rig.script->close();
  std::vector<Answer> samples(5);
  Answer other;
  for (uint32_t i = 0; i < samples.size(); ++i) {
    auto request = greedy(prompt_of(4, 0), 2, samples[i]);
    request.sampling.sample_index = i;
    EXPECT_EQ(rig.engine->submit(std::move(request)).refusal, Refusal::none) << i;
  }
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(4, 1), 2, other)).refusal, Refusal::queue_full);
  rig.script->open();
  for (Answer& sample : samples) ASSERT_TRUE(sample.wait());
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(4, 1), 2, other)).refusal, Refusal::none);
  ASSERT_TRUE(other.wait());
}

TEST(Engine, TheQueueIsBounded) {
  auto limits = Rig::small();
  limits.max_running = 1;
  limits.max_queued = 3;
  limits.max_queued_tokens = 1000;
  Rig rig({}, limits);
  rig.script->close();
  std::vector<Answer> answers(6);
  rig.engine->submit(greedy(prompt_of(4, 0), 2, answers[0]));
  rig.script->await_step();  // the first one runs
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(400, 1), 2, answers[1])).refusal, Refusal::none);
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(500, 2), 2, answers[2])).refusal, Refusal::none);
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(101, 3), 2, answers[3])).refusal, Refusal::queue_full);  // tokens
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(100, 3), 2, answers[3])).refusal, Refusal::none);
  EXPECT_EQ(rig.engine->submit(greedy(prompt_of(1, 3), 2, answers[4])).refusal, Refusal::queue_full);  // requests
  EXPECT_EQ(rig.engine->counters().queued, 3u);
  rig.script->open();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(answers[i].wait());
  EXPECT_EQ(rig.engine->counters().queued, 0u);
  EXPECT_EQ(rig.engine->counters().running, 0u);
}

TEST(Engine, SeveralShareAStepAndGetTheirOwnAnswers) {
  Rig rig;
  rig.script->close();
  std::vector<Answer> answers(8);
  for (uint32_t i = 0; i < 8; ++i) rig.engine->submit(greedy(prompt_of(3 + 5 * i, i), 20 + i, answers[i]));
  rig.script->open();
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(answers[i].wait());
    EXPECT_EQ(answers[i].tokens, alone(prompt_of(3 + 5 * i, i), 20 + i, true)) << i;
  }
  size_t most = 0;
  for (const auto& step : rig.script->steps) most = std::max(most, step.size());
  EXPECT_EQ(most, 8u);
  EXPECT_LT(rig.script->steps.size(), 60u);  // 188 tokens one by one would be more than that
}

TEST(Engine, SampledAnswersDoNotDependOnCompany) {
  Rig rig;
  const auto ask = [&](uint32_t i, Answer& answer) {
    auto request = greedy(prompt_of(6 + i, i), 25, answer);
    request.sampling.temperature = 1.1f;
    request.sampling.top_p = 0.9f;
    request.sampling.seed = i;
    request.sampling.repetition_penalty = 1.2f;
    rig.engine->submit(std::move(request));
  };
  std::vector<Answer> single(8), together(8);
  for (uint32_t i = 0; i < 8; ++i) {
    ask(i, single[i]);
    ASSERT_TRUE(single[i].wait());
  }
  for (uint32_t i = 0; i < 8; ++i) ask(i, together[i]);
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(together[i].wait());
    EXPECT_EQ(together[i].tokens, single[i].tokens);
  }
  EXPECT_NE(single[0].tokens, alone(prompt_of(6, 0), 25, true));
}

TEST(Engine, FirstComeFirstServedWhenPagesAreShort) {
  Fake fake;
  fake.pages = 16;
  Rig rig(fake);
  rig.script->close();
  std::vector<Answer> answers(4);
  rig.engine->submit(greedy(prompt_of(10, 0), 200, answers[0]));  // 7 pages
  rig.engine->submit(greedy(prompt_of(10, 1), 300, answers[1]));  // 10: must wait
  rig.engine->submit(greedy(prompt_of(10, 2), 2, answers[2]));    // 1: would fit, may not overtake
  rig.script->await_step();
  for (int i = 0; i < 5; ++i) rig.script->pass_one();
  ASSERT_TRUE(answers[0].wait_tokens(4));
  const auto rows = rig.engine->requests();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].state, "decode");
  EXPECT_EQ(rows[1].state, "queued");
  EXPECT_EQ(rows[2].state, "queued");
  rig.script->open();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(answers[i].wait());
  EXPECT_EQ(answers[1].tokens, alone(prompt_of(10, 1), 300, true));
  EXPECT_LE(answers[0].stats.queue_ms, answers[2].stats.queue_ms);
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(Engine, DecodesGoOnBesideALongPrompt) {
  Rig rig;
  rig.script->close();
  std::vector<Answer> answers(2);
  rig.engine->submit(greedy(prompt_of(4, 0), 30, answers[0]));
  rig.script->await_step();
  rig.engine->submit(greedy(prompt_of(300, 1), 5, answers[1]));
  rig.script->open();
  ASSERT_TRUE(answers[0].wait() && answers[1].wait());
  int shared = 0;
  for (const auto& step : rig.script->steps) {
    if (step.size() == 2 && step[0].second == 1 && step[1].second == 31) ++shared;  // one decode row, the rest prefill
  }
  EXPECT_GE(shared, 9);
  EXPECT_EQ(answers[0].tokens, alone(prompt_of(4, 0), 30, true));
  EXPECT_EQ(answers[1].tokens, alone(prompt_of(300, 1), 5, true));
}

/// Between two looks at this clock 3 ms pass, so a step takes 3 ms, whatever its size and whatever else the machine
/// does.
std::atomic<int> looks{0};
std::chrono::steady_clock::time_point clock_of_looks() {
  return std::chrono::steady_clock::time_point(std::chrono::milliseconds(3) * ++looks);
}

TEST(Engine, SlowStepsShrinkThePrefillBesideAnswers) {
  Fake fake;
  fake.max_rows = 512;
  fake.context = 2000;
  auto limits = Rig::small();
  limits.step_tokens = 256;
  limits.token_ms = 1;
  Rig rig(fake, limits, &clock_of_looks);
  std::vector<Answer> answers(2);
  rig.script->close();
  rig.engine->submit(greedy(prompt_of(4, 0), 200, answers[0]));
  rig.script->await_step();
  rig.engine->submit(greedy(prompt_of(1500, 1), 5, answers[1]));
  rig.script->open();
  ASSERT_TRUE(answers[1].wait());
  ASSERT_TRUE(answers[0].wait());
  uint32_t least = 256;
  for (const auto& step : rig.script->steps) {
    if (step.size() == 2 && step[1].first > 0 && step[1].second > 1 && step[1].first + step[1].second < 1500) {
      least = std::min(least, step[1].second);
    }
  }
  EXPECT_GE(least, 16u);  // a tile of the matrix products
  EXPECT_LE(least, 64u);  // of 256; 32 or, where a submission looked at the clock within a step, 52
  EXPECT_EQ(answers[1].tokens, alone(prompt_of(1500, 1), 5, true));
}

TEST(Engine, ScoresEveryToken) {
  Rig rig;
  for (uint32_t length : {1u, 2u, 5u, 64u, 65u}) {
    Answer answer;
    auto request = greedy(prompt_of(length, 9), 0, answer);
    request.score = true;
    request.score_top = 3;
    rig.engine->submit(std::move(request));
    ASSERT_TRUE(answer.wait());
    EXPECT_EQ(answer.finish, Finish::stop);
    ASSERT_EQ(answer.scores.size(), length - 1);
    ASSERT_EQ(answer.top.size(), length);
    uint64_t hash = 1;
    const auto prompt = prompt_of(length, 9);
    for (uint32_t i = 0; i < length; ++i) {
      hash = mix(hash, prompt[i]);
      const auto row = logits_of(hash);
      double sum = 0;
      for (float x : row) sum += std::exp(double{x});
      if (i + 1 < length) {
        EXPECT_NEAR(answer.scores[i], row[prompt[i + 1]] - std::log(sum), 1e-4);
      }
      std::vector<std::pair<float, int>> order;
      for (uint32_t t = 0; t < kVocabulary; ++t) order.emplace_back(-row[t], t);
      std::sort(order.begin(), order.end());
      ASSERT_EQ(answer.top[i].size(), 3u);
      for (int k = 0; k < 3; ++k) {
        EXPECT_EQ(answer.top[i][k].first, static_cast<uint32_t>(order[k].second));
        EXPECT_NEAR(answer.top[i][k].second, -order[k].first - std::log(sum), 1e-4);
      }
    }
  }
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(Engine, AScoreFillsTheWholeContext) {
  Fake fake;
  fake.context = 64;
  Rig rig(fake);
  Answer answer, longer;
  auto request = greedy(prompt_of(64, 9), 0, answer);
  request.score = true;
  EXPECT_EQ(rig.engine->submit(std::move(request)).refusal, Refusal::none);
  request = greedy(prompt_of(65, 9), 0, longer);
  request.score = true;
  EXPECT_EQ(rig.engine->submit(std::move(request)).refusal, Refusal::too_long);
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.scores.size(), 63u);
}

TEST(Engine, AFailedStepFailsItsRequestsAndNoOthers) {
  Rig rig;
  Answer bad, after;
  rig.engine->submit(greedy({1, 2, kPoison}, 5, bad));
  ASSERT_TRUE(bad.wait());
  EXPECT_EQ(bad.failure, "poisoned");
  rig.engine->submit(greedy({1, 2, 3}, 5, after));
  ASSERT_TRUE(after.wait());
  EXPECT_EQ(after.tokens, alone({1, 2, 3}, 5, true));
  EXPECT_EQ(rig.free(), rig.pages);
  EXPECT_TRUE(rig.engine->requests().empty());
}

/// In one step with others, sampled and greedy, at the first token and at a later one; and a score.
TEST(Engine, AnAnswerThatWouldBeNaNFailsAlone) {
  Rig rig;
  const auto tokens = alone({1, 2, 3}, 5, true);
  ASSERT_EQ(std::ranges::count(tokens, tokens[2]), 1);
  rig.script->nan_token = tokens[2];
  rig.script->close();
  std::vector<Answer> bad(3);
  Answer good;
  rig.engine->submit(greedy({1, tokens[2]}, 5, bad[0]));
  auto request = greedy({1, 2, 3}, 5, bad[1]);
  rig.engine->submit(std::move(request));
  request = greedy({1, 2, tokens[2], 4}, 1, bad[2]);
  request.score = true;
  rig.engine->submit(std::move(request));
  const std::vector<uint32_t> other = {tokens[2] == 4 ? 5u : 4u};
  const auto expected = alone(other, 5, true);
  ASSERT_EQ(std::ranges::count(expected, tokens[2]), 0);
  rig.engine->submit(greedy(other, 5, good));
  rig.script->open();
  for (Answer& answer : bad) {
    ASSERT_TRUE(answer.wait());
    ASSERT_TRUE(answer.failure);
    EXPECT_NE(answer.failure->find("NaN"), std::string::npos) << *answer.failure;
    EXPECT_EQ(answer.fault, Fault::model);
  }
  EXPECT_EQ(bad[1].tokens, std::vector(tokens.begin(), tokens.begin() + 3));
  ASSERT_TRUE(good.wait());
  EXPECT_EQ(good.tokens, expected);
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(Engine, ModelsTakeTurns) {
  Rig rig;
  Fake second;
  rig.engine->add_servable("second", second.servable());
  EXPECT_THROW(rig.engine->add_servable("second", Fake{}.servable()), model::LoadError);
  rig.script->close();
  second.script->close();
  Answer a, b;
  auto request = greedy(prompt_of(4, 1), 20, b);
  request.model = "second";
  rig.engine->submit(std::move(request));
  second.script->await_step();
  rig.engine->submit(greedy(prompt_of(4, 0), 20, a));
  for (int i = 0; i < 5; ++i) {  // neither goes on without the other
    second.script->pass_one();
    rig.script->await_step();
    rig.script->pass_one();
    second.script->await_step();
  }
  EXPECT_LE(a.tokens.size(), 6u);
  rig.script->open();
  second.script->open();
  ASSERT_TRUE(a.wait() && b.wait());
  EXPECT_EQ(b.tokens, alone(prompt_of(4, 1), 20, true));
}

TEST(Engine, CountsWhatItServed) {
  Rig rig;
  Answer a, b;
  rig.engine->submit(greedy(prompt_of(7, 0), 5, a));
  rig.engine->submit(greedy(prompt_of(9, 0), 6, b));
  ASSERT_TRUE(a.wait() && b.wait());
  const auto counters = rig.engine->counters();
  EXPECT_EQ(counters.served, 2u);
  EXPECT_EQ(counters.prompt_tokens, 16u);
  EXPECT_EQ(counters.completion_tokens, 11u);
  EXPECT_GE(counters.steps, 6u);
}

}  // namespace
}  // namespace ellm::serve::testing
