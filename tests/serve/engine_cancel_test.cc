// Ending requests from outside: in every phase, with the model, and when the engine stops.
#include <gtest/gtest.h>

#include "tests/serve/answer.h"

namespace ellm::serve::testing {
namespace {

TEST(EngineCancel, WhileQueued) {
  auto limits = Rig::small();
  limits.max_running = 1;
  Rig rig({}, limits);
  rig.script->close();
  Answer running, queued;
  rig.engine->submit(greedy(prompt_of(4, 0), 20, running));
  rig.script->await_step();
  const auto id = rig.engine->submit(greedy(prompt_of(4, 1), 20, queued)).id;
  rig.engine->cancel(id);
  EXPECT_FALSE(queued.ended());
  rig.script->pass_one();  // one step later it is gone, though its turn has not come
  ASSERT_TRUE(queued.wait());
  EXPECT_EQ(queued.finish, Finish::cancelled);
  EXPECT_FALSE(running.ended());
  EXPECT_EQ(rig.engine->counters().queued, 0u);
  rig.script->open();
  ASSERT_TRUE(running.wait());
  EXPECT_EQ(running.tokens, alone(prompt_of(4, 0), 20, true));
}

TEST(EngineCancel, APlaceInTheQueueIsFreeAtOnce) {
  auto limits = Rig::small();
  limits.max_running = 1;
  limits.max_queued = 8;
  limits.queued_per_user = 1;
  Rig rig({}, limits);
  rig.script->close();
  Answer running;
  rig.engine->submit(greedy(prompt_of(4, 0), 2, running));
  rig.script->await_step();
  std::vector<Answer> queued(20);
  for (Answer& answer : queued) {
    const auto submitted = rig.engine->submit(greedy(prompt_of(4, 1), 20, answer));
    ASSERT_EQ(submitted.refusal, Refusal::none);
    EXPECT_EQ(rig.engine->submit(greedy(prompt_of(4, 1), 20, answer)).refusal, Refusal::queue_full);
    rig.engine->cancel(submitted.id);
    rig.engine->cancel(submitted.id);
    EXPECT_EQ(rig.engine->counters().queued, 0u);
  }
  rig.script->open();
  for (Answer& answer : queued) ASSERT_TRUE(answer.wait());
  ASSERT_TRUE(running.wait());
  EXPECT_EQ(rig.engine->counters().cancelled, queued.size());
  EXPECT_EQ(rig.engine->counters().queued + rig.engine->counters().running, 0u);
}

TEST(EngineCancel, WhilePrefilling) {
  Rig rig;
  rig.script->close();
  Answer answer;
  const auto id = rig.engine->submit(greedy(prompt_of(300, 0), 20, answer)).id;
  rig.script->await_step();
  rig.script->pass_one();
  rig.script->await_step();
  EXPECT_EQ(rig.engine->requests().at(0).state, "prefill");
  EXPECT_EQ(rig.engine->requests().at(0).done_tokens, 32u);
  rig.engine->cancel(id);
  rig.script->pass_one();
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::cancelled);
  EXPECT_EQ(answer.stats.completion_tokens, 0u);
  EXPECT_EQ(rig.script->steps.size(), 2u);
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(EngineCancel, WhileDecoding) {
  Rig rig;
  rig.script->close();
  Answer answer, other;
  const auto id = rig.engine->submit(greedy(prompt_of(3, 0), 400, answer)).id;
  rig.engine->submit(greedy(prompt_of(3, 1), 10, other));
  rig.script->await_step();
  for (int i = 0; i < 4; ++i) rig.script->pass_one();
  ASSERT_TRUE(answer.wait_tokens(3));
  rig.script->await_step();
  rig.engine->cancel(id);
  rig.script->pass_one();
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::cancelled);
  EXPECT_EQ(answer.stats.completion_tokens, answer.tokens.size());
  EXPECT_LE(answer.tokens.size(), 5u);
  rig.script->open();
  ASSERT_TRUE(other.wait());
  EXPECT_EQ(other.tokens, alone(prompt_of(3, 1), 10, true));
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(EngineCancel, WhileScoring) {
  Rig rig;
  rig.script->close();
  Answer answer;
  auto request = greedy(prompt_of(300, 0), 0, answer);
  request.score = true;
  const auto id = rig.engine->submit(std::move(request)).id;
  rig.script->await_step();
  rig.engine->cancel(id);
  rig.script->pass_one();
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::cancelled);
  EXPECT_TRUE(answer.scores.empty());
}

TEST(EngineCancel, FinishEarlyIsAStop) {
  Rig rig;
  rig.script->close();
  Answer answer;
  const auto id = rig.engine->submit(greedy(prompt_of(3, 0), 400, answer)).id;
  rig.script->await_step();
  for (int i = 0; i < 3; ++i) rig.script->pass_one();
  ASSERT_TRUE(answer.wait_tokens(2));
  rig.engine->finish_early(id);
  rig.engine->cancel(id);  // too late: the first one decides
  rig.script->open();
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::stop);
  EXPECT_EQ(answer.ends, 1);
}

TEST(EngineCancel, UnknownAndEndedIdsAreIgnored) {
  Rig rig;
  Answer answer, next;
  rig.engine->cancel(12345);
  const auto id = rig.engine->submit(greedy(prompt_of(3, 0), 3, answer)).id;
  ASSERT_TRUE(answer.wait());
  rig.engine->cancel(id);
  rig.engine->submit(greedy(prompt_of(3, 0), 3, next));
  ASSERT_TRUE(next.wait());
  EXPECT_EQ(next.finish, Finish::length);
}

TEST(EngineCancel, RemovingAModelEndsItsRequests) {
  Rig rig;
  rig.script->close();
  std::vector<Answer> answers(12);  // eight run, four wait
  for (uint32_t i = 0; i < 12; ++i) rig.engine->submit(greedy(prompt_of(3, i), 400, answers[i]));
  rig.script->await_step();
  rig.script->delay_us = 2000;  // they would take most of a second
  rig.script->open();
  EXPECT_TRUE(rig.engine->remove_model("fake"));
  for (auto& answer : answers) {
    ASSERT_TRUE(answer.wait());
    EXPECT_EQ(answer.finish, Finish::cancelled);
  }
  EXPECT_FALSE(rig.engine->remove_model("fake"));
  EXPECT_TRUE(rig.engine->models().empty());
  EXPECT_EQ(rig.engine->context("fake"), 0u);
  Answer late;
  EXPECT_EQ(rig.engine->submit(greedy({1}, 1, late)).refusal, Refusal::unknown_model);
  rig.engine->add_servable("fake", Fake{}.servable());
  EXPECT_EQ(rig.engine->submit(greedy({1}, 1, late)).refusal, Refusal::none);
  ASSERT_TRUE(late.wait());
}

TEST(EngineCancel, RemovingAModelRightAfterSubmitting) {
  Rig rig;
  for (int round = 0; round < 300; ++round) {
    std::vector<Answer> answers(3);
    for (uint32_t i = 0; i < 3; ++i) rig.engine->submit(greedy(prompt_of(3, i), 400, answers[i]));
    ASSERT_TRUE(rig.engine->remove_model("fake"));
    for (auto& answer : answers) {
      ASSERT_TRUE(answer.wait());
      EXPECT_EQ(answer.failure, std::nullopt);  // it may have been done by then
      EXPECT_EQ(answer.ends, 1);
    }
    rig.engine->add_servable("fake", Fake{}.servable());
  }
}

TEST(EngineCancel, AnotherModelOfTheSameNameIsRefused) {
  Rig rig;
  const int first = 0, second = 0;  // only the addresses matter
  const auto model_at = [](const int& place) {
    return std::shared_ptr<const model::Model>(std::shared_ptr<void>(), reinterpret_cast<const model::Model*>(&place));
  };
  ASSERT_TRUE(rig.engine->remove_model("fake"));
  Servable servable = Fake{}.servable();
  servable.model = model_at(second);
  rig.engine->add_servable("fake", std::move(servable));
  Answer answer;
  auto request = greedy(prompt_of(3, 0), 3, answer);
  request.expected = model_at(first);
  EXPECT_EQ(rig.engine->submit(request).refusal, Refusal::unknown_model);
  request.expected = model_at(second);
  EXPECT_EQ(rig.engine->submit(request).refusal, Refusal::none);
  ASSERT_TRUE(answer.wait());
}

TEST(EngineCancel, DrainWaitsForWhatRuns) {
  Rig rig;
  rig.script->close();
  Answer answer;
  rig.engine->submit(greedy(prompt_of(3, 0), 10, answer));
  rig.script->await_step();
  EXPECT_FALSE(rig.engine->drain(1));
  rig.script->open();
  EXPECT_TRUE(rig.engine->drain(10'000));
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::length);
}

TEST(EngineCancel, AStoppingEngineCancelsWhatIsLeft) {
  std::vector<Answer> answers(12);
  {
    Rig rig;
    rig.script->close();
    for (uint32_t i = 0; i < 12; ++i) rig.engine->submit(greedy(prompt_of(3, i), 400, answers[i]));
    rig.script->await_step();
    rig.script->delay_us = 2000;
    rig.script->open();
  }
  for (auto& answer : answers) EXPECT_EQ(answer.finish, Finish::cancelled);
}

}  // namespace
}  // namespace ellm::serve::testing
