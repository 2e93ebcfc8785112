// Attention over paged KV, once for all levels (the arithmetic: HACKING.md, "The fixed-order rule"). Pure; any
// thread; about 500 KB of stack.
//
// The rows of a chunk and the query heads of its KV head are stacked: query i is head i % group of row i / group. A
// block of stacked queries goes through the pages of a segment together, first K, then V, so that a page is read (and
// converted) once per block; within a block, register tiles of queries. Between the two each query has its softmax
// over the whole segment, alone: it executes the operations of a decode step at its position, whatever stands beside
// it. Rows of other sequences may stand in the block, too (attention_partial): where they share a page, it is read
// once for all of them.
#pragma once
#include <string.h>

#include "kernels/lanes/attention_ahead.h"
#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/attention_codes.h"
#include "kernels/lanes/attention_first.h"
#include "kernels/lanes/attention_softmax.h"
#include "kernels/lanes/attention_tiles.h"
#include "kernels/lanes/exp.h"

namespace ellm::kernels {
namespace {

template <class L>
void load_queries(const QueryBlock& b, AttentionScratch<L>& s) {
  for (uint32_t i = 0; i < b.count; ++i) {
    s.position[i] = b.position(i);
    s.taken[i] = false;
  }
  if (is_quantised(b.args.k_type)) return code_queries(b, s);
  for (uint32_t i = 0; i < b.count; ++i) memcpy(s.q + i * kQueryStride, b.query(i), b.args.head_dim * sizeof(float));
}

// ---- scores ---------------------------------------------------------------------------------------------------------

template <class L, class Keys>
ELLM_INLINE void score_tiles(const QueryBlock& b, const Keys& keys, uint32_t page, QueryRange range,
                             AttentionScratch<L>& s) {
  for (uint32_t i = range.from; i < range.to; i += L::kQueries) {
    score_tile<L>(least_of(range.to - i, L::kQueries), keys, s.q + i * kQueryStride, b.args.head_dim, b.args.scale,
                  s.scores_of(i) + page * kPageTokens);
  }
}

template <class L, class Keys>
ELLM_INLINE FloatKeys<L> convert_keys(const Keys& keys, uint32_t head_dim, float* to) {
  for (uint32_t d = 0; d < head_dim; d += 4) {  // K blocks are padded to multiples of 4
    keys.fetch(d);
    unrolled<4>([&](auto j) ELLM_INLINE_LAMBDA {
      keys.template at<j.value>(d, 0).store(to + (d + j) * kPageTokens);
      keys.template at<j.value>(d, 1).store(to + (d + j) * kPageTokens + 16);
    });
  }
  return {to};
}

/// Scores of a page. Where several tiles share a page of halves it is converted once.
template <class L>
void score_page(const QueryBlock& b, const Span& span, uint32_t page, QueryRange range, AttentionScratch<L>& s) {
  const std::byte *block = span.k[page], *next = span.first ? after_key(b, span, page).block : nullptr;
  if (is_quantised(b.args.k_type)) return score_codes<L>(b, block, next, page, range, s);
  if (b.args.k_type == KvType::f32)
    return score_tiles<L>(b, FloatKeys<L>{reinterpret_cast<const float*>(block)}, page, range, s);
  const HalfKeys<L> keys{reinterpret_cast<const uint16_t*>(block), reinterpret_cast<const uint16_t*>(next)};
  if (range.to - range.from > L::kQueries) {
    score_tiles<L>(b, convert_keys<L>(keys, b.args.head_dim, s.keys), page, range, s);
  } else {
    score_tiles<L>(b, keys, page, range, s);
  }
}

template <class L>
void score_segment(const QueryBlock& b, SegmentPages pages, AttentionScratch<L>& s) {
  for_spans(b, pages, [&](const Span& span) ELLM_INLINE_LAMBDA {
    for (uint32_t page = span.from; page < span.to; ++page) {
      if (span.first && (page - span.from) % b.together == 0) fetch_around_keys<L>(b, span, page);
      const QueryRange range = pages.whole ? span.queries : seeing(span.queries, page, s);
      if (range.from < range.to) score_page<L>(b, span, page, range, s);
    }
  });
}

// ---- values ---------------------------------------------------------------------------------------------------------

/// A tile's queries and a page that some of them see in part: what all see goes to all of them at once, the rest to
/// each alone.
template <class L, class Values>
ELLM_INLINE void weigh_tile_partly(uint32_t n, const Values& values, uint32_t page, const uint32_t* begin,
                                   const uint32_t* end, const float* p, float* acc, uint32_t stride) {
  uint32_t from = 0, to = kPageTokens;
  for (uint32_t k = 0; k < n; ++k) {
    const TokenRange t = tokens_of_page(begin[k], end[k], page);
    from = t.from > from ? t.from : from;
    to = least_of(t.to, to);
  }
  const auto alone = [&](uint32_t k, uint32_t first, uint32_t last) ELLM_INLINE_LAMBDA {
    if (first < last) weigh_tile<L>(1, values, first, last, p + k * kAttentionSegment, acc + k * stride, stride);
  };
  const bool together = from < to;
  for (uint32_t k = 0; k < n; ++k) {
    const TokenRange t = tokens_of_page(begin[k], end[k], page);
    alone(k, t.from, together ? from : t.to);
  }
  if (!together) return;
  weigh_tile<L>(n, values, from, to, p, acc, stride);
  for (uint32_t k = 0; k < n; ++k) alone(k, to, tokens_of_page(begin[k], end[k], page).to);
}

template <class L, class Values>
ELLM_INLINE void weigh_tiles(const QueryBlock& b, const Values& values, uint32_t page, QueryRange range, bool whole,
                             SoftmaxState& state, AttentionScratch<L>& s) {
  for (uint32_t i = range.from; i < range.to; i += L::kQueries) {
    const uint32_t n = least_of(range.to - i, L::kQueries);
    const float* p = s.scores_of(i) + page * kPageTokens;
    float* acc = state.values + i * b.stride;
    if (whole) {
      weigh_tile<L>(n, values, 0, kPageTokens, p, acc, b.stride);
    } else {
      weigh_tile_partly<L>(n, values, page, s.begin + i, s.end + i, p, acc, b.stride);
    }
  }
}

template <class L, class Values>
ELLM_INLINE FloatValues<L> convert_values(const Values& values, uint32_t stride, float* to) {
  for (uint32_t t = 0; t < kPageTokens; ++t) {
    for (uint32_t d = 0; d < stride; d += 16) {
      values.fetch(t, d);
      values.at(t, d).store(to + t * stride + d);
    }
  }
  return {to, stride};
}

/// Adds a page's values of f16 or f32.
template <class L>
void weigh_page(const QueryBlock& b, const Span& span, uint32_t page, QueryRange range, bool whole, SoftmaxState& state,
                AttentionScratch<L>& s) {
  const std::byte *block = span.v[page], *next = after_value(b, span, page).block;
  if (b.args.v_type == KvType::f32) {
    return weigh_tiles<L>(b, FloatValues<L>{reinterpret_cast<const float*>(block), b.stride}, page, range, whole, state,
                          s);
  }
  const HalfValues<L> values{reinterpret_cast<const uint16_t*>(block),
                             reinterpret_cast<const uint16_t*>(next ? next : block), b.stride};
  if (range.to - range.from > L::kQueries) {
    weigh_tiles<L>(b, convert_values<L>(values, b.stride, s.page_values), page, range, whole, state, s);
  } else {
    weigh_tiles<L>(b, values, page, range, whole, state, s);
  }
}

template <class L>
void weigh_floats(const QueryBlock& b, SegmentPages pages, SoftmaxState& state, AttentionScratch<L>& s) {
  memset(state.values, 0, b.count * b.stride * sizeof(float));
  for_spans(b, pages, [&](const Span& span) ELLM_INLINE_LAMBDA {
    for (uint32_t page = span.from; page < span.to; ++page) {
      if (span.first && (page - span.from) % b.together == 0) fetch_around_values<L>(b, span, page);
      const QueryRange range = pages.whole ? span.queries : seeing(span.queries, page, s);
      if (range.from < range.to) weigh_page<L>(b, span, page, range, pages.whole, state, s);
    }
  });
}

/// Calls f(i, n, from, to, ahead) for the tiles of a span's queries, pages together by pages together, with those of
/// them that any of the tile sees; ahead(page): what to ask for meanwhile.
template <class L, class F>
ELLM_INLINE void for_coded_tiles(const QueryBlock& b, const Span& span, const AttentionScratch<L>& s, F f) {
  for (uint32_t first = span.from; first < span.to; first += b.together) {
    const uint32_t last = together_end(b, span, first);
    if (span.first) fetch_around_values<L>(b, span, first);
    for (uint32_t i = span.queries.from; i < span.queries.to; i += L::kWordQueries) {
      const uint32_t n = least_of(span.queries.to - i, L::kWordQueries);
      uint32_t from = last, to = first;
      for (uint32_t k = i; k < i + n; ++k) {
        if (s.begin[k] == s.end[k]) continue;
        from = least_of(from, s.begin[k] / kPageTokens);
        const uint32_t end = (s.end[k] + kPageTokens - 1) / kPageTokens;
        to = end > to ? end : to;
      }
      if (from < first) from = first;
      if (to > last) to = last;
      if (from >= to) continue;
      f(i, n, from, to, [&](uint32_t page) ELLM_INLINE_LAMBDA {
        return tile_ahead<L>(span.first ? after_value(b, span, page).block : nullptr, span.queries, i);
      });
    }
  }
}

template <class L>
void weigh_int8(const QueryBlock& b, SegmentPages pages, SoftmaxState& state, AttentionScratch<L>& s) {
  const auto [first, last] = pages.queries;
  memset(s.weighed, 0, (last - first) * b.stride * sizeof(int32_t));
  for (uint32_t i = first; i < last; ++i) clear_codes(i, pages.from, pages.to, s);
  for_spans(b, pages, [&](const Span& span) ELLM_INLINE_LAMBDA {
    for_coded_tiles(b, span, s, [&](uint32_t i, uint32_t n, uint32_t from, uint32_t to, auto ahead) ELLM_INLINE_LAMBDA {
      weigh_int8_tile<L>(
          n, {s.codes_of(i), s.weighed + (i - first) * b.stride, b.stride}, from, to,
          [&](uint32_t page) ELLM_INLINE_LAMBDA { return span.v[page]; }, ahead);
    });
  });
  for (uint32_t i = first; i < last; ++i) {
    const L scale = L::broadcast(s.weight_scales[i]);
    const int32_t* sums = s.weighed + (i - first) * b.stride;
    for (uint32_t d = 0; d < b.stride; d += 16) {
      mul(L::from_ints(L::load_ints(sums + d)), scale).store(state.values + i * b.stride + d);
    }
  }
}

template <class L>
void weigh_int4(const QueryBlock& b, SegmentPages pages, SoftmaxState& state, AttentionScratch<L>& s) {
  const uint32_t blocks = kv_blocks(b.args.head_dim);
  const auto [first, last] = pages.queries;
  for (uint32_t kv_block = 0; kv_block < blocks; ++kv_block) {
    memset(s.weighed, 0, (last - first) * kKvBlock * sizeof(int32_t));
    for (uint32_t i = first; i < last; ++i) {
      if (s.begin[i] < s.end[i]) code_int4_block(b, pages.segment, i, kv_block, s);
      clear_codes(i, pages.from, pages.to, s);
    }
    for_spans(b, pages, [&](const Span& span) ELLM_INLINE_LAMBDA {
      for_coded_tiles(b, span, s,
                      [&](uint32_t i, uint32_t n, uint32_t from, uint32_t to, auto ahead) ELLM_INLINE_LAMBDA {
                        weigh_int4_tile<L>(
                            n, {s.codes_of(i), s.weighed + (i - first) * kKvBlock, kKvBlock}, from, to,
                            [&](uint32_t page) ELLM_INLINE_LAMBDA { return span.v[page]; }, ahead, kv_block, blocks);
                      });
    });
    for (uint32_t i = first; i < last; ++i) {
      const L scale = L::broadcast(s.weight_scales[i]), least = L::broadcast(s.weight_least[i]);
      for (uint32_t d = 0; d < kKvBlock && kv_block * kKvBlock + d < b.stride; d += 16) {
        fma(L::from_ints(L::load_ints(s.weighed + (i - first) * kKvBlock + d)), scale, least)
            .store(state.values + i * b.stride + kv_block * kKvBlock + d);
      }
    }
  }
}

// ---- segments -------------------------------------------------------------------------------------------------------

/// Which tokens of a segment each query sees, and the pages that any sees.
template <class L>
ELLM_INLINE SegmentPages find_visible(const QueryBlock& b, uint32_t segment, AttentionScratch<L>& s) {
  const uint32_t start = segment * kAttentionSegment;
  SegmentPages pages{segment, kSegmentPages, 0, true, {0, b.count}};
  for (uint32_t i = 0; i < b.count; ++i) {
    const uint32_t end = s.position[i] + 1, begin = b.window_begin(s.position[i]);
    s.begin[i] = begin <= start ? 0 : least_of(begin - start, kAttentionSegment);
    s.end[i] = end <= start ? 0 : least_of(end - start, kAttentionSegment);
    if (s.begin[i] >= s.end[i]) s.begin[i] = s.end[i] = 0;
    if (s.begin[i] != 0 || s.end[i] != kAttentionSegment) pages.whole = false;
    if (s.begin[i] == s.end[i]) continue;
    pages.from = least_of(pages.from, s.begin[i] / kPageTokens);
    const uint32_t to = (s.end[i] + kPageTokens - 1) / kPageTokens;
    pages.to = to > pages.to ? to : pages.to;
  }
  return pages;
}

/// Softmax and values of one segment, for the queries that see any of it.
template <class L>
void run_segment(const QueryBlock& b, SegmentPages pages, SoftmaxState& state, AttentionScratch<L>& s) {
  const bool keys = is_quantised(b.args.k_type), values = is_quantised(b.args.v_type);
  if (b.args.key_mean && keys) offset_queries<L>(b, pages.segment, s);
  const uint32_t tile = keys && values ? kTileQueries : b.count;  // pages of halves are converted for all queries
  for (s.tile = 0; s.tile < b.count; s.tile += tile) {
    pages.queries = {s.tile, least_of(s.tile + tile, b.count)};
    if (b.args.key_mean && keys) weigh_pairs<L>(b, pages.queries, s);
    score_segment<L>(b, pages, s);
    if (pages.segment == 0 && keys) refine_first_key(b, pages.queries, s);
    for (uint32_t i = pages.queries.from; i < pages.queries.to; ++i) {
      if (s.begin[i] < s.end[i]) soften_query<L>(b, pages.segment, i, state, s);
    }
    if (b.args.v_type == KvType::int8) {
      weigh_int8<L>(b, pages, state, s);
    } else if (b.args.v_type == KvType::int4) {
      weigh_int4<L>(b, pages, state, s);
    } else {
      weigh_floats<L>(b, pages, state, s);
    }
    if (pages.segment == 0 && values) refine_first_value(b, pages.queries, state, s);
  }
}

/// Merges a segment's result of query i into `total`, which takes the first as it is.
template <class L>
ELLM_INLINE void merge_query(uint32_t i, float largest, float sum, const float* values, uint32_t stride,
                             SoftmaxState& total, AttentionScratch<L>& s) {
  float* to = total.values + i * stride;
  if (!s.taken[i]) {
    s.taken[i] = true;
    total.largest[i] = largest;
    total.sum[i] = sum;
    memcpy(to, values, stride * sizeof(float));
    return;
  }
  const L old = L::broadcast(total.largest[i]), added = L::broadcast(largest), now = max(old, added);
  const L keep = exp_falling(sub(old, now)), take = exp_falling(sub(added, now));
  total.largest[i] = now.first();
  total.sum[i] = fma(L::broadcast(sum), take, mul(L::broadcast(total.sum[i]), keep)).first();
  for (uint32_t d = 0; d < stride; d += 16) fma(L::load(values + d), take, mul(L::load(to + d), keep)).store(to + d);
}

/// out = values / sum.
template <class L>
void write_output(const QueryBlock& b, const SoftmaxState& total) {
  const uint32_t head_dim = b.args.head_dim;
  for (uint32_t i = 0; i < b.count; ++i) {
    const L sum = L::broadcast(total.sum[i]);
    for (uint32_t d = 0; d < head_dim; d += 16) {
      div(L::load(total.values + i * b.stride + d), sum)
          .store_first(b.output(i) + d, head_dim - d < 16 ? head_dim - d : 16);
    }
  }
}

/// Calls f(block) for the blocks of queries [first, last) of the stack.
template <class L, class F>
ELLM_INLINE void for_blocks(const AttentionArgs& args, uint32_t first, uint32_t last, F f) {
  const uint32_t most = block_queries<L>(args.head_dim), stride = padded_head_dim(args.head_dim);
  const uint32_t together = pages_together<L>(args);
  for (; first < last; first += most)
    f(QueryBlock{args, first, last - first < most ? last - first : most, stride, together});
}

template <class L>
ELLM_INLINE void attend(const AttentionArgs& args) {
  AttentionScratch<L> s;
  for_blocks<L>(args, 0, args.rows * args.group, [&](const QueryBlock& b) {
    load_queries<L>(b, s);
    const uint32_t first = b.window_begin(b.position(0)) / kAttentionSegment;
    const uint32_t last = b.position(b.count - 1) / kAttentionSegment;
    for (uint32_t segment = first; segment <= last; ++segment) {
      run_segment<L>(b, find_visible(b, segment, s), s.segment, s);
      for (uint32_t i = 0; i < b.count; ++i) {
        if (s.begin[i] == s.end[i]) continue;
        merge_query<L>(i, s.segment.largest[i], s.segment.sum[i], s.segment.values + i * b.stride, b.stride, s.total,
                       s);
      }
    }
    write_output<L>(b, s.total);
  });
}

// A partial result: largest, sum, 14 floats that are not written, then `stride` values.

ELLM_INLINE float* partial_of(const QueryBlock& b, uint32_t i, uint32_t segment, uint32_t segments, float* partials) {
  const size_t floats = 16 + b.stride;
  float* row =
      b.args.stack ? b.args.stack[b.row(i)].partials : partials + size_t{b.row(i)} * segments * b.args.group * floats;
  return row + (size_t{segment} * b.args.group + b.head(i)) * floats;
}

template <class L>
ELLM_INLINE void attend_segment(const AttentionArgs& args, uint32_t segment, uint32_t segments, float* partials) {
  AttentionScratch<L> s;
  for_blocks<L>(args, 0, args.rows * args.group, [&](const QueryBlock& b) {
    for (uint32_t i = 0; i < b.count; ++i) s.position[i] = b.position(i);
    const SegmentPages pages = find_visible(b, segment, s);
    if (pages.from >= pages.to) return;
    load_queries<L>(b, s);
    run_segment<L>(b, pages, s.segment, s);
    for (uint32_t i = 0; i < b.count; ++i) {
      if (s.begin[i] == s.end[i]) continue;
      float* to = partial_of(b, i, segment, segments, partials);
      to[0] = s.segment.largest[i];
      to[1] = s.segment.sum[i];
      memcpy(to + 16, s.segment.values + i * b.stride, b.stride * sizeof(float));
    }
  });
}

template <class L>
ELLM_INLINE void merge_partials(const AttentionArgs& args, uint32_t first_row, uint32_t last_row, uint32_t segments,
                                const float* partials) {
  AttentionScratch<L> s;
  for_blocks<L>(args, first_row * args.group, last_row * args.group, [&](const QueryBlock& b) {
    for (uint32_t i = 0; i < b.count; ++i) {
      s.position[i] = b.position(i);
      s.taken[i] = false;
    }
    for (uint32_t segment = 0; segment < segments; ++segment) {
      find_visible(b, segment, s);
      for (uint32_t i = 0; i < b.count; ++i) {
        if (s.begin[i] == s.end[i]) continue;
        const float* p = partial_of(b, i, segment, segments, const_cast<float*>(partials));
        merge_query<L>(i, p[0], p[1], p + 16, b.stride, s.total, s);
      }
    }
    write_output<L>(b, s.total);
  });
}

}  // namespace
}  // namespace ellm::kernels
