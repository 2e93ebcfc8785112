// The store of sealed pages against a model that is a list of texts and a plain search through it.
#include "shm/page_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "shm/page_record.h"

using namespace ellm::shm;

namespace {

using Tokens = std::vector<uint32_t>;

std::unique_ptr<KvPages> segment(uint32_t pages, KvType k = KvType::f16, KvType v = KvType::f16) {
  StoreOptions o;
  o.geometry = {2, 2, 20, k, v};
  o.pages = pages;
  return KvPages::create(o);
}

Tokens counting(uint32_t n, uint32_t first = 1) {
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Stores a text as a sequence would that computed it; returns its pages, in use.
std::vector<PageId> hold(PageStore& store, const Tokens& text, uint64_t name_space = 0) {
  std::vector<PageId> pages;
  for (size_t at = 0; at < text.size(); at += kPageTokens) {
    const auto page = store.allocate(name_space);
    if (!page) break;
    const auto rest = std::span(text).subspan(at);
    pages.push_back(store.seal(*page, pages.empty() ? kNoPage : pages.back(), name_space,
                               rest.first(std::min<size_t>(rest.size(), kPageTokens))));
  }
  return pages;
}
void let_go(PageStore& store, std::vector<PageId> pages) {
  for (; !pages.empty(); pages.pop_back()) store.release(pages.back());
}
void put(PageStore& store, const Tokens& text, uint64_t name_space = 0) {
  let_go(store, hold(store, text, name_space));
}

/// Tokens of `text` that are stored.
uint32_t longest(PageStore& store, const Tokens& text, uint64_t name_space = 0) {
  uint32_t found = 0;
  PageId page = kNoPage;
  for (;;) {
    const auto hit = store.find(page, name_space, std::span(text).subspan(found));
    found += hit.tokens;
    if (hit.tokens != kPageTokens) return found;
    page = hit.page;
  }
}

TEST(PageStore, FindsTheLongestCommonBeginning) {
  auto kv = segment(64);
  PageStore store(*kv);
  put(store, counting(100));
  EXPECT_EQ(longest(store, counting(100)), 100u);
  EXPECT_EQ(longest(store, counting(200)), 100u);
  EXPECT_EQ(longest(store, counting(70)), 70u);
  EXPECT_EQ(longest(store, counting(100, 2)), 0u);
  EXPECT_EQ(longest(store, counting(100), 7), 0u);  // another namespace
  auto other = counting(100);
  other[50] = 0;
  EXPECT_EQ(longest(store, other), 50u);
  put(store, other);
  EXPECT_EQ(longest(store, counting(100)), 100u);
  EXPECT_EQ(longest(store, other), 100u);
  other[60] = 0;
  EXPECT_EQ(longest(store, other), 60u);
}

TEST(PageStore, WhatIsStoredTwiceTakesRoomOnce) {
  auto kv = segment(64);
  PageStore store(*kv);
  const auto mine = hold(store, counting(64)), again = hold(store, counting(64));
  EXPECT_EQ(mine, again);
  EXPECT_EQ(store.used_pages(), 2u);
  let_go(store, mine);
  EXPECT_EQ(store.used_pages(), 2u);
  let_go(store, again);
  EXPECT_EQ(store.used_pages(), 0u);
  EXPECT_EQ(store.cached_pages(), 2u);
  put(store, counting(80));  // a page of 16 tokens
  put(store, counting(70));  // part of it
  EXPECT_EQ(store.cached_pages(), 3u);
  put(store, counting(90));  // and more than it: takes its place
  EXPECT_EQ(store.cached_pages(), 3u);
  EXPECT_EQ(longest(store, counting(90)), 90u);
}

TEST(PageStore, LeavesGoFirstTheOldestFirst) {
  auto kv = segment(6);
  PageStore store(*kv);
  put(store, counting(64));        // a, 2 pages
  put(store, counting(64, 1000));  // b, 2 pages
  put(store, counting(64, 2000));  // c, 2 pages
  EXPECT_EQ(store.free_pages(), 0u);
  put(store, counting(64));  // a is used again
  const auto held = hold(store, counting(32, 3000));
  EXPECT_EQ(longest(store, counting(64, 1000)), 32u);
  let_go(store, held);
  put(store, counting(64, 4000));
  EXPECT_EQ(longest(store, counting(64)), 64u);
  EXPECT_EQ(longest(store, counting(64, 1000)), 0u);
  EXPECT_EQ(longest(store, counting(64, 2000)), 32u);
  EXPECT_EQ(longest(store, counting(32, 3000)), 32u);
  EXPECT_TRUE(store.was_evicted(page_key({}, 0, counting(32, 1000))));
  EXPECT_FALSE(store.was_evicted(page_key({}, 0, counting(32, 2000))));
}

TEST(PageStore, WhatIsInUseStays) {
  auto kv = segment(5);
  PageStore store(*kv);
  const auto held = hold(store, counting(96));
  put(store, counting(32, 1000));
  for (uint32_t i = 0; i < 20; ++i) put(store, counting(64, 5000 + 100 * i));
  EXPECT_EQ(longest(store, counting(96)), 96u);
  EXPECT_EQ(store.used_pages(), 3u);
  const auto more = hold(store, counting(64, 9000));
  EXPECT_EQ(store.cached_pages() + store.free_pages(), 0u);
  EXPECT_FALSE(store.allocate(0));
  let_go(store, more);
  let_go(store, held);
}

/// A text's K and V, every byte of it made from the token and the place, as the kernels might write it.
void write_tokens(KvPages& kv, PageId page, uint32_t from, uint32_t to, uint8_t salt) {
  const auto& g = kv.geometry();
  std::byte* at = kv.payload(page);
  for (size_t block = 0; block < size_t{g.layers} * g.kv_heads; ++block) {
    for (const auto& pieces : {g.k_rows(), g.v_rows()}) {
      for (const TokenRows& piece : pieces) {
        for (size_t row = 0; row < piece.rows; ++row)
          for (uint32_t t = from; t < to && t < piece.tokens; ++t)
            std::memset(at + piece.offset(row, t), salt, piece.token_bytes);
        at += piece.bytes();
      }
    }
  }
  ASSERT_EQ(at, kv.payload(page) + g.page_bytes());
}

TEST(PageStore, CopiesWholeTokensAndNoOthers) {
  for (KvType k : kKvTypes) {
    for (KvType v : kKvTypes) {
      auto kv = segment(3, k, v);
      for (uint32_t n : {0u, 1u, 17u, 31u, 32u}) {
        write_tokens(*kv, 0, 0, 32, 1);
        write_tokens(*kv, 1, 0, 32, 2);
        kv->copy(0, 1, n);
        write_tokens(*kv, 2, 0, n, 1);
        write_tokens(*kv, 2, n, 32, 2);
        EXPECT_EQ(std::memcmp(kv->payload(1), kv->payload(2), kv->geometry().page_bytes()), 0) << n;
      }
    }
  }
}

TEST(PageStore, RecordsSayWhatThePagesHold) {
  auto kv = segment(4);
  PageStore store(*kv);
  const auto pages = hold(store, counting(40), 77);
  const PageRecordData& first = kv->record(pages[0]);
  const PageRecordData& second = kv->record(pages[1]);
  EXPECT_EQ(first.state.load(), PageState::sealed);
  EXPECT_EQ(first.n_tokens, 32u);
  EXPECT_EQ(second.n_tokens, 8u);
  EXPECT_EQ(second.tokens[7], 40u);
  EXPECT_EQ(second.name_space, 77u);
  EXPECT_EQ(first.parent_key[0] | first.parent_key[1], 0u);
  EXPECT_EQ(second.parent_key[0], first.key[0]);
  EXPECT_EQ(second.parent_key[1], first.key[1]);
  EXPECT_EQ((PageKey{second.key[0], second.key[1]}), page_key(store.key(pages[0]), 77, counting(8, 33)));
  EXPECT_GT(second.last_use, first.last_use);
  let_go(store, pages);
}

/// Random texts over few tokens, so that they share beginnings of every length; held, let go, given up.
TEST(PageStore, AgreesWithASearchThroughEverythingStored) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    auto kv = segment(seed % 2 ? 400 : 60);
    PageStore store(*kv);
    std::mt19937 random(seed);
    std::vector<Tokens> texts;
    std::vector<std::vector<PageId>> held;
    for (int step = 0; step < 400; ++step) {
      Tokens text;
      if (!texts.empty() && random() % 4) {
        text = texts[random() % texts.size()];
        text.resize(random() % (text.size() + 1));
      }
      for (uint32_t more = random() % 50; more > 0; --more) text.push_back(random() % 3);
      const uint64_t name_space = random() % 2;
      // What is stored is what the records of sealed pages say, chained by their keys.
      std::map<PageKey, Tokens> prefixes = {{PageKey{}, {}}};
      uint32_t expected = 0, sealed = 0;
      for (bool more = true; more;) {
        more = false;
        for (PageId page = 0; page < kv->total_pages(); ++page) {
          const auto& r = kv->record(page);
          const PageKey key{r.key[0], r.key[1]}, parent{r.parent_key[0], r.parent_key[1]};
          if (r.state.load() != PageState::sealed || prefixes.contains(key) || !prefixes.contains(parent)) continue;
          Tokens whole = prefixes[parent];
          whole.insert(whole.end(), r.tokens, r.tokens + r.n_tokens);
          if (r.name_space == name_space) {
            const auto end = std::mismatch(whole.begin(), whole.end(), text.begin(), text.end()).first;
            expected = std::max(expected, static_cast<uint32_t>(end - whole.begin()));
          }
          prefixes[key] = std::move(whole);
          more = true;
          ++sealed;
        }
      }
      ASSERT_EQ(longest(store, text, name_space), expected);
      uint32_t in_state = 0;
      for (PageId page = 0; page < kv->total_pages(); ++page)
        in_state += kv->record(page).state.load() == PageState::sealed;
      ASSERT_EQ(sealed, in_state);  // every chain reaches the root, no page is stored twice
      ASSERT_EQ(store.free_pages() + store.used_pages() + store.cached_pages(), kv->total_pages());
      ASSERT_EQ(kv->total_pages() - store.free_pages(), sealed);

      auto pages = hold(store, text, name_space);
      const uint32_t whole = static_cast<uint32_t>(std::min<size_t>(pages.size() * kPageTokens, text.size()));
      text.resize(whole);  // all there was room for
      ASSERT_GE(longest(store, text, name_space), whole);
      if (random() % 4 == 0 && held.size() < 4) held.push_back(std::move(pages));
      else let_go(store, std::move(pages));
      if (!held.empty() && random() % 8 == 0) {
        let_go(store, std::move(held.back()));
        held.pop_back();
      }
      texts.push_back(std::move(text));
    }
  }
}

}  // namespace
