// Allocations that fail: the engine's threads are refused memory at the k-th allocation, for every k of a round of
// requests. At most a request fails for one refusal, the others' answers are what they were, and the engine goes on.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "daemon/serve/disk_tier.h"
#include "tests/serve/answer.h"
#include "tests/support/temp_dir.h"

namespace {

thread_local int spared = 0;  // scopes of this thread that are not refused anything
std::atomic<int64_t> before_refusal{INT64_MAX};
std::atomic<int64_t> refusals_left{0};  // a refusal of more than one lasts
std::atomic<uint32_t> refused{0};
thread_local uint64_t allocated = 0;  // bytes

struct Spare {
  Spare() { ++spared; }
  ~Spare() { --spared; }
};

bool refuse() {
  if (spared != 0 || before_refusal.fetch_sub(1, std::memory_order_relaxed) > 0) return false;
  if (refusals_left.fetch_sub(1, std::memory_order_relaxed) <= 0) return false;
  ++refused;
  return true;
}

void* allocate(size_t bytes) {
  allocated += bytes;
  void* memory = refuse() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {  // std::stable_sort's, which does without
  try {
    return allocate(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace ellm::serve::testing {
namespace {

/// The fake's own allocations are not the engine's: those of a real model's steps are made when it is loaded.
class SparedRunner : public DelegatingRunner {
 public:
  using DelegatingRunner::DelegatingRunner;
  std::span<const float> step(std::span<const model::Chunk> chunks) override {
    const Spare spare;
    return DelegatingRunner::step(chunks);
  }
};

Servable spared_servable(const Fake& fake) {
  Servable servable = fake.servable();
  servable.runner = std::make_unique<SparedRunner>(std::move(servable.runner));
  return servable;
}

constexpr size_t kRequests = 5;

/// Answers of all kinds, more than run at once.
std::vector<RequestId> submit_round(Rig& rig, std::vector<Answer>& answers) {
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < kRequests; ++i) {
    EngineRequest request = greedy(prompt_of(20 + 15 * i, i), 6, answers[i]);
    if (i == 1) request.score = true, request.score_top = 3;
    if (i == 2) {
      request.sampling.temperature = 1;
      request.sampling.seed = 7;
      request.sampling.repetition_penalty = 1.2f;
      request.sampling.presence_penalty = 0.3f;
      request.sampling.logprobs = 2;
      request.want_logprobs = true;
    }
    const auto submitted = rig.engine->submit(std::move(request));
    EXPECT_EQ(submitted.refusal, Refusal::none);
    ids.push_back(submitted.id);
  }
  return ids;
}

void refuse_from(int64_t k, int64_t count) {
  refused = 0;
  refusals_left = count;
  before_refusal = k;
}

void refuse_no_more() { before_refusal = INT64_MAX; }

struct MemoryRig : Rig {
  MemoryRig() : Rig(Fake{}, limits_of()) {
    EXPECT_TRUE(engine->remove_model("fake"));
    engine->add_servable("fake", spared_servable(Fake{script}));
  }
  static EngineLimits limits_of() {
    EngineLimits limits = small();
    limits.max_running = 3;
    return limits;
  }
};

/// Runs a round in which `count` allocations from the k-th on are refused. The failures of the requests.
uint32_t round(Rig& rig, int64_t k, int64_t count, const std::vector<Answer>* expected) {
  std::vector<Answer> answers(kRequests);
  rig.script->close();
  submit_round(rig, answers);
  refuse_from(k, count);
  rig.script->open();
  uint32_t failures = 0;
  for (uint32_t i = 0; i < kRequests; ++i) {
    EXPECT_TRUE(answers[i].wait()) << "request " << i << ", allocation " << k;
    EXPECT_EQ(answers[i].ends, 1);
    if (answers[i].failure) {
      EXPECT_EQ(*answers[i].failure, "there is not enough memory for this request");
      ++failures;
    } else if (expected) {
      EXPECT_EQ(answers[i].tokens, (*expected)[i].tokens) << "request " << i << ", allocation " << k;
      EXPECT_EQ(answers[i].scores, (*expected)[i].scores);
      EXPECT_EQ(answers[i].top, (*expected)[i].top);
      EXPECT_EQ(answers[i].finish, (*expected)[i].finish);
    }
  }
  refuse_no_more();
  EXPECT_EQ(rig.free(), rig.pages);
  EXPECT_TRUE(rig.engine->requests().empty());
  EXPECT_EQ(rig.engine->counters().running, 0u);
  EXPECT_EQ(rig.engine->counters().queued, 0u);
  return failures;
}

TEST(EngineMemory, OneFailedAllocationFailsOneRequestAtMost) {
  const Spare spare;
  MemoryRig rig;
  std::vector<Answer> expected(kRequests);
  submit_round(rig, expected);
  for (Answer& answer : expected) ASSERT_TRUE(answer.wait());
  uint32_t failed = 0;
  int64_t k = 0;
  for (; !HasFailure(); ++k) {
    const uint32_t failures = round(rig, k, 1, &expected);
    EXPECT_LE(failures, 1u) << "allocation " << k;
    failed += failures;
    if (refused == 0) break;  // a round has no more allocations than that
  }
  RecordProperty("allocations", static_cast<int>(k));
  RecordProperty("failed", static_cast<int>(failed));
  EXPECT_GT(k, 20);
  EXPECT_GT(failed, 10u);
  EXPECT_EQ(round(rig, INT64_MAX, 0, &expected), 0u);
}

TEST(EngineMemory, ServesAgainWhenMemoryIsBack) {
  const Spare spare;
  MemoryRig rig;
  for (int64_t k = 0; k < 40 && !HasFailure(); ++k) {
    round(rig, k, 30, nullptr);
    Answer next;
    rig.engine->submit(greedy(prompt_of(9, 4), 5, next));
    ASSERT_TRUE(next.wait());
    EXPECT_EQ(next.tokens, alone(prompt_of(9, 4), 5, true));
  }
}

TEST(EngineMemory, AModelGoesWithoutMemory) {
  const Spare spare;
  MemoryRig rig;
  for (int64_t k = 0; k < 30 && !HasFailure(); ++k) {
    std::vector<Answer> answers(kRequests);
    rig.script->close();
    submit_round(rig, answers);
    refuse_from(k, 20);
    rig.script->open();
    EXPECT_TRUE(rig.engine->remove_model("fake"));
    for (Answer& answer : answers) EXPECT_TRUE(answer.wait());
    refuse_no_more();
    rig.engine->add_servable("fake", spared_servable(Fake{rig.script}));
  }
}

/// Engine after engine over one directory of prefixes.
class DiskMemory : public ::testing::Test {
 protected:
  DiskMemory() {
    options_.directory = (dir_.path() / "prefixes").string();
    options_.budget_bytes = 50'000;  // of which the texts want more
    options_.rest = std::chrono::milliseconds(0);
    options_.bytes_per_day = 1 << 30;
    options_.read_always = true;
    options_.warn = [this](const std::string&) { ++warnings_; };
  }
  void boot() {
    rig_.reset();
    tier_ = DiskTier::open(options_);
    rig_ = std::make_unique<Rig>();
    EXPECT_TRUE(rig_->engine->remove_model("fake"));
    Servable servable = spared_servable(Fake{rig_->script});
    servable.disk_tier = tier_;
    servable.fingerprint = "weights";
    rig_->engine->add_servable("fake", std::move(servable));
  }
  /// The failures.
  uint32_t ask(uint32_t salt) {
    Answer answer;
    EngineRequest request = greedy(prompt_of(300, salt), 5, answer);  // long enough to wait for the list of files
    rig_->engine->submit(std::move(request));
    EXPECT_TRUE(answer.wait()) << salt;
    if (!answer.failure) {
      EXPECT_EQ(answer.tokens, alone(prompt_of(300, salt), 5, true)) << salt;
    }
    return answer.failure ? 1 : 0;
  }
  /// A life of the daemon: what the last life wrote last is read, new texts are written and older ones go. The
  /// failures.
  uint32_t live(uint32_t salt) {
    boot();
    uint32_t failures = 0;
    for (const uint32_t each : {salt - 1, salt, salt + 1}) failures += ask(each);
    rig_.reset();  // writes what is left
    pages_read_ += tier_->counters().pages_read;
    return failures;
  }
  /// What the tier believes is what there is; then it ends.
  void expect_known() {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) bytes += entry.file_size();
    EXPECT_EQ(tier_->counters().bytes, bytes);
    EXPECT_LE(bytes, options_.budget_bytes);
    tier_.reset();
  }

  const Spare spare_;
  tests::TempDir dir_;
  DiskOptions options_;
  std::atomic<uint32_t> warnings_{0};
  uint64_t pages_read_ = 0;
  std::shared_ptr<DiskTier> tier_;
  std::unique_ptr<Rig> rig_;
};

/// Of the tier's threads, too: what they lack memory for is left out, counted, and said.
TEST_F(DiskMemory, OneFailedAllocationFailsOneRequestAtMost) {
  live(8);
  expect_known();
  uint32_t left_out = 0, failed = 0;
  int64_t k = 0;
  for (; !HasFailure(); ++k) {
    warnings_ = 0;
    refuse_from(k, 1);
    const uint32_t failures = live(static_cast<uint32_t>(10 + 2 * k));
    refuse_no_more();
    const uint64_t memory_failures = tier_->counters().memory_failures;
    EXPECT_LE(failures + memory_failures, 1u) << "allocation " << k;
    EXPECT_EQ(warnings_, memory_failures) << "allocation " << k;
    EXPECT_TRUE(tier_->counters().writing);
    expect_known();
    left_out += memory_failures;
    failed += failures;
    if (refused == 0) break;
  }
  RecordProperty("allocations", static_cast<int>(k));
  RecordProperty("left out", static_cast<int>(left_out));
  RecordProperty("failed", static_cast<int>(failed));
  EXPECT_GT(left_out, 30u);
  EXPECT_GT(pages_read_, k * 4u);  // of 10, where the file was found
}

/// A model whose slots and buffer are not to be had is served without the disk.
TEST_F(DiskMemory, AModelGoesWithoutTheDisk) {
  tier_ = DiskTier::open(options_);
  const Fake fake;
  for (int64_t k = 0;; ++k) {
    Servable servable = fake.servable();
    const auto make = [&] { return DiskPages::make(tier_, "weights", *servable.kv, 8, [] {}); };
    --spared;
    refuse_from(k, 1);
    auto pages = make();
    refuse_no_more();
    ++spared;
    EXPECT_EQ(tier_->counters().memory_failures, static_cast<uint64_t>(pages ? k : k + 1));
    if (pages) break;
    ASSERT_LT(k, 100);
  }
  EXPECT_EQ(warnings_, 1u);
}

/// What the index says of its memory is what it takes.
TEST_F(DiskMemory, IsCountedOfTheIndex) {
  shm::DiskRun run;
  for (const uint32_t pages : {1u, 64u}) {
    DiskTexts texts;
    DiskFiles files;
    run.pages.resize(pages);
    const uint64_t before = allocated;
    for (uint32_t i = 0; i < 500; ++i) {
      run.parent = {i, 1};
      for (uint32_t page = 0; page < pages; ++page) run.pages[page].key = {i, page + 2};
      auto file = std::make_shared<DiskFile>();
      file->name = shm::disk_file_name({{4, 2, 8, shm::KvType::f16, shm::KvType::f16}, "weights"}, i, {i, 2});
      texts.insert(file, run);
      files.add(std::move(file));
    }
    const uint64_t took = allocated - before, counted = texts.memory_bytes() + files.memory_bytes();
    EXPECT_GT(counted, took) << pages;
    EXPECT_LT(counted, took * 5 / 4) << pages;
  }
}

/// What the plan of a model's memory counts for the disk is what it takes.
TEST_F(DiskMemory, IsCountedInThePlan) {
  tier_ = DiskTier::open(options_);
  for (const uint32_t head_dim : {8u, 64u, 2048u}) {
    shm::StoreOptions options;
    options.geometry = {4, 2, head_dim, shm::KvType::f16, shm::KvType::int8};
    options.pages = 4;
    const auto kv = shm::KvPages::create(options);
    const uint64_t before = allocated;
    const auto pages = DiskPages::make(tier_, "weights", *kv, 8, [] {});
    const uint64_t counted = DiskPages::memory_bytes(options.geometry, 8);
    EXPECT_GE(counted + 2000, allocated - before) << head_dim;
    EXPECT_LE(counted, (allocated - before) * 11 / 10) << head_dim;
    EXPECT_LT(pages->promised_bytes(), counted);
    EXPECT_GT(pages->promised_bytes(), counted / 2);
  }
}

}  // namespace
}  // namespace ellm::serve::testing
