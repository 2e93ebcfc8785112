// The disk tier under an engine: after a reboot (the pages in memory are gone) every prefix that the disk has is read,
// and nothing but time is lost where it cannot be. The fake model's answers show a wrong page at once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <random>

#include "daemon/serve/disk_tier.h"
#include "tests/serve/answer.h"
#include "tests/support/file_limit.h"
#include "tests/support/temp_dir.h"

namespace ellm::serve::testing {
namespace {

using Tokens = std::vector<uint32_t>;

/// An engine over a directory, and what follows it.
class Disk : public ::testing::Test {
 protected:
  Disk() {
    options_.directory = (dir_.path() / "state" / "prefixes").string();
    options_.budget_bytes = 64 << 20;
    options_.rest = std::chrono::milliseconds(0);
    options_.bytes_per_day = 1 << 30;
    options_.read_always = true;
    options_.warn = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      warnings_ += line + "\n";
    };
    boot();
  }
  ~Disk() override { end(); }

  void end() {
    rig_.reset();
    tier_.reset();
  }
  /// Memory is empty then. `settle`: waits until all files are known.
  void boot(const std::string& fingerprint = "weights 1", bool settle = true) {
    end();
    tier_ = DiskTier::open(options_);
    rig_ = std::make_unique<Rig>();
    EXPECT_TRUE(rig_->engine->remove_model("fake"));
    Fake fake{rig_->script};
    fake.pages = pages_;
    Servable servable = fake.servable();
    servable.disk_tier = tier_;
    servable.fingerprint = fingerprint;
    rig_->engine->add_servable("fake", std::move(servable));
    if (settle && tier_) {
      EXPECT_TRUE(await([&] { return !tier_->counters().looking; }));
    }
  }
  RequestStats ask(const Tokens& prompt, uint32_t max_tokens = 5, uint32_t uid = 0) {
    Answer answer;
    EngineRequest request = greedy(prompt, max_tokens, answer);
    request.uid = uid;
    rig_->engine->submit(std::move(request));
    EXPECT_TRUE(answer.wait());
    EXPECT_FALSE(answer.failure) << *answer.failure;
    EXPECT_EQ(answer.tokens, alone(prompt, max_tokens, true));
    const auto& stats = answer.stats;
    EXPECT_EQ(std::accumulate(stats.recomputed.begin(), stats.recomputed.end(), stats.cached_tokens), prompt.size());
    EXPECT_LE(stats.disk_tokens, stats.cached_tokens);
    last_text_ = prompt;
    last_text_.insert(last_text_.end(), answer.tokens.begin(), answer.tokens.end() - 1);
    return stats;
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
      if (shm::namespace_in(entry.path().filename().string())) found.push_back(entry.path());
    }
    std::ranges::sort(found);
    return found;
  }
  std::string warnings() {
    std::lock_guard lock(mutex_);
    return warnings_;
  }
  template <class Condition>
  bool await(Condition&& condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  tests::TempDir dir_;
  DiskOptions options_;
  uint32_t pages_ = 64;
  std::mutex mutex_;
  std::string warnings_;
  std::shared_ptr<DiskTier> tier_;
  std::unique_ptr<Rig> rig_;
  Tokens last_text_;
};

void flip_byte(const std::filesystem::path& path, off_t at) {
  const int fd = open(path.c_str(), O_RDWR);
  char byte = 0;
  ASSERT_EQ(pread(fd, &byte, 1, at), 1);
  byte ^= 16;
  ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
  close(fd);
}

TEST_F(Disk, AfterARebootThePrefixIsRead) {
  const Tokens prompt = prompt_of(400, 1);
  const RequestStats cold = ask(prompt);
  EXPECT_EQ(cold.cached_tokens, 0u);
  EXPECT_EQ(cold.disk_tokens, 0u);
  boot("weights 1", false);  // a long prompt waits for the list
  for (const auto& file : files()) EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
  const RequestStats warm = ask(prompt);
  EXPECT_EQ(warm.cached_tokens, 399u);
  EXPECT_EQ(warm.disk_tokens, 399u);
  const RequestStats again = ask(prompt);
  EXPECT_EQ(again.cached_tokens, 399u);
  EXPECT_EQ(again.disk_tokens, 0u);
  EXPECT_EQ(tier_->counters().pages_read, 13u);
  EXPECT_EQ(tier_->counters().pages_damaged, 0u);
  EXPECT_EQ(warnings(), "");
}

TEST_F(Disk, NothingIsWrittenTwice) {
  const Tokens prompt = prompt_of(300, 1);
  ask(prompt);
  ASSERT_TRUE(await([&] { return tier_->counters().pages_written == 10; }));
  const auto bytes = tier_->counters().bytes;
  boot();
  ask(prompt);
  ask(prompt);
  boot();
  EXPECT_EQ(tier_->counters().pages_written, 0u);
  EXPECT_TRUE(await([&] { return tier_->counters().bytes == bytes; }));
}

TEST_F(Disk, TurnsOfAChatJoinUp) {
  Tokens text = prompt_of(70, 1);
  for (int turn = 0; turn < 6; ++turn) {
    ask(text, 20);
    text = last_text_;
    const Tokens more = prompt_of(25, 10 + turn);
    text.insert(text.end(), more.begin(), more.end());
    boot();
  }
  const RequestStats last = ask(text);
  EXPECT_EQ(last.cached_tokens, text.size() - 25);
  EXPECT_EQ(last.disk_tokens, last.cached_tokens);
}

/// A day's writing is bounded: one-time texts take half of it, those that are used again the rest.
TEST_F(Disk, OneTimeTextsLeaveRoomForOthers) {
  options_.bytes_per_day = 100'000;
  boot();
  for (uint32_t i = 0; i < 20; ++i) ask(prompt_of(200, i));
  rig_.reset();  // writes what it may
  const auto once = tier_->counters();
  EXPECT_LT(once.bytes, 65'000u);
  EXPECT_GT(once.bytes, 45'000u);
  boot();  // with an allowance of its own
  options_.bytes_per_day = 0;
  for (uint32_t i = 30; i < 40; ++i) ask(prompt_of(200, i));
  for (uint32_t i = 36; i < 40; ++i) ask(prompt_of(200, i));
  rig_.reset();
  EXPECT_GT(tier_->counters().bytes, once.bytes + 65'000);
}

/// Texts that share beginnings, reboots in between: the longest beginning ever stored is found, wherever it is.
TEST_F(Disk, TheLongestBeginningIsFoundInMemoryAndOnDisk) {
  for (const uint32_t pages : {1000u, 24u}) {
    pages_ = pages;
    end();
    std::filesystem::remove_all(options_.directory);
    boot();
    std::mt19937 random(pages);
    std::vector<Tokens> texts;
    uint64_t from_disk = 0;
    for (uint32_t i = 0; i < 150; ++i) {
      if (random() % 8 == 0) boot();
      Tokens prompt;
      if (!texts.empty() && random() % 5) prompt = texts[random() % texts.size()];
      if (random() % 2) prompt.resize(random() % (prompt.size() + 1));
      if (random() % 4 == 0) prompt.resize(prompt.size() / 32 * 32);
      for (uint32_t more = random() % 60; more > 0; --more) prompt.push_back(1 + random() % (kPoison - 1));
      prompt.resize(std::min<size_t>(prompt.size(), 450));
      if (prompt.empty()) prompt.push_back(1);
      uint32_t stored = 0;
      for (const Tokens& text : texts) {
        const auto common = std::mismatch(text.begin(), text.end(), prompt.begin(), prompt.end()).first - text.begin();
        stored = std::max(stored, static_cast<uint32_t>(common));
      }
      stored = std::min<uint32_t>(stored, static_cast<uint32_t>(prompt.size()) - 1);
      const RequestStats stats = ask(prompt, 1 + random() % 40);
      if (pages == 1000) {
        ASSERT_EQ(stats.cached_tokens, stored) << i;
      } else {
        ASSERT_LE(stats.cached_tokens, stored) << i;
      }
      from_disk += stats.disk_tokens;
      texts.push_back(last_text_);
    }
    EXPECT_GT(from_disk, 500u);
    EXPECT_EQ(rig_->free(), pages);
    EXPECT_EQ(tier_->counters().pages_damaged, 0u);
  }
  EXPECT_EQ(warnings(), "");
}

TEST_F(Disk, ManyAtOnceSomeCancelled) {
  pages_ = 60;
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    boot();
    std::vector<std::unique_ptr<Answer>> answers;
    std::vector<Tokens> prompts;
    for (uint32_t i = 0; i < 8; ++i) {
      Tokens prompt = prompt_of(150 + random() % 200, random() % 4);  // the shorter are beginnings of the longer
      answers.push_back(std::make_unique<Answer>());
      const auto id = rig_->engine->submit(greedy(prompt, 8, *answers.back())).id;
      prompts.push_back(prompt);
      if (random() % 4 == 0) rig_->engine->cancel(id);
    }
    for (uint32_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(answers[i]->wait());
      EXPECT_FALSE(answers[i]->failure);
      if (answers[i]->finish != Finish::cancelled) {
        EXPECT_EQ(answers[i]->tokens, alone(prompts[i], 8, true));
      }
    }
    EXPECT_TRUE(await([&] { return rig_->free() == pages_; }));
  }
}

TEST_F(Disk, OtherUsersAndOtherModelsFindNothing) {
  const Tokens prompt = prompt_of(200, 1);
  ask(prompt, 5, 1000);
  boot();
  EXPECT_EQ(ask(prompt, 5, 1001).cached_tokens, 0u);
  EXPECT_EQ(ask(prompt, 5, 1000).disk_tokens, 199u);
  boot("weights 2");
  EXPECT_EQ(ask(prompt, 5, 1000).cached_tokens, 0u);
  EXPECT_EQ(warnings(), "");  // others' files are no fault
  tier_->erase("", 1000);
  boot();
  EXPECT_EQ(ask(prompt, 5, 1000).cached_tokens, 0u);
  EXPECT_EQ(ask(prompt, 5, 1001).cached_tokens, 199u);
}

/// Any byte of any file: a right answer, at most what was damaged is computed again, and it is said once.
TEST_F(Disk, DamageCostsOnlyTime) {
  const Tokens prompt = prompt_of(200, 1);
  ask(prompt);
  end();
  ASSERT_EQ(files().size(), 1u);
  const auto path = files()[0];
  const auto whole = dir_.path() / "whole";
  std::filesystem::copy_file(path, whole);
  const auto bytes = static_cast<off_t>(std::filesystem::file_size(path));
  std::mt19937 random(1);
  uint32_t cached = 0;
  for (off_t at = 0; at < bytes; at += at < 96 ? 8 : 1 + static_cast<off_t>(random() % 700)) {
    std::filesystem::copy_file(whole, path, std::filesystem::copy_options::overwrite_existing);
    flip_byte(path, at);
    warnings_.clear();
    boot();
    const RequestStats stats = ask(prompt);
    EXPECT_LT(stats.cached_tokens, 199u) << at;
    cached += stats.cached_tokens;
    const auto counters = tier_->counters();
    EXPECT_EQ((counters.files_skipped != 0) + (counters.pages_damaged != 0), 1) << at;
    end();  // the tier's threads have said what they had to say
    const std::string said = warnings();
    EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  }
  EXPECT_GT(cached, 100u);  // pages before a damaged one
  for (const off_t length : {bytes - 1, bytes / 2, off_t{100}, off_t{0}}) {
    std::filesystem::copy_file(whole, path, std::filesystem::copy_options::overwrite_existing);
    ASSERT_EQ(truncate(path.c_str(), length), 0);
    boot();
    EXPECT_EQ(ask(prompt).cached_tokens, 0u);
    end();
  }
}

TEST_F(Disk, AnotherLayoutIsSkippedAndCounted) {
  ask(prompt_of(200, 1));
  end();
  flip_byte(files().at(0), offsetof(shm::DiskFileHeaderData, layout_version));
  boot();
  EXPECT_EQ(ask(prompt_of(200, 1)).cached_tokens, 0u);
  EXPECT_EQ(tier_->counters().files_skipped, 1u);
  EXPECT_NE(warnings().find("1 of another layout version"), std::string::npos) << warnings();
}

TEST_F(Disk, TheBudgetHolds) {
  options_.budget_bytes = 100'000;
  boot();
  for (uint32_t i = 0; i < 30; ++i) {
    ask(prompt_of(200, i));
    ASSERT_TRUE(await([&] { return tier_->counters().pages_written == 7 * (i + 1); }));
    EXPECT_LE(tier_->counters().bytes, options_.budget_bytes);
  }
  uint64_t sum = 0;
  for (const auto& file : files()) sum += std::filesystem::file_size(file);
  EXPECT_LE(sum, options_.budget_bytes);
  boot();
  EXPECT_EQ(ask(prompt_of(200, 29)).disk_tokens, 199u);
  options_.budget_bytes = 30'000;  // less than there is
  boot();
  EXPECT_TRUE(await([&] { return tier_->counters().bytes <= options_.budget_bytes && !files().empty(); }));
}

/// The memory that knows what is on disk is bounded, too, whatever an earlier process left there.
TEST_F(Disk, TheIndexHasABudgetOfItsOwn) {
  const auto within = [&] {
    const DiskCounters counters = tier_->counters();
    EXPECT_EQ(tier_->promised_bytes(), options_.index_bytes - std::min(options_.index_bytes, counters.index_bytes));
    return counters.index_bytes <= options_.index_bytes;
  };
  options_.index_bytes = 20'000;
  boot();
  for (uint32_t i = 0; i < 20; ++i) {
    ask(prompt_of(200, i));
    ASSERT_TRUE(await([&] { return tier_->counters().pages_written == 7 * (i + 1); }));
    EXPECT_TRUE(within());
  }
  const size_t most = files().size();
  EXPECT_GT(most, 5u);
  EXPECT_LT(most, 12u);
  boot();
  EXPECT_EQ(files().size(), most);
  EXPECT_EQ(ask(prompt_of(200, 19)).disk_tokens, 199u);
  end();
  for (const auto& file : files()) {  // the last text's use is the newest
    const timespec times[2] = {{0, UTIME_OMIT}, {1'000'000, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }
  boot();
  EXPECT_EQ(ask(prompt_of(200, 19)).disk_tokens, 199u);
  options_.index_bytes = 7000;
  boot();
  EXPECT_TRUE(await([&] { return within() && files().size() < most; }));
  EXPECT_GT(files().size(), 1u);
  EXPECT_EQ(ask(prompt_of(200, 19)).disk_tokens, 199u);
  EXPECT_EQ(warnings(), "");
}

TEST_F(Disk, ABudgetSmallerThanATextIsNoFault) {
  options_.budget_bytes = 5000;
  boot();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ask(prompt_of(200, 1)).cached_tokens, i == 0 ? 0u : 199u);
  rig_.reset();
  EXPECT_EQ(files().size(), 0u);
  EXPECT_TRUE(tier_->counters().writing);
  EXPECT_EQ(warnings(), "");
}

TEST_F(Disk, TheLeastRecentlyUsedGoesOverReboots) {
  for (uint32_t i = 0; i < 6; ++i) ask(prompt_of(200, i));
  end();
  int64_t time = 1'000'000;
  const auto all = files();
  ASSERT_EQ(all.size(), 6u);
  for (const auto& file : all) {
    const timespec times[2] = {{0, UTIME_OMIT}, {++time, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }
  boot();
  uint32_t used = 0;  // the text of the oldest file
  for (; used < 6; ++used) {
    boot();
    ask(prompt_of(200, used));
    end();
    struct stat status{};
    ASSERT_EQ(stat(all[0].c_str(), &status), 0);
    if (status.st_mtim.tv_sec > time) break;
  }
  ASSERT_LT(used, 6u);
  for (uint32_t i = 1; i < 6; ++i) {  // the others were longer ago
    const timespec times[2] = {{0, UTIME_OMIT}, {time - i, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, all[i].c_str(), times, 0), 0);
  }
  options_.budget_bytes = std::filesystem::file_size(all[0]) * 4;
  boot();
  ask(prompt_of(200, 100));
  end();
  EXPECT_EQ(files().size(), 4u);
  EXPECT_TRUE(std::filesystem::exists(all[0]));  // used since
  boot();
  EXPECT_EQ(ask(prompt_of(200, used)).disk_tokens, 199u);
  EXPECT_EQ(ask(prompt_of(200, 100)).disk_tokens, 199u);
}

TEST_F(Disk, AFullDiskEndsWritingNotServing) {
  {
    const tests::FileLimit limit(5000);
    for (uint32_t i = 0; i < 5; ++i) ask(prompt_of(200, i));
    EXPECT_TRUE(await([&] { return !tier_->counters().writing; }));
    for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(ask(prompt_of(200, i)).cached_tokens, 199u);
    rig_.reset();
  }
  EXPECT_EQ(files().size(), 0u);
  const std::string said = warnings();
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_NE(said.find("not written to disk any more: " + options_.directory + ": File too large"), std::string::npos)
      << said;
}

TEST_F(Disk, ADirectoryThatCannotBeHadIsNoTier) {
  DiskOptions others = options_;  // the directory is this test's own tier's
  EXPECT_EQ(DiskTier::open(others), nullptr);
  EXPECT_NE(warnings().find("another process uses it"), std::string::npos) << warnings();
  warnings_.clear();
  others.directory = dir_.write("file", "") + "/prefixes";
  EXPECT_EQ(DiskTier::open(others), nullptr);
  EXPECT_NE(warnings().find("Not a directory"), std::string::npos) << warnings();
}

/// A disk that does not answer: a file that is a pipe nobody writes to.
TEST_F(Disk, ADiskThatHangsIsNotWaitedFor) {
  const Tokens prompt = prompt_of(300, 1);
  options_.read_always = false;
  ask(prompt);
  boot();
  ask(prompt_of(400, 2));  // says how fast computing is
  const auto path = files().at(0);
  for (const auto& file : files()) {
    std::filesystem::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  }
  const RequestStats stats = ask(prompt);
  EXPECT_EQ(stats.cached_tokens, 0u);
  Answer cancelled;  // while it waits
  rig_->engine->cancel(rig_->engine->submit(greedy(prompt_of(301, 1), 5, cancelled)).id);
  EXPECT_TRUE(cancelled.wait());
  for (const auto& file : files()) close(open(file.c_str(), O_RDWR | O_NONBLOCK));  // lets go of the reader
  EXPECT_TRUE(await([&] { return rig_->free() == pages_; }));
  ask(prompt);
}

}  // namespace
}  // namespace ellm::serve::testing
