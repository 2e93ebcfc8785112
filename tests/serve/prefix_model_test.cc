// cached = recomputed, to the bit: random sequences of requests on an engine that has seen others before, against the
// same request on an engine that has seen none, and against a list of everything that was stored. With a real forward
// pass.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "daemon/serve/disk_tier.h"
#include "daemon/serve/engine.h"
#include "tests/serve/answer.h"
#include "tests/serve/stories_engine.h"
#include "tests/support/model_runner.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace ellm::serve::testing {
namespace {

using Tokens = std::vector<uint32_t>;

class PrefixModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto data = tests::test_data();
    if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
    model_ = tests::load_model(*data + "/models/stories260K.gguf");
  }

  std::unique_ptr<Engine> fresh_engine(shm::KvType kv_type) { return engine(20, kv_type, alone_); }
  std::unique_ptr<Engine> engine(uint32_t pages, shm::KvType kv_type) { return engine(pages, kv_type, pool_); }
  std::unique_ptr<Engine> engine(uint32_t pages, shm::KvType kv_type, runtime::WorkerPool& pool) {
    return stories_engine(model_, pool, limits(), pages, kv_type);
  }
  static EngineLimits limits() {
    EngineLimits limits;
    limits.step_tokens = 64;
    limits.token_ms = 0;
    return limits;
  }

  struct Outcome {
    Tokens tokens;
    std::vector<uint32_t> logprob_bits;
    RequestStats stats;
    std::optional<Finish> finish;
  };
  struct Pending {
    Answer answer;
    std::vector<uint32_t> logprob_bits;
    RequestId id = 0;
  };

  std::unique_ptr<Pending> submit(Engine& engine, const Tokens& prompt, uint32_t max_tokens, uint64_t seed) {
    auto pending = std::make_unique<Pending>();
    EngineRequest request = greedy(prompt, max_tokens, pending->answer);
    request.model = "stories";
    request.sampling.temperature = seed % 2 ? 0.8f : 0;
    request.sampling.seed = seed;
    request.want_logprobs = true;
    request.events.on_token = [mine = pending.get(), next = request.events.on_token](const model::Sampled& s) {
      mine->logprob_bits.push_back(std::bit_cast<uint32_t>(s.logprob));
      next(s);
    };
    pending->id = engine.submit(std::move(request)).id;
    return pending;
  }
  Outcome outcome(Pending& pending) {
    EXPECT_TRUE(pending.answer.wait());
    return {pending.answer.tokens, pending.logprob_bits, pending.answer.stats, pending.answer.finish};
  }
  Outcome ask(Engine& engine, const Tokens& prompt, uint32_t max_tokens, uint64_t seed) {
    return outcome(*submit(engine, prompt, max_tokens, seed));
  }

  /// A text of this conversation or a new one: shares a beginning of random length with an earlier text, most of the
  /// time.
  Tokens next_prompt(std::mt19937& random, const std::vector<Tokens>& texts) {
    Tokens prompt;
    if (!texts.empty() && random() % 5) {
      prompt = texts[random() % texts.size()];
      if (random() % 2) prompt.resize(random() % (prompt.size() + 1));
      if (random() % 4 == 0) prompt.resize(prompt.size() / 32 * 32);
    }
    for (uint32_t more = random() % 60; more > 0; --more) prompt.push_back(3 + random() % 500);
    prompt.resize(std::min<size_t>(prompt.size(), kStoriesContext - 64));
    if (prompt.empty()) prompt.push_back(1);
    return prompt;
  }

  std::shared_ptr<const model::Model> model_;
  runtime::WorkerPool pool_{runtime::read_topology(), 2, false}, alone_{runtime::read_topology(), 1, false};
};

uint32_t common(const Tokens& a, const Tokens& b) {
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Tokens of the prompt that are in a cache which holds all texts.
uint32_t stored_of(const Tokens& prompt, const std::vector<Tokens>& texts) {
  uint32_t stored = 0;
  for (const Tokens& text : texts) stored = std::max(stored, common(text, prompt));
  return std::min<uint32_t>(stored, static_cast<uint32_t>(prompt.size()) - 1);
}

void expect_all_counted(const RequestStats& stats) {
  EXPECT_EQ(std::accumulate(stats.recomputed.begin(), stats.recomputed.end(), stats.cached_tokens),
            stats.prompt_tokens);
}

/// One after the other, in a cache that holds everything and in one that holds a tenth: the first shares exactly the
/// longest beginning ever stored, the second never more; the answers are the same to the bit.
TEST_F(PrefixModel, CachedEqualsRecomputed) {
  for (const shm::KvType kv_type : {shm::KvType::f16, shm::KvType::int8, shm::KvType::int4}) {
    for (const uint32_t pages : {1500u, 16u}) {
      std::mt19937 random(pages);
      const auto used = engine(pages, kv_type);
      std::vector<Tokens> texts;
      uint64_t cached = 0, evicted = 0;
      for (uint64_t i = 0; i < 25; ++i) {
        const Tokens prompt = next_prompt(random, texts);
        const uint32_t max_tokens = 1 + random() % 40;
        const auto there = ask(*used, prompt, max_tokens, i);
        const auto fresh = ask(*fresh_engine(kv_type), prompt, max_tokens, i);
        ASSERT_EQ(there.tokens, fresh.tokens) << i;
        ASSERT_EQ(there.logprob_bits, fresh.logprob_bits) << i;
        const uint32_t stored = stored_of(prompt, texts);
        if (pages == 1500) {
          ASSERT_EQ(there.stats.cached_tokens, stored) << i;
        } else {
          ASSERT_LE(there.stats.cached_tokens, stored) << i;
          evicted += there.stats.recomputed[static_cast<size_t>(Reason::evicted)];
        }
        expect_all_counted(there.stats);
        EXPECT_EQ(fresh.stats.cached_tokens, 0u);
        cached += there.stats.cached_tokens;
        texts.push_back(prompt);
        texts.back().insert(texts.back().end(), there.tokens.begin(), there.tokens.end() - 1);
      }
      EXPECT_GT(cached, 200u);
      if (pages == 16) {
        EXPECT_GT(evicted, 0u);
      }
      const auto row = used->models().at(0);
      EXPECT_EQ(row.free_pages + row.cached_pages, pages);
    }
  }
}

/// An engine with a disk tier, whose prefixes outlive it.
class Survivor {
 public:
  Survivor(std::shared_ptr<const model::Model> model, runtime::WorkerPool& pool, const EngineLimits& limits,
           const KvSetup& setup)
      : model_(std::move(model)), pool_(pool), limits_(limits), setup_(setup) {
    options_.directory = (dir_.path() / "prefixes").string();
    options_.budget_bytes = 256 << 20;
    options_.bytes_per_day = 1 << 30;
    options_.rest = std::chrono::milliseconds(0);
    options_.read_always = true;
    setup_.fingerprint = "stories";
    begin(-1);
  }
  ~Survivor() { engine_.reset(); }

  Engine& engine() { return *engine_; }
  DiskCounters disk() const { return tier_->counters(); }

  /// The daemon restarts; all memory is lost, or the segment is kept.
  void reboot() { begin(-1); }
  void restart() { begin(dup(segment_)); }
  /// The model is unloaded and loaded: what has not been written is lost.
  void reload() {
    EXPECT_TRUE(engine_->remove_model("stories"));
    add(-1);
  }

 private:
  void begin(int segment) {
    engine_.reset();  // writes what is left
    tier_.reset();
    tier_ = DiskTier::open(options_);
    ASSERT_NE(tier_, nullptr);
    engine_ = std::make_unique<Engine>(model::choose_kernels("auto"), pool_, limits_);
    add(segment);
  }
  void add(int segment) {
    KvSetup setup = setup_;
    setup.segment_fd = segment;
    setup.disk = tier_;
    const KvState state = engine_->add_model("stories", model_, setup);
    EXPECT_EQ(state.taken_over, segment >= 0) << state.refused;
    segment_ = state.fd;
    while (tier_->counters().looking) std::this_thread::yield();
  }

  tests::TempDir dir_;
  const std::shared_ptr<const model::Model> model_;
  runtime::WorkerPool& pool_;
  const EngineLimits limits_;
  KvSetup setup_;
  DiskOptions options_;
  std::shared_ptr<DiskTier> tier_;
  std::unique_ptr<Engine> engine_;
  int segment_ = -1;  // the engine's
};

/// The same over restarts with and without memory. In a small cache, where models are unloaded, too, there is at most
/// what was stored: what has not been written yet is lost when it is given up.
TEST_F(PrefixModel, CachedEqualsRecomputedOverRestartsAndFromDisk) {
  for (const shm::KvType kv_type : {shm::KvType::f32, shm::KvType::f16, shm::KvType::int8, shm::KvType::int4}) {
    for (const uint32_t pages : {1500u, 16u}) {
      const bool all_fits = pages == 1500;
      std::mt19937 random(pages + static_cast<uint32_t>(kv_type));
      Survivor survivor(model_, pool_, limits(), stories_setup(pages, kv_type));
      std::vector<Tokens> texts;
      uint64_t from_disk = 0;
      for (uint64_t i = 0; i < 25; ++i) {
        const uint32_t fate = random() % 8;
        if (fate < 2) survivor.reboot();
        else if (fate == 2) survivor.restart();
        else if (fate == 3 && !all_fits) survivor.reload();
        const Tokens prompt = next_prompt(random, texts);
        const uint32_t max_tokens = 1 + random() % 40;
        const auto there = ask(survivor.engine(), prompt, max_tokens, i);
        const auto fresh = ask(*fresh_engine(kv_type), prompt, max_tokens, i);
        ASSERT_EQ(there.tokens, fresh.tokens) << i;
        ASSERT_EQ(there.logprob_bits, fresh.logprob_bits) << i;
        const uint32_t stored = stored_of(prompt, texts);
        if (all_fits) {
          ASSERT_EQ(there.stats.cached_tokens, stored) << i;
        } else {
          ASSERT_LE(there.stats.cached_tokens, stored) << i;
        }
        expect_all_counted(there.stats);
        from_disk += there.stats.disk_tokens;
        texts.push_back(prompt);
        texts.back().insert(texts.back().end(), there.tokens.begin(), there.tokens.end() - 1);
      }
      EXPECT_GT(from_disk, 100u);
      EXPECT_EQ(survivor.disk().pages_damaged, 0u);
      const auto row = survivor.engine().models().at(0);
      EXPECT_EQ(row.free_pages + row.cached_pages, pages);
    }
  }
}

/// Several at once, some cancelled, in a cache that is too small for them.
TEST_F(PrefixModel, CachedEqualsRecomputedInACrowd) {
  std::mt19937 random(5);
  const auto used = engine(40, shm::KvType::int8);
  std::vector<Tokens> texts;
  for (uint64_t round = 0; round < 12; ++round) {
    std::vector<Tokens> prompts;
    std::vector<std::unique_ptr<Pending>> pending;
    for (uint64_t i = 0; i < 6; ++i) {
      prompts.push_back(next_prompt(random, i % 2 ? prompts : texts));
      pending.push_back(submit(*used, prompts.back(), 24, round * 6 + i));
      if (random() % 5 == 0) used->cancel(pending.back()->id);
    }
    for (uint64_t i = 0; i < 6; ++i) {
      const auto there = outcome(*pending[i]);
      const auto fresh = ask(*fresh_engine(shm::KvType::int8), prompts[i], 24, round * 6 + i);
      if (there.finish == Finish::cancelled) {
        ASSERT_LE(there.tokens.size(), fresh.tokens.size());
        ASSERT_TRUE(std::equal(there.tokens.begin(), there.tokens.end(), fresh.tokens.begin()));
        continue;
      }
      ASSERT_EQ(there.tokens, fresh.tokens) << round << " " << i;
      ASSERT_EQ(there.logprob_bits, fresh.logprob_bits) << round << " " << i;
      expect_all_counted(there.stats);
      texts.push_back(prompts[i]);
      texts.back().insert(texts.back().end(), there.tokens.begin(), there.tokens.end());
      texts.back().resize(std::min<size_t>(texts.back().size(), 400));
    }
  }
  const auto row = used->models().at(0);
  EXPECT_EQ(row.free_pages + row.cached_pages, 40u);
}

}  // namespace
}  // namespace ellm::serve::testing
