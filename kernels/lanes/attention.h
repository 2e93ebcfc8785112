// Attention over paged KV with an online softmax, once for all levels (the arithmetic: HACKING.md, "The fixed-order
// rule"). Pure; any thread; about 200 KB of stack.
//
// The rows of a chunk and the query heads of its KV head are stacked: query i is head i % group of row i / group. A block
// of stacked queries goes through the pages together, so that a page is read (and converted) once per block; within a
// block, register tiles of L::kQueries queries. Positions ascend with i: in the pages where a chunk ends, the first
// queries of a block see fewer tokens than the last, or none, and then leave the page without a trace; so do the last
// where a window begins. Each query executes the operations of a decode step at its position, whatever stands beside it
// in its block.
#pragma once
#include <string.h>

#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/attention_codes.h"
#include "kernels/lanes/attention_tiles.h"
#include "kernels/lanes/exp.h"

namespace ellm::kernels {
namespace {

/// Copies a block's queries, the queries of a tile side by side.
template <class L>
void copy_queries(const QueryBlock& b, AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  for (uint32_t tile = 0; tile < b.count; tile += L::kQueries) {
    const uint32_t n = tile_queries<L>(tile, b.count);
    float* q = s.q + tile * head_dim;
    for (uint32_t i = 0; i < n; ++i) {
      const float* from = b.query(tile + i);
      for (uint32_t d = 0; d < head_dim; ++d) q[d * n + i] = from[d];
    }
  }
}

template <class L>
void load_queries(const QueryBlock& b, AttentionScratch<L>& s) {
  if (is_quantised(b.args.k_type)) {
    code_queries(b, s);
  } else {
    copy_queries(b, s);
  }
  if (b.count > 1) {                      // softmax works on 16 queries at a time, some of which do not exist
    const uint32_t missing = (b.count + 15) / 16 * 16 - b.count;
    memset(s.scores + b.count * kPageTokens, 0, missing * kPageTokens * sizeof(float));
    memset(s.sums, 0, sizeof s.sums);
  }
}

template <class L, class Keys>
ELLM_INLINE void score_tiles(const QueryBlock& b, const Keys& keys, QueryRange range, AttentionScratch<L>& s) {
  for (uint32_t i = range.from; i < range.to; i += L::kQueries) {
    score_tile<L>(tile_queries<L>(i, b.count), keys, s.q + i * b.args.head_dim, b.args.head_dim, b.args.scale,
                  s.scores + i * kPageTokens);
  }
}

template <class L, class Keys>
ELLM_INLINE FloatKeys<L> convert_keys(const Keys& keys, uint32_t head_dim, float* to) {
  for (uint32_t d = 0; d < head_dim; d += 4) {      // K blocks are padded to multiples of 4
    keys.fetch(d);
    unrolled<4>([&](auto j) ELLM_INLINE_LAMBDA {
      keys.template at<j.value>(d, 0).store(to + (d + j) * kPageTokens);
      keys.template at<j.value>(d, 1).store(to + (d + j) * kPageTokens + 16);
    });
  }
  return {to};
}

/// Scores of a page for the tiles of `range`. Where several tiles share a page of halves it is converted once.
template <class L>
void score_page(const QueryBlock& b, uint32_t page, QueryRange range, AttentionScratch<L>& s) {
  if (is_quantised(b.args.k_type)) return score_codes<L>(b, page, range, s);
  const std::byte *block = b.args.k_blocks[page], *next = b.next_page(b.args.k_blocks, page);
  if (b.args.k_type == KvType::f32) return score_tiles<L>(b, FloatKeys<L>{reinterpret_cast<const float*>(block)}, range, s);
  const HalfKeys<L> keys{reinterpret_cast<const uint16_t*>(block), reinterpret_cast<const uint16_t*>(next)};
  if (range.to - range.from > L::kQueries) {
    score_tiles<L>(b, convert_keys<L>(keys, b.args.head_dim, s.keys), range, s);
  } else {
    score_tiles<L>(b, keys, range, s);
  }
}

/// Caps the scores of a page. (Unwritten slots may hold anything: they are masked later.)
template <class L>
void cap_scores(QueryRange range, float cap, AttentionScratch<L>& s) {
  for (float* at = s.scores + range.from * kPageTokens; at < s.scores + range.to * kPageTokens; at += 16) {
    soft_cap_lanes(L::load(at), cap).store(at);
  }
}

/// Scores become probabilities for queries [g, g + 16) of the block; maximum, sum and decay follow. kPartly: some queries
/// do not see the whole page.
template <class L, bool kPartly>
ELLM_INLINE void soften_group(uint32_t g, uint32_t n, bool first_page, SoftmaxState& state, AttentionScratch<L>& s) {
  float* scores = s.scores + g * kPageTokens;
  const uint32_t *begin = s.begin + g, *end = s.end + g;
  // The 32 values of query i, those that it does not see replaced by `other`.
  const auto mask = [&](uint32_t i, L& low, L& high, L other) ELLM_INLINE_LAMBDA {
    low = keep_first(low, end[i], other);
    high = keep_first(high, end[i] > 16 ? end[i] - 16 : 0, other);
    if (begin[i] == 0) return;
    low = keep_first(other, begin[i], low);
    high = keep_first(other, begin[i] > 16 ? begin[i] - 16 : 0, high);
  };
  const L zero = L::broadcast(0.0f);
  if constexpr (kPartly) {
    const L hidden = L::broadcast(-__builtin_inff());
    for (uint32_t i = 0; i < n; ++i) {
      float* row = scores + i * kPageTokens;
      L low = L::load(row), high = L::load(row + 16);
      mask(i, low, high, hidden);
      low.store(row);
      high.store(row + 16);
    }
  }
  const L old_largest = L::load(state.largest + g), old_sum = L::load(state.sum + g);
  const L page_largest = fold_queries<L, typename L::Max>(n, [&](auto i) ELLM_INLINE_LAMBDA {
    return max(L::load(scores + i * kPageTokens), L::load(scores + i * kPageTokens + 16));
  });
  L largest = max(old_largest, page_largest);
  const L decay = first_page ? zero : exp_falling(sub(old_largest, largest));
  L seen = zero;                      // 1 for the queries that see anything of the page
  if constexpr (kPartly) {
    float flags[16] = {};
    for (uint32_t i = 0; i < n; ++i) flags[i] = begin[i] < end[i] ? 1.0f : 0.0f;
    seen = L::load(flags);
    largest = select_less(zero, seen, largest, old_largest);
  }
  largest.store(state.largest + g);
  decay.store(s.decay + g);

  for (uint32_t i = 0; i < n; ++i) {
    float* row = scores + i * kPageTokens;
    const L m = L::broadcast(state.largest[g + i]);
    L low = exp_falling(sub(L::load(row), m)), high = exp_falling(sub(L::load(row + 16), m));
    if constexpr (kPartly) mask(i, low, high, zero);
    add(low, high).store(s.sums + i * 16);
    low.store(row);
    high.store(row + 16);
  }
  const L page_sum = fold_queries<L, typename L::Sum>(n, [&](auto i) ELLM_INLINE_LAMBDA { return L::load(s.sums + i * 16); });
  L sum = fma(old_sum, decay, page_sum);
  if constexpr (kPartly) sum = select_less(zero, seen, sum, old_sum);
  sum.store(state.sum + g);
}

template <class L, bool kPartly>
void soften(QueryRange range, uint32_t count, bool first_page, SoftmaxState& state, AttentionScratch<L>& s) {
  for (uint32_t g = range.from / 16 * 16; g < range.to; g += 16) {
    soften_group<L, kPartly>(g, count - g < 16 ? count - g : 16, first_page, state, s);
  }
}

/// Of a page that queries see in part. Tokens that all queries of a tile see are added to all of them at once, where they
/// begin at the same token; each query adds what is left alone.
template <class L, class Values>
ELLM_INLINE void weigh_tile_partly(uint32_t n, const Values& values, const uint32_t* begin, const uint32_t* end,
                                   const float* p, const float* decay, float* acc, uint32_t stride) {
  static constexpr float kKept[1] = {1.0f};
  const bool together = begin[0] == begin[n - 1] && begin[0] < end[0];   // both ascend, but for queries past the page
  if (together) weigh_tile<L>(n, values, begin[0], end[0], p, decay, acc, stride);
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t from = together ? end[0] : begin[k];
    if (from >= end[k]) continue;
    weigh_tile<L>(1, values, from, end[k], p + k * kPageTokens, together ? kKept : decay + k, acc + k * stride, stride);
  }
}

template <class L, class Values>
ELLM_INLINE void weigh_tiles(const QueryBlock& b, const Values& values, QueryRange range, bool partly, SoftmaxState& state,
                             AttentionScratch<L>& s) {
  for (uint32_t i = range.from; i < range.to; i += L::kQueries) {
    const uint32_t n = tile_queries<L>(i, b.count);
    const float* p = s.scores + i * kPageTokens;
    float* acc = state.values + i * b.stride;
    if (partly) {
      weigh_tile_partly<L>(n, values, s.begin + i, s.end + i, p, s.decay + i, acc, b.stride);
    } else {
      weigh_tile<L>(n, values, 0, kPageTokens, p, s.decay + i, acc, b.stride);
    }
  }
}

template <class L, class Values>
ELLM_INLINE FloatValues<L> convert_values(const Values& values, uint32_t tokens, uint32_t stride, float* to) {
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t d = 0; d < stride; d += 16) {
      values.fetch(t, d);
      values.at(t, d).store(to + t * stride + d);
    }
  }
  return {to, stride};
}

/// Adds a page's values. `tokens`: how many of them any query sees; those behind are not read.
template <class L>
void weigh_page(const QueryBlock& b, uint32_t page, uint32_t tokens, QueryRange range, bool partly, SoftmaxState& state,
                AttentionScratch<L>& s) {
  if (is_quantised(b.args.v_type)) return weigh_codes<L>(b, page, range, partly, state, s);
  const std::byte *block = b.args.v_blocks[page], *next = b.next_page(b.args.v_blocks, page);
  if (b.args.v_type == KvType::f32) {
    return weigh_tiles<L>(b, FloatValues<L>{reinterpret_cast<const float*>(block), b.stride}, range, partly, state, s);
  }
  const HalfValues<L> values{reinterpret_cast<const uint16_t*>(block), reinterpret_cast<const uint16_t*>(next), b.stride};
  if (range.to - range.from > L::kQueries) {
    weigh_tiles<L>(b, convert_values<L>(values, tokens, b.stride, s.page_values), range, partly, state, s);
  } else {
    weigh_tiles<L>(b, values, range, partly, state, s);
  }
}

/// Which tokens of the page that begins at `start` each query sees, and the tiles with queries that see any.
template <class L>
ELLM_INLINE QueryRange find_visible(const QueryBlock& b, uint32_t start, AttentionScratch<L>& s) {
  uint32_t from = 0, to = 0;
  for (uint32_t i = 0; i < b.count; ++i) {
    const uint32_t end = b.position(i) + 1, first = b.window_begin(end - 1);
    s.begin[i] = first <= start ? 0 : first - start;
    s.end[i] = end <= start ? 0 : end - start < kPageTokens ? end - start : kPageTokens;
    if (s.begin[i] < s.end[i]) {
      to = i + 1;
    } else {
      s.begin[i] = s.end[i] = 0;
      if (to == 0) from = i + 1;
    }
  }
  to = (to + L::kQueries - 1) / L::kQueries * L::kQueries;
  return {from / L::kQueries * L::kQueries, to < b.count ? to : b.count};
}

/// Begins `state` anew and takes it through the pages of a segment, for the queries that see any of it.
template <class L>
void run_segment(const QueryBlock& b, uint32_t segment, SoftmaxState& state, AttentionScratch<L>& s) {
  const L zero = L::broadcast(0.0f), lowest = L::broadcast(-__builtin_inff());
  for (uint32_t i = 0; i < kMaxBlockQueries; i += 16) {
    lowest.store(state.largest + i);
    zero.store(state.sum + i);
  }
  for (uint32_t i = 0; i < b.count * b.stride; i += 16) zero.store(state.values + i);

  const uint32_t end_page = (segment + 1) * (kAttentionSegment / kPageTokens);
  const uint32_t least = b.position(0), most = b.position(b.count - 1);
  const uint32_t window_page = b.window_begin(least) / kPageTokens, last_begin = b.window_begin(most);
  uint32_t page = segment * (kAttentionSegment / kPageTokens);
  if (page < window_page) page = window_page;
  for (bool first_page = true; page < end_page; ++page, first_page = false) {
    const uint32_t start = page * kPageTokens;
    if (start > most) return;
    const bool partly = least < start + kPageTokens - 1 || start < last_begin;
    QueryRange range{0, b.count};
    if (partly) range = find_visible<L>(b, start, s);
    score_page<L>(b, page, range, s);
    if (b.args.soft_cap != 0) cap_scores<L>(range, b.args.soft_cap, s);
    if (partly) {
      soften<L, true>(range, b.count, first_page, state, s);
    } else {
      soften<L, false>(range, b.count, first_page, state, s);
    }
    const uint32_t tokens = most + 1 - start < kPageTokens ? most + 1 - start : kPageTokens;
    weigh_page<L>(b, page, tokens, range, partly, state, s);
  }
}

/// The queries that see tokens of a segment: [from, taken) have seen earlier ones, [taken, to) have not.
struct SegmentQueries {
  uint32_t from, taken, to;
};
ELLM_INLINE SegmentQueries segment_queries(const QueryBlock& b, uint32_t segment) {
  const uint32_t start = segment * kAttentionSegment;
  const uint32_t from = b.first_at(start), taken = b.first_blind(start), to = b.first_blind(start + kAttentionSegment);
  return {from, taken < from ? from : taken, to};
}

/// Merges a segment's result into `total`, which takes it as it is for queries that have seen nothing before.
template <class L>
void merge_segment(SegmentQueries queries, const SoftmaxState& segment, uint32_t stride, SoftmaxState& total,
                   AttentionScratch<L>& s) {
  for (uint32_t g = queries.from / 16 * 16; g < queries.taken; g += 16) {
    const L old = L::load(total.largest + g), added = L::load(segment.largest + g), now = max(old, added);
    const L old_decay = exp_falling(sub(old, now)), added_decay = exp_falling(sub(added, now));
    const L merged = fma(L::load(segment.sum + g), added_decay, mul(L::load(total.sum + g), old_decay));
    float now_of[16], merged_of[16], added_decay_of[16];
    now.store(now_of);
    merged.store(merged_of);
    old_decay.store(s.decay + g);
    added_decay.store(added_decay_of);
    for (uint32_t i = queries.from > g ? queries.from : g; i < queries.taken && i < g + 16; ++i) {
      total.largest[i] = now_of[i - g];
      total.sum[i] = merged_of[i - g];
      const L keep = L::broadcast(s.decay[i]), take = L::broadcast(added_decay_of[i - g]);
      const float* from = segment.values + i * stride;
      float* to = total.values + i * stride;
      for (uint32_t d = 0; d < stride; d += 16) fma(L::load(from + d), take, mul(L::load(to + d), keep)).store(to + d);
    }
  }
  for (uint32_t i = queries.taken; i < queries.to; ++i) {
    total.largest[i] = segment.largest[i];
    total.sum[i] = segment.sum[i];
    memcpy(total.values + i * stride, segment.values + i * stride, stride * sizeof(float));
  }
}

/// out = values / sum.
template <class L>
void write_output(const QueryBlock& b, const SoftmaxState& total) {
  const uint32_t head_dim = b.args.head_dim;
  for (uint32_t i = 0; i < b.count; ++i) {
    const L sum = L::broadcast(total.sum[i]);
    for (uint32_t d = 0; d < head_dim; d += 16) {
      div(L::load(total.values + i * b.stride + d), sum).store_first(b.output(i) + d, head_dim - d < 16 ? head_dim - d : 16);
    }
  }
}

/// Calls f(block) for the blocks of queries [first, last) of the stack.
template <class L, class F>
ELLM_INLINE void for_blocks(const AttentionArgs& args, uint32_t first, uint32_t last, F f) {
  const uint32_t most = block_queries<L>(args.head_dim), stride = padded_head_dim(args.head_dim);
  for (; first < last; first += most) f(QueryBlock{args, first, last - first < most ? last - first : most, stride});
}

template <class L>
ELLM_INLINE void attend(const AttentionArgs& args) {
  AttentionScratch<L> s;
  for_blocks<L>(args, 0, args.rows * args.group, [&](const QueryBlock& b) {
    load_queries<L>(b, s);
    const uint32_t first = b.window_begin(b.position(0)) / kAttentionSegment;
    const uint32_t last = b.position(b.count - 1) / kAttentionSegment;
    run_segment<L>(b, first, s.total, s);
    for (uint32_t segment = first + 1; segment <= last; ++segment) {
      run_segment<L>(b, segment, s.segment, s);
      merge_segment<L>(segment_queries(b, segment), s.segment, b.stride, s.total, s);
    }
    write_output<L>(b, s.total);
  });
}

// A partial result: largest, sum, 14 floats that are not written, then `stride` values.

template <class L>
ELLM_INLINE void attend_segment(const AttentionArgs& args, uint32_t segment, uint32_t segments, float* partials) {
  AttentionScratch<L> s;
  for_blocks<L>(args, 0, args.rows * args.group, [&](const QueryBlock& b) {
    const SegmentQueries queries = segment_queries(b, segment);
    if (queries.from >= queries.to) return;
    load_queries<L>(b, s);
    run_segment<L>(b, segment, s.total, s);
    for (uint32_t i = queries.from; i < queries.to; ++i) {
      float* to = partials + (static_cast<size_t>(b.first + i) * segments + segment) * (16 + b.stride);
      to[0] = s.total.largest[i];
      to[1] = s.total.sum[i];
      memcpy(to + 16, s.total.values + i * b.stride, b.stride * sizeof(float));
    }
  });
}

template <class L>
ELLM_INLINE void merge_partials(const AttentionArgs& args, uint32_t first_row, uint32_t last_row, uint32_t segments,
                                const float* partials) {
  AttentionScratch<L> s;
  for_blocks<L>(args, first_row * args.group, last_row * args.group, [&](const QueryBlock& b) {
    for (uint32_t i = 0; i < kMaxBlockQueries; ++i) s.total.largest[i] = s.total.sum[i] = 0;
    for (uint32_t segment = 0; segment < segments; ++segment) {
      const SegmentQueries queries = segment_queries(b, segment);
      for (uint32_t i = 0; i < kMaxBlockQueries; ++i) s.segment.largest[i] = s.segment.sum[i] = 0;
      for (uint32_t i = queries.from; i < queries.to; ++i) {
        const float* p = partials + (static_cast<size_t>(b.first + i) * segments + segment) * (16 + b.stride);
        s.segment.largest[i] = p[0];
        s.segment.sum[i] = p[1];
        memcpy(s.segment.values + i * b.stride, p + 16, b.stride * sizeof(float));
      }
      merge_segment<L>(queries, s.segment, b.stride, s.total, s);
    }
    write_output<L>(b, s.total);
  });
}

}  // namespace
}  // namespace ellm::kernels
