// Byte-pair merging, the loop that both kinds of BPE share: of all neighbouring symbols the pair of the lowest rank
// (the leftmost of equals) becomes one, until none can. Short pieces by scanning, long ones with a heap: O(n log n).
// The caller owns the workspace, one per call of encode.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "daemon/format/text_hash.h"
#include "daemon/format/vocabulary.h"

namespace ellm::format {

inline constexpr uint32_t kNoMerge = UINT32_MAX;

struct Symbol {
  uint32_t begin, end;  // in the piece
  TokenId id;           // kNoToken: bytes without a token of their own
};

struct Merge {
  uint32_t rank = kNoMerge;  // lower goes first
  TokenId id = kNoToken;     // the result
};

struct MergeWorkspace {
  std::vector<Symbol> symbols;
  std::vector<Merge> merges;  // of symbol i with its right neighbour
  std::vector<uint32_t> previous, next;
  std::vector<uint64_t> heap;  // rank << 32 | position
};

namespace detail {

inline constexpr size_t kShortPiece = 40;

template <class Find>
void merge_short(std::vector<Symbol>& symbols, const Find& find) {
  Merge merges[kShortPiece];
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == kNoMerge) break;
    symbols[best].end = symbols[best + 1].end;
    symbols[best].id = merges[best].id;
    std::copy(symbols.begin() + static_cast<ptrdiff_t>(best) + 2, symbols.begin() + static_cast<ptrdiff_t>(n),
              symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    if (best + 2 < n) std::copy(merges + best + 2, merges + n - 1, merges + best + 1);
    --n;
    if (best + 1 < n) merges[best] = find(symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
  }
  symbols.resize(n);
}

template <class Find>
void merge_long(MergeWorkspace& work, const Find& find) {
  auto& [symbols, merges, previous, next, heap] = work;
  const auto n = static_cast<uint32_t>(symbols.size());
  merges.assign(n, Merge{});
  previous.resize(n);
  next.resize(n);
  heap.clear();
  const auto consider = [&](uint32_t left, uint32_t right) {
    merges[left] = find(symbols[left], symbols[right]);
    return static_cast<uint64_t>(merges[left].rank) << 32 | left;
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;  // wraps at 0: never followed
    next[i] = i + 1;
    if (i + 1 == n) break;
    const uint64_t entry = consider(i, i + 1);
    if (merges[i].rank != kNoMerge) heap.push_back(entry);
  }
  std::ranges::make_heap(heap, std::greater{});
  const auto push = [&](uint32_t left, uint32_t right) {
    const uint64_t entry = consider(left, right);
    if (merges[left].rank == kNoMerge) return;
    heap.push_back(entry);
    std::ranges::push_heap(heap, std::greater{});
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater{});
    const auto left = static_cast<uint32_t>(heap.back());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (merges[left].rank != rank) continue;  // stale: that pair has changed since
    const uint32_t right = next[left];
    symbols[left].end = symbols[right].end;
    symbols[left].id = merges[left].id;
    next[left] = next[right];
    merges[right].rank = kNoMerge;
    merges[left].rank = kNoMerge;
    if (next[left] < n) {
      previous[next[left]] = left;
      push(left, next[left]);
    }
    if (left > 0) push(previous[left], left);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < n; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace detail

/// Merges work.symbols in place. `find(left, right)` gives the merge of two neighbours.
template <class Find>
void merge_symbols(MergeWorkspace& work, const Find& find) {
  if (work.symbols.size() <= detail::kShortPiece) {
    detail::merge_short(work.symbols, find);
  } else {
    detail::merge_long(work, find);
  }
}

/// Remembers, during one call of encode, where the ids of a piece stand in the output, so that a frequent word is
/// merged once. Direct-mapped: a collision only costs a merge, whoever chose the text.
class PieceCache {
 public:
  explicit PieceCache(size_t text_bytes) {
    if (text_bytes >= 256) slots_.resize(std::bit_ceil(std::clamp<size_t>(text_bytes / 16, 64, 32768)));
  }

  /// Appends the ids of `piece`: a copy, or what `encode()` appends. The piece's bytes must live as long as the cache.
  template <class Encode>
  void encode(std::string_view piece, std::vector<TokenId>& out, const Encode& encode) {
    if (slots_.empty() || piece.size() > 128) return encode();
    Slot& slot = slots_[text_hash(piece) & (slots_.size() - 1)];
    const size_t at = out.size();
    if (slot.length == piece.size() && std::memcmp(slot.text, piece.data(), piece.size()) == 0) {
      out.resize(at + slot.count);
      std::copy_n(out.data() + slot.at, slot.count, out.data() + at);
      return;
    }
    encode();
    slot = {piece.data(), static_cast<uint32_t>(at), static_cast<uint16_t>(piece.size()),
            static_cast<uint16_t>(out.size() - at)};
  }

 private:
  struct Slot {
    const char* text;
    uint32_t at;                 // in the output
    uint16_t length = 0, count;  // of the text, of the ids
  };
  std::vector<Slot> slots_;
};

}  // namespace ellm::format
