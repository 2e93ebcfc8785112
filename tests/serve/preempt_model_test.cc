// An answer that was preempted equals one that was not, to the bit, with a real forward pass and every KV type: while
// its prompt is run, while it is answered, more than once, with its pages kept and given up meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <numeric>

#include "daemon/serve/engine.h"
#include "tests/serve/answer.h"
#include "tests/serve/stories_engine.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace ellm::serve::testing {
namespace {

struct Told {
  Answer answer;
  std::vector<uint32_t> logprob_bits;
};

class PreemptModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto data = tests::test_data();
    if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
    model_ = tests::load_model(*data + "/models/stories260K.gguf");
  }

  std::unique_ptr<Engine> engine(uint32_t pages, shm::KvType kv_type) {
    EngineLimits limits;
    limits.max_running = 1;
    limits.step_tokens = 48;
    limits.token_ms = 0;
    return stories_engine(model_, pool_, limits, pages, kv_type);
  }

  /// A batch request with penalties and temperature: what the sampler knows has to survive, too.
  EngineRequest request(Told& told, std::function<void(size_t)> on_token) {
    std::vector<uint32_t> prompt(170);
    for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = 3 + (i * i * 7 + i) % 500;
    EngineRequest r = greedy(prompt, 150, told.answer);
    r.model = "stories";
    r.priority = Priority::batch;
    r.sampling.temperature = 0.9f;
    r.sampling.seed = 11;
    r.sampling.repetition_penalty = 1.1f;
    r.sampling.frequency_penalty = 0.2f;
    r.want_logprobs = true;
    r.events.on_token = [&told, on_token, next = r.events.on_token](const model::Sampled& s) {
      told.logprob_bits.push_back(std::bit_cast<uint32_t>(s.logprob));
      next(s);
      on_token(told.logprob_bits.size());
    };
    return r;
  }

  std::shared_ptr<const model::Model> model_;
  runtime::WorkerPool pool_{runtime::read_topology(), 2, false};
};

TEST_F(PreemptModel, PreemptedEqualsUnpreempted) {
  for (const shm::KvType kv_type : {shm::KvType::f32, shm::KvType::f16, shm::KvType::int8, shm::KvType::int4}) {
    Told expected;
    const auto calm = engine(64, kv_type);
    calm->submit(request(expected, [](size_t) {}));
    ASSERT_TRUE(expected.answer.wait());
    ASSERT_EQ(expected.answer.tokens.size(), 150u);
    for (const uint32_t pages : {64u, 16u}) {  // 16: what gives back loses its pages
      Told told;
      std::array<Answer, 3> others;
      const auto busy = engine(pages, kv_type);
      const auto disturb = [&](Answer& answer, uint32_t salt) {  // an interactive one: it takes the only place
        std::vector<uint32_t> prompt(300);
        for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = 3 + (1 + i * 31 + salt * 97) % 500;
        EngineRequest other = greedy(prompt, 100, answer);
        other.model = "stories";
        EXPECT_EQ(busy->submit(std::move(other)).refusal, Refusal::none);
      };
      busy->submit(request(told, [&](size_t tokens) {
        if (tokens == 23) disturb(others[1], 1);
        if (tokens == 120) disturb(others[2], 2);
      }));
      disturb(others[0], 0);  // wherever its prompt is
      ASSERT_TRUE(told.answer.wait());
      for (Answer& other : others) ASSERT_TRUE(other.wait());
      EXPECT_EQ(told.answer.tokens, expected.answer.tokens) << pages;
      EXPECT_EQ(told.logprob_bits, expected.logprob_bits) << pages;
      EXPECT_EQ(told.answer.finish, Finish::length);
      EXPECT_GE(busy->counters().preemptions, 2u);
      const RequestStats& stats = told.answer.stats;
      EXPECT_EQ(stats.completion_tokens, 150u);
      EXPECT_EQ(std::accumulate(stats.recomputed.begin(), stats.recomputed.end(), stats.cached_tokens), 170u);
      EXPECT_EQ(stats.cached_tokens, 0u);
      if (pages == 64) {  // what was kept was not run again, but for a row each
        EXPECT_LE(busy->counters().prefill_rows, 170u + 3 * 300u + 3);
      }
      const auto row = busy->models().at(0);
      EXPECT_EQ(row.free_pages + row.cached_pages, pages);
    }
  }
}

}  // namespace
}  // namespace ellm::serve::testing
