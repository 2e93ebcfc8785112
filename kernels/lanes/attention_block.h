// What the steps of attention share: a block of queries, its running softmax, and scratch memory
// (kernels/lanes/attention.h).
#pragma once
#include "kernels/kernel_set.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

constexpr uint32_t kMaxBlockQueries = 64;
constexpr uint32_t kBlockFloats = 64 * 128;  // queries of a block times (padded) head_dim
constexpr uint32_t kMostKvBlocks = kMaxHeadDim / kKvBlock;
// Queries that go through a segment of integers together: their scores and codes (6 bytes a token) stay in the
// first-level cache from the products with K to those with V, the segment's pages in the second-level one for the next.
constexpr uint32_t kTileQueries = 8;
constexpr uint32_t kPairFloats = 2 * kMostMeanPairs * kSegmentPages;
constexpr uint32_t kQueryStride = kMaxHeadDim + 16;  // between queries: a constant, so that one register addresses all

ELLM_INLINE uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// Softmax of a block's queries: maximum and sum, and the values (query, stride).
struct SoftmaxState {
  alignas(64) float largest[kMaxBlockQueries];
  alignas(64) float sum[kMaxBlockQueries];
  alignas(64) float values[kBlockFloats];
};

template <class L>
struct AttentionScratch {
  SoftmaxState total, segment;
  alignas(64) float scores[kMaxBlockQueries * kAttentionSegment];  // (query of the tile, 512), then the probabilities
  uint32_t position[kMaxBlockQueries];
  uint32_t begin[kMaxBlockQueries], end[kMaxBlockQueries];  // tokens of the segment that the query sees; equal: none
  bool taken[kMaxBlockQueries];                             // the query has seen an earlier segment
  // f16 and f32
  alignas(64) float q[kMaxBlockQueries * kQueryStride];
  alignas(64) float keys[kMaxHeadDim * kPageTokens];         // a page's K as floats, (head_dim, 32)
  alignas(64) float page_values[kPageTokens * kMaxHeadDim];  // a page's V as floats, (32, stride)
  // Queries as integers, for K of int8 and int4 (CodedQueries); probabilities, for V of them.
  alignas(64) typename L::Code query_codes[kMaxBlockQueries * kQueryStride];
  alignas(64) float query_scales[kMaxBlockQueries], query_sums[kMaxBlockQueries * kMostKvBlocks];
  alignas(64) typename L::Code weight_codes[kMaxBlockQueries * kAttentionSegment];  // (query of the tile, 512)
  float weight_scales[kMaxBlockQueries], weight_least[kMaxBlockQueries];
  float first_weights[kMaxBlockQueries];      // probabilities of the first token of the segment
  alignas(64) int32_t weighed[kBlockFloats];  // (query, stride): sums of codes times values
  // The key mean of a segment's pages: all of it, and what all tokens of a page lose alike, both (head_dim, 16 pages).
  alignas(64) float turned_mean[kMaxHeadDim * kSegmentPages], shared_mean[kMaxHeadDim * kSegmentPages];
  alignas(64) float offsets[kMaxBlockQueries * kSegmentPages];          // its part of the scores, (query, 16 pages)
  alignas(64) float pair_coefficients[kMaxBlockQueries * kPairFloats];  // (query of the tile, 2 pairs, 16 pages)

  uint32_t tile;  // the first query of those that go through a segment together
  ELLM_INLINE float* scores_of(uint32_t i) { return scores + size_t{i - tile} * kAttentionSegment; }
  ELLM_INLINE float* pairs_of(uint32_t i) { return pair_coefficients + size_t{i - tile} * kPairFloats; }
  ELLM_INLINE typename L::Code* codes_of(uint32_t i) { return weight_codes + size_t{i - tile} * kAttentionSegment; }
};

/// A block of queries [first, first + count) of the stack, and what all its steps need.
struct QueryBlock {
  const AttentionArgs& args;
  uint32_t first, count, stride;  // stride: head_dim padded to 16
  uint32_t together;              // pages that are computed, and asked for, together (attention_ahead.h)

  ELLM_INLINE uint32_t row(uint32_t i) const { return (first + i) / args.group; }
  ELLM_INLINE uint32_t head(uint32_t i) const { return (first + i) % args.group; }
  ELLM_INLINE uint32_t position(uint32_t i) const {
    return args.stack ? args.stack[row(i)].position : args.first_position + row(i);
  }
  /// The first position that a query at position `p` sees.
  ELLM_INLINE uint32_t window_begin(uint32_t p) const {
    return args.window != 0 && p >= args.window ? p + 1 - args.window : 0;
  }
  ELLM_INLINE const float* query(uint32_t i) const {
    const float* row_q = args.stack ? args.stack[row(i)].q : args.q + row(i) * args.q_stride;
    return row_q + head(i) * args.head_dim;
  }
  ELLM_INLINE float* output(uint32_t i) const { return args.out + row(i) * args.out_stride + head(i) * args.head_dim; }
  /// The blocks of a segment's pages as query i's row has them.
  ELLM_INLINE const std::byte* const* segment_blocks(const std::byte* const* of, uint32_t i, uint32_t segment) const {
    return args.stack ? of + row(i) * args.stack_pages : of + segment * kSegmentPages;
  }
};

/// Queries [from, to) of a block.
struct QueryRange {
  uint32_t from, to;
};

/// Pages of a segment that any query of a block sees, counted from the segment's first; whole: all see all of them.
/// `queries`: a tile of the block's.
struct SegmentPages {
  uint32_t segment, from, to;
  bool whole;
  QueryRange queries;
};

/// A piece of a segment: queries that all read the same pages [from, to); page p's blocks are k[p] and v[p].
struct Span {
  QueryRange queries;
  uint32_t from, to;
  const std::byte* const* k;
  const std::byte* const* v;
  uint32_t behind;  // pages behind the segment that follow in k
  bool first;       // no tile before this one read them
};

ELLM_INLINE uint32_t padded_head_dim(uint32_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// Queries of a block: whole tiles.
template <class L>
ELLM_INLINE uint32_t block_queries(uint32_t head_dim) {
  const uint32_t fit = kBlockFloats / padded_head_dim(head_dim);
  const uint32_t most = fit < kMaxBlockQueries ? fit : kMaxBlockQueries;
  return most / L::kQueries * L::kQueries;
}

/// The tokens of page `page` (of the segment) among [begin, end): [from, to), both within 0 … 32.
struct TokenRange {
  uint32_t from, to;
};
ELLM_INLINE TokenRange tokens_of_page(uint32_t begin, uint32_t end, uint32_t page) {
  const uint32_t start = page * kPageTokens;
  const uint32_t from = begin <= start ? 0 : least_of(begin - start, kPageTokens);
  const uint32_t to = end <= start ? 0 : least_of(end - start, kPageTokens);
  return {from, to < from ? from : to};
}

/// Queries of [from, to) that see anything of a page, from the first to the last.
template <class L>
ELLM_INLINE QueryRange seeing(QueryRange queries, uint32_t page, const AttentionScratch<L>& s) {
  const auto sees = [&](uint32_t i) ELLM_INLINE_LAMBDA {
    const TokenRange t = tokens_of_page(s.begin[i], s.end[i], page);
    return t.from < t.to;
  };
  while (queries.from < queries.to && !sees(queries.from)) ++queries.from;
  while (queries.from < queries.to && !sees(queries.to - 1)) --queries.to;
  return queries;
}

/// Calls f(span) for the pieces of a segment and tile, by ascending pages. (The queries of a sequence are one piece.
/// Where several are stacked, those that share pages stand side by side, and once apart they stay so.)
template <class F>
ELLM_INLINE void for_spans(const QueryBlock& b, SegmentPages pages, F f) {
  const auto table = [&](const std::byte* const* of, uint32_t i)
                         ELLM_INLINE_LAMBDA { return b.segment_blocks(of, i, pages.segment); };
  // The rows that begin within the tile, behind the block's first query.
  const uint32_t group = b.args.group, begin = pages.queries.from == 0 ? 1 : pages.queries.from;
  const uint32_t first_row = (b.first + begin + group - 1) / group, last_row = b.row(pages.queries.to - 1);
  const auto cuts = [&](uint32_t page) ELLM_INLINE_LAMBDA {  // bit i: query i reads another page than the one before it
    uint64_t bits = 0;
    for (uint32_t row = first_row; b.args.stack && row <= last_row; ++row) {
      const std::byte* const* own = b.args.k_blocks + row * b.args.stack_pages + page;
      bits |= uint64_t{own[0] != *(own - b.args.stack_pages)} << (row * group - b.first);
    }
    return bits;
  };
  uint32_t behind = 0;
  if (!b.args.stack) {
    const uint32_t all = b.position(b.count - 1) / kPageTokens + 1, next = (pages.segment + 1) * kSegmentPages;
    behind = all > next ? all - next : 0;
  }
  for (uint32_t from = pages.from; from < pages.to;) {
    const uint64_t now = cuts(from);
    uint32_t to = from + 1;
    while (to < pages.to && (!b.args.stack || cuts(to) == now)) ++to;
    for (uint32_t i = pages.queries.from; i < pages.queries.to;) {
      uint32_t j = i + 1;
      while (j < pages.queries.to && (now >> j & 1) == 0) ++j;
      const bool first = i == 0 || (now >> i & 1) != 0;
      f(Span{{i, j}, from, to, table(b.args.k_blocks, i), table(b.args.v_blocks, i), behind, first});
      i = j;
    }
    from = to;
  }
}

}  // namespace
}  // namespace ellm::kernels
