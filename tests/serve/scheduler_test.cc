// The scheduler on a simulated machine: the bound on the time between tokens, shares by user and class, waiting.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/serve/simulation.h"

namespace ellm::serve::testing {
namespace {

EngineLimits limits(uint32_t running = 16) {
  EngineLimits l;
  l.max_running = running;
  l.step_tokens = 512;
  l.score_rows = 16;
  return l;
}

void expect_right(const Simulation& simulation) {
  for (const auto& run : simulation.runs) {
    ASSERT_TRUE(run->finish) << run->salt;
    if (*run->finish != Finish::length) continue;
    EXPECT_EQ(run->tokens, alone(prompt_of(run->job.prompt, static_cast<uint32_t>(run->salt)), run->job.answer, true))
        << run->salt;
  }
  EXPECT_EQ(simulation.free(), simulation.all_pages());
}

std::vector<double> between_tokens(const Record& run, double from, double until) {
  std::vector<double> gaps;
  for (size_t i = 1; i < run.token_at.size(); ++i) {
    if (run.token_at[i - 1] >= from && run.token_at[i] <= until) gaps.push_back(run.token_at[i] - run.token_at[i - 1]);
  }
  return gaps;
}

/// The figure of the issue: four answers beside a prompt of 16K tokens.
TEST(Scheduler, AnswersKeepTheBoundBesideALongPromptAndItKeepsItsRate) {
  const auto machine = [](Simulation& s) {
    s.machine = {.base = 12, .decode = 1.5, .row = 0.8, .row_per_depth = 5e-5};
  };
  Simulation alone_prompt(limits());
  machine(alone_prompt);
  const Record& prompt_alone = alone_prompt.submit({.prompt = 16000});
  alone_prompt.run_all();
  const double rate_alone = 16000 / prompt_alone.ttft();

  Simulation simulation(limits());
  machine(simulation);
  std::vector<Record*> answers;
  for (uint32_t i = 0; i < 4; ++i) answers.push_back(&simulation.submit({.uid = i, .prompt = 20, .answer = 3000}));
  for (int i = 0; i < 50; ++i) simulation.turn();
  const double decode_alone = 12 + 4 * 1.5;
  const Record& prompt = simulation.submit({.uid = 9, .prompt = 16000});
  while (prompt.token_at.empty()) simulation.turn();
  std::vector<double> gaps;
  for (const Record* run : answers) {
    const auto more = between_tokens(*run, prompt.submitted, prompt.token_at[0]);
    gaps.insert(gaps.end(), more.begin(), more.end());
  }
  EXPECT_LE(percentile(gaps, 0.95), 1.1 * 150);
  EXPECT_LE(percentile(gaps, 1), 2 * 150);
  const double mean_gap = prompt.ttft() / (static_cast<double>(gaps.size()) / 4);
  EXPECT_GE(16000 / prompt.ttft(), 0.8 * rate_alone * (1 - decode_alone / mean_gap));
}

TEST(Scheduler, TheBoundHoldsWhenCostsChange) {
  Simulation simulation(limits());
  simulation.machine = {.base = 12, .decode = 1.5, .row = 0.5};
  const Record& answer = simulation.submit({.prompt = 20, .answer = 5000});
  for (int i = 0; i < 10; ++i) simulation.turn();
  simulation.submit({.uid = 9, .prompt = 40000});
  simulation.run_until(5000);
  simulation.machine.row = 2;
  const double changed = simulated_ms;
  simulation.run_until(10000);
  simulation.machine.row = 0.5;
  simulation.run_until(15000);
  EXPECT_LE(percentile(between_tokens(answer, 0, changed), 0.95), 170);
  EXPECT_LE(percentile(between_tokens(answer, changed + 3000, 10000), 0.95), 170);
  const auto last = between_tokens(answer, 12500, 15000);
  EXPECT_LE(percentile(last, 0.95), 170);
  EXPECT_GE(percentile(last, 0.5), 120);  // and uses what it may
}

TEST(Scheduler, WhereOnlyBatchIsAnsweredStepsAreLonger) {
  Simulation simulation(limits());
  simulation.machine.row = 5;
  const Record& answer = simulation.submit({.prompt = 20, .answer = 5000, .priority = Priority::batch});
  for (int i = 0; i < 10; ++i) simulation.turn();
  simulation.submit({.uid = 9, .prompt = 20000});
  simulation.run_until(30000);
  const auto gaps = between_tokens(answer, 5000, 30000);
  EXPECT_NEAR(percentile(gaps, 0.5), 600, 60);
}

TEST(Scheduler, AnotherModelsAnswersCount) {
  Simulation simulation(limits());
  simulation.submit({.prompt = 20000});
  for (int i = 0; i < 20; ++i) simulation.turn({2, Urgency::interactive});
  const double before = simulated_ms;
  for (int i = 0; i < 20; ++i) simulation.turn({2, Urgency::interactive});
  EXPECT_NEAR((simulated_ms - before) / 20, 75, 12);
}

/// Both always have requests waiting. Tokens served by the end of the time.
std::vector<double> contend(EngineLimits l, const Job& a, const Job& b, double ms, uint32_t pages = 4096) {
  Simulation simulation(l, pages);
  for (uint32_t i = 0; i < 40; ++i) {
    simulation.submit(a);
  }
  for (uint32_t i = 0; i < 40; ++i) simulation.submit(b);
  simulation.on_end = [&](Record& run) { simulation.submit(run.job); };
  simulation.run_until(ms);
  auto served = simulation.served();
  return {served[a.uid], served[b.uid]};
}

TEST(Scheduler, UsersOfEqualWeightGetEqualTokens) {
  const Job shapes[] = {{.prompt = 300, .answer = 40}, {.prompt = 60, .answer = 200}, {.prompt = 1500, .answer = 10}};
  for (const Job& x : shapes) {
    for (Job y : shapes) {
      y.uid = 1;
      EXPECT_GE(jain(contend(limits(), x, y, 120000)), 0.95) << x.prompt << " " << y.prompt;
    }
  }
}

TEST(Scheduler, WeightsAreRespected) {
  EngineLimits l = limits();
  l.weights = {{1, 3}};
  const auto served =
      contend(l, {.uid = 0, .prompt = 200, .answer = 60}, {.uid = 1, .prompt = 200, .answer = 60}, 120000);
  EXPECT_NEAR(served[1] / served[0], 3, 0.3);
}

TEST(Scheduler, PagesAreSharedByWeight) {
  EngineLimits l = limits(64);
  const auto served =
      contend(l, {.uid = 0, .prompt = 500, .answer = 100}, {.uid = 1, .prompt = 500, .answer = 100}, 60000, 160);
  EXPECT_GE(jain(served), 0.95);
}

/// TTFTs of one at a time, beside `others` requests of another user.
std::vector<double> one_at_a_time(const Machine& machine, uint32_t others) {
  Simulation simulation(limits(64));
  simulation.machine = machine;
  for (uint32_t i = 0; i < others; ++i) simulation.submit({.uid = 0, .prompt = 100, .answer = 100});
  for (int i = 0; i < 5; ++i) simulation.turn();
  simulation.submit({.uid = 1, .prompt = 100, .answer = 20});
  std::vector<double> ttfts;
  std::vector<Job> again;
  simulation.on_end = [&](Record& run) {
    if (run.job.uid == 1) ttfts.push_back(run.ttft());
    again.push_back(run.job);
  };
  // A client's next request comes while the step runs that began when it had the last answer: it waits for all of it.
  while (ttfts.size() < 60) {
    std::vector<Job> late;
    std::swap(late, again);
    const double begin = simulated_ms;
    simulation.turn();
    for (const Job& job : late) simulation.submit(job).submitted = begin;
  }
  return ttfts;
}

TEST(Scheduler, AFloodOfOneUserDoesNotHoldUpAnothersSingleRequests) {
  for (const Machine& machine : {Machine{.base = 5.5, .decode = 1.5, .row = 2},    // qwen-0.5b on two cores of a Zen 5
                                 Machine{.base = 28, .decode = 2.3, .row = 2}}) {  // a slower one
    const double own = machine.base + 100 * machine.row;
    EXPECT_LE(percentile(one_at_a_time(machine, 1), 0.95), 1.3 * own);
    // At most the flood's longest step, which runs when he comes, and the step that is his own.
    const double longest = std::max(150.0, 3 * (machine.base + 63 * machine.decode));
    EXPECT_LE(percentile(one_at_a_time(machine, 200), 0.95), 1.05 * (longest + own));  // costs are estimates
  }
}

TEST(Scheduler, AShortPromptDoesNotWaitBehindALongOne) {
  for (const uint32_t uid : {0u, 1u}) {  // of the same user, of another
    Simulation simulation(limits());
    simulation.submit({.prompt = 16000});
    for (int i = 0; i < 4; ++i) simulation.turn();
    const Record& brief = simulation.submit({.uid = uid, .prompt = 60});
    simulation.run_until(20000);
    EXPECT_LE(brief.ttft(), uid == 0 ? 1300 : 700);  // two steps without answers; one
    simulation.run_all();
    expect_right(simulation);
  }
}

TEST(Scheduler, ALongPromptGoesOnBesideManyShortOnesOfItsUser) {
  Simulation simulation(limits());
  const Record& longest = simulation.submit({.prompt = 8000});
  for (int i = 0; i < 30; ++i) simulation.submit({.prompt = 200});
  simulation.on_end = [&](Record& run) {
    if (longest.token_at.empty()) simulation.submit(run.job);
  };
  while (longest.token_at.empty()) simulation.turn();
  EXPECT_LE(longest.ttft(), 3 * 8000 * simulation.machine.row);
}

TEST(Scheduler, InteractiveGoesBeforeBatchWhichKeepsItsPart) {
  Simulation simulation(limits(16));
  simulation.machine.row = 0.5;
  for (int i = 0; i < 60; ++i) simulation.submit({.uid = 0, .prompt = 300, .answer = 20, .priority = Priority::batch});
  for (int i = 0; i < 60; ++i) simulation.submit({.uid = 1, .prompt = 300, .answer = 20});
  simulation.on_end = [&](Record& run) { simulation.submit(run.job); };
  simulation.run_until(120000);
  auto served = simulation.served();
  EXPECT_GE(served[0] / (served[0] + served[1]), 0.04);
  EXPECT_LE(served[0] / (served[0] + served[1]), 0.15);
}

/// Who needs most of the pages is passed by, but not for ever; nor is a batch request, whatever comes.
TEST(Scheduler, NobodyIsPassedForEver) {
  for (const Priority priority : {Priority::interactive, Priority::batch}) {
    EngineLimits l = limits(8);
    l.batch_percent = 0;
    Simulation simulation(l, 100);
    for (int i = 0; i < 12; ++i) simulation.submit({.uid = 1, .prompt = 250, .answer = 30});
    simulation.on_end = [&](Record& run) { simulation.submit(run.job); };
    for (int i = 0; i < 10; ++i) simulation.turn();
    Record& large = simulation.submit({.uid = 2, .prompt = 2800, .answer = 300, .priority = priority});
    const size_t before = simulation.admissions.size();
    while (!large.finish && simulated_ms < 1e6) simulation.turn();
    ASSERT_TRUE(large.finish);
    const auto own = std::find(simulation.admissions.begin(), simulation.admissions.end(), large.sequence->id);
    ASSERT_NE(own, simulation.admissions.end());
    const auto passed = std::count_if(simulation.admissions.begin() + static_cast<std::ptrdiff_t>(before), own,
                                      [&](RequestId id) { return id > large.sequence->id; });
    EXPECT_LE(passed, priority == Priority::batch ? 32 : 8);
    EXPECT_GT(passed, 0);
    EXPECT_LE(large.sequence->preemptions.load(), 3u);
  }
}

TEST(Scheduler, AFullHouseGivesAPlaceToWhoHasNone) {
  Simulation simulation(limits(8));
  for (int i = 0; i < 30; ++i) simulation.submit({.uid = 0, .prompt = 100, .answer = 500});
  for (int i = 0; i < 30; ++i) simulation.turn();
  const Record& other = simulation.submit({.uid = 1, .prompt = 100, .answer = 10});
  simulation.turn();
  EXPECT_EQ(simulation.preemptions, 1u);
  EXPECT_EQ(simulation.runs[7]->sequence->phase.load(), Phase::preempted);  // the youngest
  while (!other.finish) simulation.turn();
  EXPECT_LE(other.ended - other.submitted, 1000);
  simulation.turn();
  EXPECT_FALSE(waits(simulation.runs[7]->sequence->phase.load()));  // it comes back before those that came later
  simulation.run_all();
  expect_right(simulation);
  for (const auto& run : simulation.runs) {
    EXPECT_EQ(run->stats.prompt_tokens, 100u);
    uint32_t counted = run->stats.cached_tokens;
    for (uint32_t tokens : run->stats.recomputed) counted += tokens;
    EXPECT_EQ(counted, 100u) << run->salt;
  }
}

TEST(Scheduler, BatchGivesWayToInteractiveButIsSparedInTheEnd) {
  Simulation simulation(limits(4));
  for (int i = 0; i < 4; ++i) simulation.submit({.uid = 0, .prompt = 100, .answer = 600, .priority = Priority::batch});
  for (int i = 0; i < 4; ++i) simulation.submit({.uid = 1, .prompt = 50, .answer = 5});
  uint32_t more = 100;
  simulation.on_end = [&](Record& run) {
    if (run.job.uid != 1 || more == 0) return;
    --more;
    simulation.submit(run.job);
  };
  simulation.turn();
  simulation.turn();
  EXPECT_GE(simulation.running(Priority::interactive), 3u);
  simulation.run_all();
  expect_right(simulation);
  for (const auto& run : simulation.runs) EXPECT_LE(run->sequence->preemptions.load(), 3u);
  EXPECT_GT(simulation.preemptions, 0u);
}

TEST(Scheduler, CancelAndDeadlineWhilePreempted) {
  for (const bool cancel : {true, false}) {
    Simulation simulation(limits(1));
    Record& run = simulation.submit({.prompt = 50, .answer = 300, .priority = Priority::batch, .deadline_ms = 2000});
    for (int i = 0; i < 20; ++i) simulation.turn();
    Record& other = simulation.submit({.uid = 1, .prompt = 50, .answer = 1000});
    simulation.turn();
    EXPECT_EQ(run.sequence->phase.load(), Phase::preempted);
    EXPECT_EQ(run.sequence->row(simulated_now()).state, "preempted");
    EXPECT_EQ(run.sequence->row(simulated_now()).preemptions, 1u);
    const size_t so_far = run.tokens.size();
    EXPECT_GT(so_far, 5u);
    if (cancel) {
      run.sequence->end(Sequence::Ending::cancel);
      simulation.turn();
    } else {
      simulation.run_until(2100);
      EXPECT_NEAR(run.ended, 2000, 60);
    }
    EXPECT_EQ(run.finish, cancel ? Finish::cancelled : Finish::deadline);
    EXPECT_EQ(run.tokens.size(), so_far);
    EXPECT_EQ(run.stats.completion_tokens, so_far);
    EXPECT_FALSE(other.finish);
    simulation.run_all();
    EXPECT_EQ(simulation.free(), simulation.all_pages());
  }
}

TEST(Scheduler, AScoreThatGaveBackGoesOnWhereItWas) {
  Simulation undisturbed(limits(1));
  Record& expected = undisturbed.submit({.prompt = 300, .priority = Priority::batch, .score = true});
  undisturbed.run_all();
  Simulation simulation(limits(1));
  Record& score = simulation.submit({.prompt = 300, .priority = Priority::batch, .score = true});
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 4; ++k) simulation.turn();
    Record& other = simulation.submit({.uid = 1, .prompt = 70, .answer = 3});
    simulation.turn();
    EXPECT_EQ(score.sequence->phase.load(), Phase::preempted);
    while (!other.finish) simulation.turn();
  }
  simulation.run_all();
  EXPECT_EQ(score.sequence->preemptions.load(), 3u);
  EXPECT_EQ(score.scores, expected.scores);
  EXPECT_EQ(score.finish, Finish::stop);
}

TEST(Scheduler, AUserRunsNoMoreThanItsLimit) {
  EngineLimits l = limits(8);
  l.running_per_user = 3;
  Simulation simulation(l);
  for (int i = 0; i < 6; ++i) simulation.submit({.uid = 0, .prompt = 40, .answer = 30});
  for (int i = 0; i < 6; ++i) simulation.submit({.uid = 0, .prompt = 40, .answer = 30, .priority = Priority::batch});
  const Record& other = simulation.submit({.uid = 1, .prompt = 40, .answer = 30});
  simulation.turn();
  EXPECT_EQ(simulation.running(Priority::interactive) + simulation.running(Priority::batch), 4u);
  EXPECT_FALSE(waits(other.sequence->phase.load()));
  simulation.run_all();
  expect_right(simulation);
}

/// Else it would go before everybody, and have others give back, as soon as it may run again.
TEST(Scheduler, WhomItsOwnLimitHoldsBackIsNotPassed) {
  EngineLimits l = limits(4);
  l.running_per_user = 2;
  Simulation simulation(l);
  for (int i = 0; i < 3; ++i) simulation.submit({.uid = 0, .prompt = 40, .answer = 100});
  const Sequence& held = *simulation.runs[2]->sequence;
  for (uint32_t i = 0; i < 40; ++i) simulation.submit({.uid = 1 + i % 2, .prompt = 40, .answer = 5});
  while (!simulation.runs[0]->finish) {
    if (simulation.turn() && simulation.running(Priority::interactive) == 4) {
      EXPECT_EQ(held.account->passed, 0u);
    }
  }
  EXPECT_GT(simulation.admissions.size(), 4 + l.max_running);
  simulation.run_all();
  expect_right(simulation);
}

TEST(Scheduler, BatchAnswersTakeTurnsWhereAllTogetherAreTooSlow) {
  Simulation simulation(limits(16));
  simulation.machine = {.base = 30, .decode = 20, .row = 1};
  for (int i = 0; i < 14; ++i) simulation.submit({.uid = 0, .prompt = 40, .answer = 400, .priority = Priority::batch});
  for (int i = 0; i < 80; ++i) simulation.turn();
  std::vector<double> before;
  for (const auto& run : simulation.runs) before.push_back(static_cast<double>(run->tokens.size()));
  const Record& answer = simulation.submit({.uid = 1, .prompt = 40, .answer = 60});
  while (!answer.finish) simulation.turn();
  const auto gaps = between_tokens(answer, answer.token_at[5], answer.ended);
  EXPECT_LE(percentile(gaps, 0.95), 175);
  double least = 1e9, most = 0;
  for (int i = 0; i < 14; ++i) {
    const auto tokens = static_cast<double>(simulation.runs[i]->tokens.size()) - before[i];
    least = std::min(least, tokens), most = std::max(most, tokens);
  }
  EXPECT_LE(most - least, 1);
  simulation.run_all();
  expect_right(simulation);
}

/// Random work of all kinds on few pages: everything ends, right, and all pages come home.
TEST(Scheduler, RandomWorkIsRightWhateverIsGivenBack) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    EngineLimits l = limits(1 + random() % 6);
    l.step_tokens = 64;
    l.score_rows = 1 + random() % 16;
    l.running_per_user = random() % 3 ? 0 : 2;
    Simulation simulation(l, 40);
    const auto one = [&] {
      simulation.submit({.uid = static_cast<uint32_t>(random() % 4),
                         .prompt = static_cast<uint32_t>(1 + random() % 300),
                         .answer = static_cast<uint32_t>(1 + random() % 100),
                         .priority = random() % 2 ? Priority::interactive : Priority::batch,
                         .deadline_ms = random() % 8 ? std::nullopt : std::optional<double>(random() % 5000)});
    };
    for (int i = 0; i < 60; ++i) {
      one();
      for (auto turns = random() % 12; turns > 0; --turns) simulation.turn();
      if (random() % 10 == 0)
        simulation.runs[random() % simulation.runs.size()]->sequence->end(Sequence::Ending::cancel);
    }
    simulation.run_all();
    expect_right(simulation);
  }
}

}  // namespace
}  // namespace ellm::serve::testing
