// A segment after its process: what is taken over, what is not, and what damage does. Named segments in /dev/shm.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <system_error>

#include "shm/page_record.h"
#include "shm/page_store.h"
#include "shm/segment.h"

using namespace ellm::shm;

namespace {

using Tokens = std::vector<uint32_t>;

Tokens counting(uint32_t n, uint32_t first = 1) {
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class Survival : public ::testing::Test {
 protected:
  ~Survival() override { Segment::remove(options_.name); }

  StoreOptions options_ = [] {
    StoreOptions o;
    o.geometry = {2, 2, 20, KvType::int8, KvType::f16};
    o.pages = 16;
    o.fingerprint = "weights 0123";
    o.name = kSegmentPrefix + std::string("test.") + std::to_string(getpid());
    return o;
  }();
};

/// A page's payload says which text it belongs to.
void fill(KvPages& kv, PageId page, const Tokens& text) {
  std::mt19937_64 random(std::accumulate(text.begin(), text.end(), uint64_t{text.size()}));
  for (size_t i = 0; i < kv.geometry().page_bytes(); i += 8) {
    const uint64_t word = random();
    std::memcpy(kv.payload(page) + i, &word, 8);
  }
}
bool is_filled(KvPages& kv, PageId page, const Tokens& text) {
  std::vector<std::byte> there(kv.payload(page), kv.payload(page) + kv.geometry().page_bytes());
  const std::byte* was = there.data();
  fill(kv, page, text);
  const bool same = std::memcmp(was, kv.payload(page), there.size()) == 0;
  std::memcpy(kv.payload(page), was, there.size());
  return same;
}

void put(KvPages& kv, PageStore& store, const Tokens& text, uint64_t name_space = 0) {
  std::vector<PageId> pages;
  for (size_t at = 0; at < text.size(); at += kPageTokens) {
    const auto page = store.allocate(name_space);
    ASSERT_TRUE(page);
    const size_t end = std::min<size_t>(text.size(), at + kPageTokens);
    fill(kv, *page, {text.begin(), text.begin() + static_cast<long>(end)});
    pages.push_back(
        store.seal(*page, pages.empty() ? kNoPage : pages.back(), name_space, std::span(text).subspan(at, end - at)));
  }
  for (; !pages.empty(); pages.pop_back()) store.release(pages.back());
}

/// Tokens of `text` that are stored; every page found must hold what was written to it.
uint32_t longest(KvPages& kv, PageStore& store, const Tokens& text, uint64_t name_space = 0) {
  uint32_t found = 0;
  PageId page = kNoPage;
  for (;;) {
    const auto hit = store.find(page, name_space, std::span(text).subspan(found));
    if (hit.tokens != 0 && hit.tokens == kv.record(hit.page).n_tokens) {
      EXPECT_TRUE(is_filled(kv, hit.page, {text.begin(), text.begin() + found + hit.tokens}));
    }
    found += hit.tokens;
    if (hit.tokens != kPageTokens) return found;
    page = hit.page;
  }
}

void expect_accounted(KvPages& kv, const PageStore& store) {
  EXPECT_EQ(store.free_pages() + store.used_pages() + store.cached_pages(), kv.total_pages());
  uint32_t sealed = 0;
  for (PageId page = 0; page < kv.total_pages(); ++page) {
    EXPECT_NE(kv.record(page).state.load(), PageState::filling);
    sealed += kv.record(page).state.load() == PageState::sealed;
  }
  EXPECT_EQ(store.cached_pages(), sealed);
}

TEST_F(Survival, SealedPagesStayFillingOnesGo) {
  {
    auto kv = KvPages::create(options_);
    EXPECT_FALSE(kv->taken_over());
    EXPECT_EQ(kv->refused(), "");
    PageStore store(*kv);
    put(*kv, store, counting(80));
    put(*kv, store, counting(40, 500), 7);
    ASSERT_TRUE(store.allocate(0));  // being filled
  }
  auto kv = KvPages::create(options_);
  EXPECT_TRUE(kv->taken_over());
  PageStore store(*kv);
  expect_accounted(*kv, store);
  EXPECT_EQ(store.cached_pages(), 5u);
  EXPECT_EQ(kv->populated_pages(), 6u);
  EXPECT_EQ(longest(*kv, store, counting(100)), 80u);
  EXPECT_EQ(longest(*kv, store, counting(100, 500), 7), 40u);
  EXPECT_EQ(longest(*kv, store, counting(100, 500)), 0u);
  for (uint32_t i = 0; i < 8; ++i) put(*kv, store, counting(64, 1000 * i + 1000));  // the oldest go first, as before
  expect_accounted(*kv, store);
  EXPECT_EQ(longest(*kv, store, counting(64, 8000)), 64u);
  EXPECT_EQ(store.damaged_pages(), 0u);
}

TEST_F(Survival, OneProcessAtATime) {
  auto kv = KvPages::create(options_);
  try {
    KvPages::create(options_);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), EBUSY);
    EXPECT_NE(std::string(error.what()).find(options_.name), std::string::npos) << error.what();
  }
  kv.reset();
  EXPECT_TRUE(KvPages::create(options_)->taken_over());
}

TEST_F(Survival, AnotherFingerprintShapeOrSizeIsAFreshSegment) {
  const auto refused = [&](const StoreOptions& other) {
    {
      auto kv = KvPages::create(options_);
      PageStore store(*kv);
      put(*kv, store, counting(64));
    }
    auto kv = KvPages::create(other);
    EXPECT_FALSE(kv->taken_over());
    EXPECT_EQ(PageStore(*kv).free_pages(), other.pages);
    const std::string why = kv->refused();
    kv.reset();
    Segment::remove(options_.name);
    return why;
  };
  StoreOptions other = options_;
  other.fingerprint = "weights 0124";
  EXPECT_EQ(refused(other), "it is of another model or setting");
  other = options_;
  other.geometry.layers = 3;
  EXPECT_EQ(refused(other), "its pages have another shape");
  other = options_;
  other.pages = other.least_pages = 20;
  EXPECT_EQ(refused(other), "its size does not fit the memory for keys and values");
  other.least_pages = 10;
  {
    auto kv = KvPages::create(options_);
  }
  auto kv = KvPages::create(other);  // large enough
  EXPECT_TRUE(kv->taken_over());
  EXPECT_EQ(kv->total_pages(), 16u);
}

TEST_F(Survival, AMemfdIsTakenOver) {
  StoreOptions anonymous = options_;
  anonymous.name.clear();
  int fd;
  {
    auto kv = KvPages::create(anonymous);
    PageStore store(*kv);
    put(*kv, store, counting(50));
    fd = dup(kv->fd());
  }
  anonymous.fd = fd;
  auto kv = KvPages::create(anonymous);
  EXPECT_TRUE(kv->taken_over());
  PageStore store(*kv);
  EXPECT_EQ(longest(*kv, store, counting(100)), 50u);
}

TEST_F(Survival, WhatIsNotOursIsNotOpened) {
  {
    auto kv = KvPages::create(options_);
  }
  const std::string path = "/dev/shm/" + options_.name;
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_THROW(KvPages::create(options_), std::system_error);
  unlink(path.c_str());
  ASSERT_EQ(symlink("/etc/passwd", path.c_str()), 0);
  EXPECT_THROW(KvPages::create(options_), std::system_error);
}

/// A process that stores texts until it is killed.
TEST_F(Survival, KilledAtAnyInstant) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      auto kv = KvPages::create(options_);
      PageStore store(*kv);
      for (uint32_t i = 0;; ++i) {
        Tokens text = counting(32 + i % 70, 1 + i % 3);
        text.back() = i;
        put(*kv, store, text, i % 2);
      }
    }
    usleep(1000 + random() % 20000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    auto kv = KvPages::create(options_);
    EXPECT_TRUE(kv->taken_over() || round == 0);
    PageStore store(*kv);
    expect_accounted(*kv, store);
    uint32_t stored = 0;
    for (uint32_t salt = 1; salt < 4; ++salt) {
      for (uint64_t name_space : {0, 1}) stored += longest(*kv, store, counting(200, salt), name_space);
    }
    EXPECT_EQ(store.damaged_pages(), 0u);
    expect_accounted(*kv, store);
    if (round > 5) {
      EXPECT_GT(stored, 0u);
    }
  }
}

/// Every byte of header and records and some of the payload, flipped one at a time: never a wrong page, never a crash,
/// and a page whose own bytes are whole stays where its chain does.
TEST_F(Survival, DamageIsFoundOrHarmless) {
  options_.pages = 6;
  const Tokens text = counting(100);
  std::vector<std::byte> whole;
  size_t records_end = 0, payload_offset = 0;
  {
    auto kv = KvPages::create(options_);
    PageStore store(*kv);
    put(*kv, store, text);
    put(*kv, store, counting(20, 900));
  }
  {
    auto segment = Segment::open(options_.name);
    whole.assign(segment->data(), segment->data() + segment->bytes());
    payload_offset = reinterpret_cast<SegmentHeaderData*>(whole.data())->payload_offset;
    records_end = sizeof(SegmentHeaderData) + options_.pages * sizeof(PageRecordData);
  }
  std::set<std::string> refusals;
  const auto damaged_at = [&](size_t offset, std::byte mask) {
    {
      auto segment = Segment::open(options_.name);
      std::memcpy(segment->data(), whole.data(), records_end);
      std::memcpy(segment->data() + payload_offset, whole.data() + payload_offset, whole.size() - payload_offset);
      segment->data()[offset] ^= mask;
    }
    auto kv = KvPages::create(options_);
    if (!kv->taken_over()) {
      refusals.insert(kv->refused());
      kv.reset();
      auto segment = Segment::open(options_.name);
      EXPECT_EQ(segment->bytes(), whole.size());
      return 0u;
    }
    PageStore store(*kv);
    const uint32_t found = longest(*kv, store, text);  // checks the bytes
    EXPECT_EQ(store.free_pages() + store.used_pages() + store.cached_pages(), kv->total_pages());
    put(*kv, store, counting(60, 2000));  // and it works
    EXPECT_EQ(longest(*kv, store, counting(60, 2000)), 60u);
    return found;
  };
  uint32_t kept = 0;
  for (size_t offset = 0; offset < records_end; ++offset) {
    if (offset >= 256 && offset < sizeof(SegmentHeaderData) && offset % 64 != 0) continue;  // unused fingerprint
    for (const int bit : {0, 7}) kept += damaged_at(offset, std::byte{1} << bit) == 100;
  }
  EXPECT_GT(kept, records_end / 4);  // damage to free pages' records and to unused bytes
  EXPECT_GE(refusals.size(), 5u);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const size_t offset = payload_offset + random() % (whole.size() - payload_offset);
    damaged_at(offset, std::byte{1});
  }
}

TEST_F(Survival, AFileOfAnyLengthIsNoTrap) {
  {
    auto kv = KvPages::create(options_);
  }
  const std::string path = "/dev/shm/" + options_.name;
  for (const long length : {0L, 1L, 100L, 3200L, 4096L, 100000L, 3L << 20, 1L << 30}) {
    ASSERT_EQ(truncate(path.c_str(), length), 0);
    auto kv = KvPages::create(options_);
    PageStore store(*kv);
    put(*kv, store, counting(100));
    EXPECT_FALSE(kv->taken_over()) << length;
  }
}

}  // namespace
