// What attention asks of memory while it computes. Pages are scattered: the CPU's own prefetchers begin anew in each.
// So while a page is computed another is asked for, some pages further on: behind a segment's last K follows its first
// V, behind its last V the next segment's K. How far on, and into which cache, is the level's
// (kernels/<level>/lanes.h).
#pragma once
#include "kernels/kv_block.h"
#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

constexpr uint32_t kMostAhead = 8;  // pages

/// Pages that are computed together, and asked for while those before them are: as many as fit L::kTogetherBytes.
template <class L>
ELLM_INLINE uint32_t pages_together(const AttentionArgs& args) {
  const size_t bytes = k_block_bytes(args.k_type, args.head_dim) + v_block_bytes(args.v_type, args.head_dim);
  uint32_t pages = kSegmentPages;
  while (pages > 1 && pages * bytes > L::kTogetherBytes) pages /= 2;
  return pages;
}

template <class L>
ELLM_INLINE void fetch_lines(const std::byte* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, L::kFetchLocality);
}

/// Asks for the scales of a block that ends at `end`.
template <class L>
ELLM_INLINE void fetch_scales(const std::byte* end, KvType type, uint32_t head_dim) {
  const size_t scales = kv_scale_bytes(type, head_dim);
  fetch_lines<L>(end - kv_rest_bytes(type, head_dim) - scales, scales);
}

/// What is asked for next: a block of K or of V, or nothing (null).
struct Wanted {
  const std::byte* block;
  bool key;
};
/// The page that is asked for while this one is computed. It may stand behind the last of the span.
ELLM_INLINE uint32_t page_ahead(const QueryBlock& b, uint32_t page) { return page + least_of(b.together, kMostAhead); }
/// While K of a page is computed.
ELLM_INLINE Wanted after_key(const QueryBlock& b, const Span& span, uint32_t page) {
  const uint32_t at = page_ahead(b, page);
  return at < span.to ? Wanted{span.k[at], true}
                      : Wanted{span.v[least_of(span.from + at - span.to, span.to - 1)], false};
}
/// While V of a page is computed.
ELLM_INLINE Wanted after_value(const QueryBlock& b, const Span& span, uint32_t page) {
  const uint32_t at = page_ahead(b, page);
  if (at < span.to) return {span.v[at], false};
  return {at - span.to < span.behind ? span.k[kSegmentPages + at - span.to] : nullptr, true};
}

/// Asks for the ends of a block: of the blocks of some pages side by side, before they are asked for line by line. A
/// first touch of each page in its turn held up what came behind it (perf: 9 % of a decode of int8 on a Zen 3).
template <class L>
ELLM_INLINE void fetch_ends(const AttentionArgs& args, Wanted wanted) {
  if (!wanted.block) return;
  const KvType type = wanted.key ? args.k_type : args.v_type;
  const size_t bytes = wanted.key ? k_block_bytes(type, args.head_dim) : v_block_bytes(type, args.head_dim);
  fetch_lines<L>(wanted.block, 64);
  if (is_quantised(type)) {
    fetch_scales<L>(wanted.block + bytes, type, args.head_dim);
  } else {
    fetch_lines<L>(wanted.block + bytes - 64, 64);
  }
}

/// The pages of a span that are computed together from `page` on end here.
ELLM_INLINE uint32_t together_end(const QueryBlock& b, const Span& span, uint32_t page) {
  return least_of(page + b.together, span.to);
}

/// Before K of pages together, and V of them.
template <class L>
ELLM_INLINE void fetch_around_keys(const QueryBlock& b, const Span& span, uint32_t page) {
  const uint32_t end = together_end(b, span, page);
  for (uint32_t p = page; p < end; ++p) fetch_ends<L>(b.args, after_key(b, span, p));
  if (!is_quantised(b.args.v_type)) return;
  for (uint32_t p = page; p < end; ++p) {  // softmax wants the values' scales first
    fetch_scales<L>(span.v[p] + v_block_bytes(b.args.v_type, b.args.head_dim), b.args.v_type, b.args.head_dim);
  }
}
template <class L>
ELLM_INLINE void fetch_around_values(const QueryBlock& b, const Span& span, uint32_t page) {
  for (uint32_t p = page, end = together_end(b, span, page); p < end; ++p)
    fetch_ends<L>(b.args, after_value(b, span, p));
}

/// What a tile of queries asks for while it works: another block, at the offsets that it reads of its own. The tiles
/// that read a block take turns, so that memory has work in all of the time that the block takes: tile `turn` of
/// `tiles` (a power of two) has every group of which this is the rest.
template <class L>
struct Ahead {
  const std::byte* block;  // null: nothing
  uint32_t turn, tiles;

  ELLM_INLINE void fetch(size_t group, size_t offset, size_t lines) const {
    if (block && (group & (tiles - 1)) == turn) fetch_lines<L>(block + offset, lines * 64);
  }
};
/// What the tile that begins with query i asks for, of those of `queries`.
template <class L>
ELLM_INLINE Ahead<L> tile_ahead(const std::byte* block, QueryRange queries, uint32_t i) {
  return {block, (i - queries.from) / L::kWordQueries, queries.to - queries.from > L::kWordQueries ? 2u : 1u};
}

}  // namespace
}  // namespace ellm::kernels
