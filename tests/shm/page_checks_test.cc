// What is found out about pages behind somebody's back: the same answers whoever is first, and nobody reads a page that
// is being written (run it with TSan).
#include "shm/page_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

using namespace ellm::shm;

namespace {

constexpr uint32_t kPages = 2000, kWords = 64;

std::vector<uint32_t> all_pages() {
  std::vector<uint32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

/// Pages of which each seventh was damaged; plain memory, so that a read beside a write is a race.
class Memory {
 public:
  Memory() : words_(size_t{kPages} * kWords, 1) {
    for (uint32_t page = 0; page < kPages; page += 7) words_[size_t{page} * kWords + page % kWords] = 2;
  }
  bool is_intact(uint32_t page) const {
    const auto first = words_.begin() + page * kWords;
    return std::accumulate(first, first + kWords, 0u) == kWords;
  }
  void write(uint32_t page) { std::fill_n(words_.begin() + page * kWords, kWords, 9); }

 private:
  std::vector<uint32_t> words_;
};

TEST(PageChecks, SayTheSameWhoeverIsFirst) {
  const Memory memory;
  for (int round = 0; round < 20; ++round) {
    PageChecks checks(all_pages(), kPages, [&](uint32_t page) { return memory.is_intact(page); });
    for (uint32_t i = 0; i < kPages; ++i) {
      const uint32_t page = round % 2 == 0 ? i : kPages - 1 - i;  // behind the thread, and towards it
      ASSERT_EQ(checks.is_intact(page), page % 7 != 0) << page;
      ASSERT_EQ(checks.is_intact(page), page % 7 != 0) << page;
    }
  }
}

TEST(PageChecks, NobodyReadsWhatIsSettled) {
  for (int round = 0; round < 20; ++round) {
    Memory memory;
    PageChecks checks(all_pages(), kPages, [&](uint32_t page) { return memory.is_intact(page); });
    for (uint32_t i = 0; i < kPages; ++i) {
      const uint32_t page = round % 2 == 0 ? i : kPages - 1 - i;
      checks.settle(page);
      memory.write(page);
    }
  }
}

TEST(PageChecks, AreMadeByThemselves) {
  std::vector<std::atomic<bool>> read(kPages);
  std::atomic<uint32_t> left = kPages;
  const PageChecks checks(all_pages(), kPages, [&](uint32_t page) {
    EXPECT_FALSE(read[page].exchange(true));
    if (--left == 0) left.notify_one();
    return true;
  });
  for (uint32_t n; (n = left) != 0;) left.wait(n);
}

TEST(PageChecks, EndBeforeAllAreMade) {
  std::atomic<uint32_t> made = 0;
  {
    const PageChecks checks(all_pages(), kPages, [&](uint32_t) {
      made.fetch_add(1);
      made.notify_one();
      std::this_thread::yield();
      return true;
    });
    made.wait(0);
  }
  EXPECT_LE(made, kPages);
}

}  // namespace
