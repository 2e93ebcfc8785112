// Who gives up a page when one is wanted, what is pinned, and what may run: the store against a model that looks
// through everything each time.
#include "shm/page_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "shm/page_record.h"
#include "shm/page_store.h"

using namespace ellm::shm;

namespace {

using Tokens = std::vector<uint32_t>;

constexpr uint64_t kPresent = 1000;
uint64_t clock_ns = 0;

ShareOptions options() {
  ShareOptions o;
  o.now_ns = [] { return clock_ns; };
  o.present_ns = kPresent;
  return o;
}

std::unique_ptr<KvPages> segment(uint32_t pages) {
  StoreOptions o;
  o.geometry = {1, 1, 4, KvType::int8, KvType::int8};
  o.pages = pages;
  return KvPages::create(o);
}

Tokens text_of(uint32_t user, uint32_t number, uint32_t tokens) {
  Tokens text(tokens);
  std::iota(text.begin(), text.end(), (user * 1000 + number) * 10000);
  return text;
}

/// What a store must be like, from the records of sealed pages and what the test itself did.
class Model {
 public:
  Model(KvPages& kv, const ShareOptions& o) : kv_(kv), options_(o), store_(kv, o) {}

  /// A sequence that computes a text, as far as there is room. What it holds is to be let go.
  std::vector<PageId> hold(uint64_t user, const Tokens& text) {
    store_.may_reserve(user, 0);  // he is here
    seen_[user] = clock_ns;
    std::vector<PageId> pages;
    for (size_t at = 0; at < text.size(); at += kPageTokens) {
      const auto page = allocate(user);
      if (!page) break;
      const auto tokens = std::span(text).subspan(at, std::min<size_t>(text.size() - at, kPageTokens));
      pages.push_back(store_.seal(*page, pages.empty() ? kNoPage : pages.back(), user, tokens));
      ++uses_[pages.back()];
      drop_replaced();
    }
    return pages;
  }
  void let_go(std::vector<PageId> pages) {
    for (; !pages.empty(); pages.pop_back()) {
      store_.release(pages.back());
      --uses_[pages.back()];
    }
  }
  void put(uint64_t user, const Tokens& text) { let_go(hold(user, text)); }

  uint32_t found(uint64_t user, const Tokens& text) {
    uint32_t tokens = 0;
    for (PageId page = kNoPage;;) {
      const auto hit = store_.find(page, user, std::span(text).subspan(tokens));
      tokens += hit.tokens;
      if (hit.tokens != kPageTokens) return tokens;
      page = hit.page;
    }
  }
  PageId end_of(uint64_t user, const Tokens& text) {
    PageId page = kNoPage;
    for (size_t at = 0; at < text.size(); at += kPageTokens)
      page = store_.find(page, user, std::span(text).subspan(at)).page;
    return page;
  }

  bool is_sealed(PageId page) const { return kv_.record(page).state.load() == PageState::sealed; }
  uint64_t owner(PageId page) const { return kv_.record(page).name_space; }
  /// Pages that a pin of this page or of one behind it holds.
  bool is_held_by_pin(PageId page) const {
    if (kv_.record(page).pinned != 0) return true;
    for (const PageId child : children(page))
      if (is_held_by_pin(child)) return true;
    return false;
  }
  std::vector<PageId> children(PageId page) const {
    std::vector<PageId> result;
    for (PageId other = 0; other < kv_.total_pages(); ++other) {
      if (is_sealed(other) && kv_.record(other).parent_key[0] == kv_.record(page).key[0] &&
          kv_.record(other).parent_key[1] == kv_.record(page).key[1])
        result.push_back(other);
    }
    return result;
  }

  void check_accounts() {
    std::map<uint64_t, PageShares::Account> expected;
    uint32_t pinned = 0;
    for (PageId page = 0; page < kv_.total_pages(); ++page) {
      if (!is_sealed(page)) continue;
      auto& account = expected[owner(page)];
      const bool by_pin = is_held_by_pin(page), held = by_pin || uses_[page] != 0;
      ++account.pages;
      account.held += held;
      account.pinned += by_pin;
      account.may_go += !held && children(page).empty();
      pinned += by_pin;
    }
    ASSERT_EQ(store_.pinned_pages(), pinned);
    uint32_t all = 0;
    store_.shares().for_each([&](const PageShares::Account& account) {
      const auto& e = expected[account.name_space];
      ASSERT_EQ(account.pages, e.pages);
      ASSERT_EQ(account.held, e.held);
      ASSERT_EQ(account.pinned, e.pinned);
      ASSERT_EQ(account.may_go, e.may_go);
      all += account.pages;
    });
    ASSERT_EQ(all, kv_.total_pages() - kv_.free_pages());
  }

  PageStore& store() { return store_; }

 private:
  uint32_t weight(uint64_t user) const {
    for (const auto& [name_space, weight] : options_.weights)
      if (name_space == user) return weight;
    return 1;
  }

  /// A longer page has taken a shorter one's place.
  void drop_replaced() {
    std::erase_if(uses_, [this](const auto& use) { return !is_sealed(use.first) && use.second == 0; });
  }

  std::optional<PageId> allocate(uint64_t user) {
    std::map<uint64_t, uint32_t> pages;
    std::map<uint64_t, PageId> oldest;
    std::set<PageId> before;
    ++pages[user];
    for (PageId page = 0; page < kv_.total_pages(); ++page) {
      if (!is_sealed(page)) continue;
      before.insert(page);
      ++pages[owner(page)];
      if (uses_[page] != 0 || is_held_by_pin(page) || !children(page).empty()) continue;
      const auto [place, first] = oldest.try_emplace(owner(page), page);
      if (!first && kv_.record(page).last_use < kv_.record(place->second).last_use) place->second = page;
    }
    const auto comes_first = [&](uint64_t a, uint64_t b) {
      const bool here_a = clock_ns - seen_[a] <= kPresent, here_b = clock_ns - seen_[b] <= kPresent;
      if (here_a != here_b) return !here_a;
      return pages[a] * weight(b) > pages[b] * weight(a);
    };
    const bool full = kv_.free_pages() == 0;
    const auto page = store_.allocate(user);
    std::set<PageId> gone;
    for (const PageId was : before)
      if (!is_sealed(was)) gone.insert(was);
    EXPECT_EQ(gone.size(), full && !oldest.empty() ? 1u : 0u);
    EXPECT_EQ(page.has_value(), !full || !oldest.empty());
    for (const PageId one : gone) {
      // Of equals any may be the one.
      for (const auto& [name_space, candidate] : oldest)
        EXPECT_FALSE(comes_first(name_space, owner_before_(one, oldest)));
    }
    return page;
  }
  static uint64_t owner_before_(PageId page, const std::map<uint64_t, PageId>& oldest) {
    for (const auto& [name_space, candidate] : oldest)
      if (candidate == page) return name_space;
    ADD_FAILURE() << "page " << page << " was nobody's oldest";
    return 0;
  }

  KvPages& kv_;
  ShareOptions options_;
  PageStore store_;
  std::map<PageId, uint32_t> uses_;
  std::map<uint64_t, uint64_t> seen_;
};

TEST(PageShares, AFloodLeavesAnotherWhatIsWithinHisShare) {
  clock_ns = 1;
  auto kv = segment(60);
  Model model(*kv, options());
  for (uint32_t i = 0; i < 5; ++i) model.put(1, text_of(1, i, 5 * 32));  // 25 of 30 pages
  for (uint32_t i = 0; i < 100; ++i) model.put(2, text_of(2, i, 7 * 32 + 5));
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(model.found(1, text_of(1, i, 5 * 32)), 5u * 32) << i;
  EXPECT_EQ(model.store().shares().find(1)->pages, 25u);
  EXPECT_EQ(model.store().shares().find(1)->evicted_pages, 0u);
  EXPECT_EQ(model.store().shares().find(2)->pages, 35u);                  // what the other leaves is lent
  for (uint32_t i = 5; i < 20; ++i) model.put(1, text_of(1, i, 5 * 32));  // who was lent to gives back, to the page
  EXPECT_EQ(model.store().shares().find(1)->pages, 30u);
  EXPECT_EQ(model.store().shares().find(2)->pages, 30u);
}

TEST(PageShares, SharesGoByWeight) {
  clock_ns = 1;
  auto kv = segment(60);
  auto o = options();
  o.weights = {{7, 3}, {1, 2}};
  Model model(*kv, o);
  for (uint32_t i = 0; i < 40; ++i)
    for (const uint32_t user : {1u, 2u, 7u}) model.put(user, text_of(user, i, 64));
  EXPECT_EQ(model.store().shares().find(1)->pages, 20u);
  EXPECT_EQ(model.store().shares().find(2)->pages, 10u);
  EXPECT_EQ(model.store().shares().find(7)->pages, 30u);
}

TEST(PageShares, WhoIsAbsentLendsEverything) {
  clock_ns = 1;
  auto kv = segment(40);
  Model model(*kv, options());
  for (uint32_t i = 0; i < 4; ++i) model.put(1, text_of(1, i, 160));
  clock_ns += kPresent / 2;
  for (uint32_t i = 0; i < 10; ++i) model.put(2, text_of(2, i, 160));
  EXPECT_EQ(model.store().shares().find(1)->pages, 20u);
  clock_ns += kPresent / 2 + 1;
  for (uint32_t i = 10; i < 14; ++i) model.put(2, text_of(2, i, 160));
  EXPECT_EQ(model.store().shares().find(1)->pages, 0u);
  EXPECT_EQ(model.store().shares().find(2)->pages, 40u);
}

/// Many at once, each with a text of his own: in use, what they use cannot be taken back, so it is not given.
TEST(PageShares, WhatRunsTakesNoMoreThanIsLent) {
  clock_ns = 1;
  auto kv = segment(60);
  Model model(*kv, options());
  for (uint32_t i = 0; i < 5; ++i) model.put(1, text_of(1, i, 128));  // 20 pages
  PageStore& store = model.store();
  const auto begin = [&](uint64_t user, uint32_t pages) {
    if (!store.may_reserve(user, pages)) return false;
    store.begin_sequence(user, pages);
    return true;
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(begin(2, 10));
  EXPECT_FALSE(begin(2, 1));   // the other's 20 pages are within his share
  EXPECT_TRUE(begin(1, 10));   // he himself may use them
  EXPECT_FALSE(begin(1, 11));  // what is promised is promised
  store.end_sequence(1, 10, 0, 0);
  EXPECT_TRUE(begin(3, 20));  // one request of somebody always may run
  EXPECT_FALSE(begin(3, 1));
  store.end_sequence(3, 20, 0, 0);
  for (int i = 0; i < 4; ++i) store.end_sequence(2, 10, 0, 0);
  EXPECT_FALSE(store.may_reserve(2, 61));
  EXPECT_TRUE(store.may_reserve(2, 60));
}

TEST(PageShares, PinnedPrefixesStayAndCount) {
  clock_ns = 1;
  auto kv = segment(40);
  auto o = options();
  o.most_pinned = 20;
  o.pinned_percent = 50;
  Model model(*kv, o);
  const Tokens kept = text_of(1, 0, 100), other = text_of(2, 0, 96);
  model.put(1, kept);
  model.put(2, other);
  PageStore& store = model.store();
  EXPECT_EQ(store.pin(model.end_of(1, kept)), PageStore::Pin::done);
  EXPECT_EQ(store.pin(model.end_of(1, kept)), PageStore::Pin::done);  // nothing more
  EXPECT_EQ(store.pinned_pages(), 4u);
  for (uint32_t i = 1; i < 40; ++i) model.put(2, text_of(2, i, 100));
  EXPECT_EQ(model.found(1, kept), 100u);
  // A continuation of the last page takes over its pin.
  Tokens longer = kept;
  longer.resize(110, 7);
  model.put(1, longer);
  for (uint32_t i = 1; i < 40; ++i) model.put(1, text_of(1, i, 100));
  EXPECT_EQ(model.found(1, longer), 110u);
  EXPECT_EQ(store.pinned_pages(), 4u);
  model.check_accounts();
  // Half of a share of 20 pages.
  const Tokens second = text_of(1, 50, 6 * 32), third = text_of(1, 51, 7 * 32);
  model.put(1, second);
  EXPECT_EQ(store.pin(model.end_of(1, second)), PageStore::Pin::done);
  model.put(1, third);
  EXPECT_EQ(store.pin(model.end_of(1, third)), PageStore::Pin::beyond_share);
  // Who is pinned to runs in what is left.
  EXPECT_FALSE(store.may_reserve(2, 31));
  EXPECT_TRUE(store.may_reserve(2, 30));
  const uint32_t had = store.shares().find(1)->pages;
  EXPECT_EQ(store.flush(1, false), had - 10);
  EXPECT_EQ(model.found(1, second), 6u * 32);
  EXPECT_EQ(model.found(1, third), 0u);
  store.unpin(model.end_of(1, second));
  EXPECT_EQ(store.flush(1, false), 6u);
  EXPECT_EQ(store.flush(1, true), 4u);
  EXPECT_EQ(store.pinned_pages(), 0u);
  model.check_accounts();
}

TEST(PageShares, NothingIsPinnedThatRunningRequestsSetAside) {
  clock_ns = 1;
  auto kv = segment(20);
  Model model(*kv, options());
  const Tokens text = text_of(1, 0, 96);
  model.put(1, text);
  PageStore& store = model.store();
  store.begin_sequence(1, 18);
  EXPECT_EQ(store.pin(model.end_of(1, text)), PageStore::Pin::no_room_now);
  store.end_sequence(1, 18, 0, 0);
  EXPECT_EQ(store.pin(model.end_of(1, text)), PageStore::Pin::done);
}

/// Random users, weights, texts, pins, flushes and times.
TEST(PageShares, AgreesWithALookThroughEverything) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    clock_ns = 1;
    auto kv = segment(seed % 2 ? 24 : 60);
    auto o = options();
    o.most_pinned = kv->total_pages() / 3;
    if (seed % 3 == 0) o.weights = {{1, 2}, {3, 5}};
    Model model(*kv, o);
    std::vector<std::vector<PageId>> held;
    for (int step = 0; step < 300; ++step) {
      const uint64_t user = random() % 5;
      Tokens text = text_of(static_cast<uint32_t>(user), random() % 4, random() % 150 + 1);
      if (random() % 3 == 0) text.resize(text.size() + random() % 60, random() % 3);
      auto pages = model.hold(user, text);
      const PageId last = pages.empty() ? kNoPage : pages.back();
      if (random() % 4 == 0 && held.size() < 4) held.push_back(std::move(pages));
      else model.let_go(std::move(pages));
      if (last != kNoPage && random() % 6 == 0) model.store().pin(last);
      if (last != kNoPage && random() % 6 == 0) model.store().unpin(last);
      if (random() % 40 == 0) model.store().flush(random() % 5, random() % 2);
      if (!held.empty() && random() % 5 == 0) {
        model.let_go(std::move(held.back()));
        held.pop_back();
      }
      clock_ns += random() % (random() % 10 == 0 ? 900 : 20);
      ASSERT_NO_FATAL_FAILURE(model.check_accounts()) << seed << " " << step;
      ASSERT_FALSE(HasFailure()) << seed << " " << step;
    }
  }
}

}  // namespace
