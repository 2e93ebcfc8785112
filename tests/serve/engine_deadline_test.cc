// Deadlines: a request ends within a step of its own, wherever it is, with what there is of it. The clock is the
// test's.
#include <gtest/gtest.h>

#include "tests/serve/answer.h"

namespace ellm::serve::testing {
namespace {

using namespace std::chrono_literals;
using Time = std::chrono::steady_clock::time_point;

std::atomic<Time::rep> ticks{0};
Time test_now() { return Time(Time::duration(ticks.load())); }
void pass(std::chrono::milliseconds time) { ticks += std::chrono::duration_cast<Time::duration>(time).count(); }

struct DeadlineRig : Rig {
  explicit DeadlineRig(uint32_t max_running = 8) : Rig({}, limits_of(max_running), &test_now) {}
  static EngineLimits limits_of(uint32_t max_running) {
    EngineLimits limits = small();
    limits.max_running = max_running;
    return limits;
  }
  RequestId submit(uint32_t prompt, uint32_t salt, Answer& answer, std::optional<std::chrono::milliseconds> left) {
    EngineRequest request = greedy(prompt_of(prompt, salt), 20, answer);
    if (left) request.deadline = test_now() + *left;
    const auto submitted = engine->submit(std::move(request));
    EXPECT_EQ(submitted.refusal, Refusal::none);
    return submitted.id;
  }
};

void expect_deadline(DeadlineRig& rig, Answer& answer, const std::vector<uint32_t>& prompt) {
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::deadline);
  EXPECT_EQ(answer.ends, 1);
  auto expected = alone(prompt, 20, true);
  ASSERT_LT(answer.tokens.size(), expected.size());
  expected.resize(answer.tokens.size());
  EXPECT_EQ(answer.tokens, expected);
  EXPECT_EQ(answer.stats.completion_tokens, answer.tokens.size());
  EXPECT_EQ(rig.engine->counters().deadline_ends, 1u);
  EXPECT_EQ(rig.engine->counters().served, 0u);
}

TEST(EngineDeadline, InThePastEndsAtOnce) {
  DeadlineRig rig;
  Answer answer;
  rig.submit(40, 0, answer, -1ms);
  expect_deadline(rig, answer, prompt_of(40, 0));
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_TRUE(rig.script->steps.empty());
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(EngineDeadline, WhileQueued) {
  DeadlineRig rig(1);
  rig.script->close();
  Answer running, queued;
  rig.submit(4, 0, running, std::nullopt);
  rig.script->await_step();
  rig.submit(4, 1, queued, 100ms);
  pass(99ms);
  rig.script->pass_one();
  rig.script->await_step();
  EXPECT_FALSE(queued.ended());
  EXPECT_NEAR(rig.engine->requests().at(1).deadline_left_ms.value(), 1, 1e-6);
  pass(1ms);
  rig.script->pass_one();
  expect_deadline(rig, queued, prompt_of(4, 1));
  EXPECT_FALSE(running.ended());
  rig.script->open();
  ASSERT_TRUE(running.wait());
  EXPECT_EQ(running.tokens, alone(prompt_of(4, 0), 20, true));
}

TEST(EngineDeadline, WhilePrefilling) {
  DeadlineRig rig;
  rig.script->close();
  Answer answer;
  rig.submit(300, 0, answer, 100ms);
  rig.script->await_step();
  rig.script->pass_one();
  rig.script->await_step();
  EXPECT_EQ(rig.engine->requests().at(0).state, "prefill");
  pass(100ms);
  rig.script->pass_one();
  expect_deadline(rig, answer, prompt_of(300, 0));
  EXPECT_EQ(rig.script->steps.size(), 2u);
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(EngineDeadline, WhileDecodingKeepsTheTextSoFar) {
  DeadlineRig rig;
  rig.script->close();
  Answer answer;
  rig.submit(3, 0, answer, 100ms);
  for (int i = 0; i < 4; ++i) rig.script->pass_one();
  ASSERT_TRUE(answer.wait_tokens(4));
  rig.script->await_step();
  pass(100ms);
  rig.script->pass_one();
  expect_deadline(rig, answer, prompt_of(3, 0));
  EXPECT_EQ(answer.tokens.size(), 5u);
  EXPECT_EQ(rig.free(), rig.pages);
}

TEST(EngineDeadline, WhilePreempted) {
  DeadlineRig rig(1);
  rig.script->close();
  Answer answer, other;
  EngineRequest request = greedy(prompt_of(3, 0), 20, answer);
  request.priority = Priority::batch;
  request.deadline = test_now() + 100ms;
  rig.engine->submit(std::move(request));
  for (int i = 0; i < 4; ++i) rig.script->pass_one();
  rig.script->await_step();
  rig.submit(3, 1, other, std::nullopt);
  rig.script->pass_one();
  rig.script->await_step();
  EXPECT_EQ(rig.engine->requests().at(0).state, "preempted");
  pass(99ms);
  rig.script->pass_one();
  rig.script->await_step();
  EXPECT_FALSE(answer.ended());
  pass(1ms);
  rig.script->pass_one();
  expect_deadline(rig, answer, prompt_of(3, 0));
  EXPECT_EQ(answer.tokens.size(), 5u);
  EXPECT_FALSE(other.ended());
  rig.script->open();
  ASSERT_TRUE(other.wait());
  EXPECT_EQ(other.tokens, alone(prompt_of(3, 1), 20, true));
}

TEST(EngineDeadline, LaterThanTheEndChangesNothing) {
  DeadlineRig rig;
  Answer answer;
  rig.submit(3, 0, answer, 100ms);
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::length);
  EXPECT_EQ(rig.engine->counters().deadline_ends, 0u);
}

TEST(EngineDeadline, ACancelGoesFirst) {
  DeadlineRig rig;
  rig.script->close();
  Answer answer;
  const auto id = rig.submit(300, 0, answer, 100ms);
  rig.script->await_step();
  pass(100ms);
  rig.engine->cancel(id);
  rig.script->pass_one();
  ASSERT_TRUE(answer.wait());
  EXPECT_EQ(answer.finish, Finish::cancelled);
  EXPECT_EQ(rig.engine->counters().cancelled, 1u);
}

TEST(EngineDeadline, StepsAndClassesAreCounted) {
  DeadlineRig rig(1);
  rig.script->close();
  Answer running, queued;
  rig.submit(40, 0, running, std::nullopt);
  rig.script->await_step();
  EngineRequest request = greedy(prompt_of(4, 1), 2, queued);
  request.priority = Priority::batch;
  rig.engine->submit(std::move(request));
  auto counters = rig.engine->counters();
  EXPECT_EQ(counters.running_by, (std::array<uint32_t, 2>{1, 0}));
  EXPECT_EQ(counters.queued_by, (std::array<uint32_t, 2>{0, 1}));
  EXPECT_EQ(rig.engine->requests().at(1).priority, Priority::batch);
  pass(30ms);
  rig.script->pass_one();
  rig.script->await_step();
  pass(10ms);
  rig.script->pass_one();
  rig.script->await_step();
  counters = rig.engine->counters();
  EXPECT_EQ(counters.prefill_rows, 40u);
  EXPECT_EQ(counters.last_prefill_rows, 8u);
  EXPECT_EQ(counters.last_step_sequences, 1u);
  EXPECT_NEAR(counters.last_step_ms, 10, 1e-6);
  EXPECT_NEAR(counters.mean_step_ms, 30 - 20.0 / 16, 1e-6);
  EXPECT_NEAR(counters.steps_ms, 40, 1e-6);
  rig.script->open();
  ASSERT_TRUE(queued.wait());
  EXPECT_EQ(rig.engine->counters().queued_by, (std::array<uint32_t, 2>{0, 0}));
}

}  // namespace
}  // namespace ellm::serve::testing
