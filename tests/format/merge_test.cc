// The merging loop against a naive twin that looks at all pairs again after every merge.
#include "daemon/format/merge.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ellm::format {
namespace {

using Table = std::map<std::pair<TokenId, TokenId>, Merge>;

std::vector<TokenId> naive(std::vector<TokenId> ids, const Table& table) {
  for (;;) {
    Merge best;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = table.find({ids[i], ids[i + 1]});
      if (merge != table.end() && merge->second.rank < best.rank) best = merge->second, at = i;
    }
    if (best.rank == kNoMerge) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

std::vector<TokenId> merged(MergeWorkspace& work, const std::vector<TokenId>& ids, const Table& table) {
  work.symbols.clear();
  for (uint32_t i = 0; i < ids.size(); ++i) work.symbols.push_back({i, i + 1, ids[i]});
  merge_symbols(work, [&](const Symbol& left, const Symbol& right) {
    EXPECT_EQ(left.end, right.begin);
    const auto merge = table.find({left.id, right.id});
    return merge == table.end() ? Merge{} : merge->second;
  });
  std::vector<TokenId> out;
  uint32_t position = 0;
  for (const Symbol& symbol : work.symbols) {
    EXPECT_EQ(symbol.begin, position);
    position = symbol.end;
    out.push_back(symbol.id);
  }
  EXPECT_EQ(position, ids.size());
  return out;
}

TEST(Merge, EqualsNaive) {
  std::mt19937 random(1);
  MergeWorkspace work;
  for (int round = 0; round < 400; ++round) {
    // Few ranks, so that many pairs tie; ids of merges among the symbols, so that merges go on.
    const uint32_t symbols = 2 + random() % 6, ranks = 1 + random() % 40;
    Table table;
    for (uint32_t i = random() % 60; i > 0; --i)
      table[{static_cast<TokenId>(random() % symbols), static_cast<TokenId>(random() % symbols)}] = {
          static_cast<uint32_t>(random() % ranks), static_cast<TokenId>(random() % symbols)};
    // Around the border between the two algorithms, and far above it.
    const size_t length = round % 4 == 0 ? random() % 300 : round % 4 == 1 ? 36 + random() % 10 : random() % 40;
    std::vector<TokenId> ids(length);
    for (TokenId& id : ids) id = random() % symbols;
    ASSERT_EQ(merged(work, ids, table), naive(ids, table)) << "round " << round;
  }
}

TEST(Merge, LongRunOfOneSymbol) {
  // 0 0 -> 1, 1 1 -> 2, …: a million symbols, which a quadratic loop would not finish.
  Table table;
  for (TokenId id = 0; id < 5; ++id) table[{id, id}] = {id, id + 1};
  MergeWorkspace work;
  const std::vector<TokenId> out = merged(work, std::vector<TokenId>(1'000'003), table);
  ASSERT_EQ(out.size(), 1'000'003u / 32 + 2);
  EXPECT_EQ(out[0], 5u);
  EXPECT_EQ(out[out.size() - 3], 5u);
  EXPECT_EQ(out[out.size() - 2], 1u);  // the remaining 3
  EXPECT_EQ(out.back(), 0u);
}

TEST(PieceCache, RepeatsWhatWasEncoded) {
  std::string text;
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + random() % 3);
  PieceCache cache(text.size());
  std::vector<TokenId> out, expected;
  size_t encoded = 0, pieces = 0;
  for (size_t at = 0; at + 4 < text.size(); at += 1 + random() % 4, ++pieces) {
    const std::string_view piece = std::string_view(text).substr(at, 1 + random() % 4);
    const auto encode = [&](std::vector<TokenId>& to) {
      for (const char c : piece) to.push_back(static_cast<TokenId>(c) * 7);
    };
    encode(expected);
    cache.encode(piece, out, [&] { ++encoded, encode(out); });
  }
  EXPECT_EQ(out, expected);
  EXPECT_LT(encoded, pieces / 4);  // 120 different pieces at most
}

}  // namespace
}  // namespace ellm::format
