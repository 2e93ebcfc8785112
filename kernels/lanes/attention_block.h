// What the steps of attention share: a block of queries, its running softmax, and scratch memory (kernels/lanes/attention.h).
#pragma once
#include "kernels/kernel_set.h"
#include "kernels/lanes/attention_bytes.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

constexpr uint32_t kMaxBlockQueries = 64;            // a multiple of 16
constexpr uint32_t kBlockFloats = 64 * 128;          // queries of a block times (padded) head_dim

/// Online softmax of a block's queries: running maximum and sum, and the values (query, stride).
struct SoftmaxState {
  alignas(64) float largest[kMaxBlockQueries];
  alignas(64) float sum[kMaxBlockQueries];
  alignas(64) float values[kBlockFloats];
};

template <class L>
struct AttentionScratch {
  SoftmaxState total, segment;
  alignas(64) float q[kBlockFloats];                          // per tile of n queries: (head_dim, n)
  alignas(64) float keys[kMaxHeadDim * kPageTokens];          // a page's K as floats, (head_dim, 32)
  alignas(64) float page_values[kPageTokens * kMaxHeadDim];   // a page's V as floats, (32, stride)
  alignas(64) float scores[kMaxBlockQueries * kPageTokens];   // (query, 32), then the probabilities
  alignas(64) float sums[16 * 16];                            // p of tokens t and t + 16 added, (query, 16)
  alignas(64) float decay[kMaxBlockQueries];                  // c: what becomes of the old sum and values
  // Queries as integers, for K of int8 and int4 (CodedQueries); probabilities, for V of them (CodedWeights).
  alignas(64) typename L::Code query_codes[kBlockFloats];     // (query, stride)
  alignas(64) float query_scales[kMaxBlockQueries], query_sums[kMaxBlockQueries * kMostKvBlocks];
  int32_t query_starts[kMaxBlockQueries];
  alignas(64) float offsets[kMaxBlockQueries];                // the key mean's part of the page's scores
  alignas(64) typename L::Code weight_codes[kMaxBlockQueries * kPageTokens];
  alignas(64) float weight_scales[kMaxBlockQueries], weight_least[kMaxBlockQueries];
  alignas(64) float turned_mean[kMaxHeadDim], shared_mean[kMaxHeadDim];   // of the page: whole, and what all tokens lose
  alignas(64) float pair_queries[2 * kMostMeanPairs * kMaxBlockQueries];  // the queries' values in the mean's pairs, (2 pairs, query)
  alignas(64) float pair_coefficients[2 * kMostMeanPairs * kMaxBlockQueries];
  uint32_t begin[kMaxBlockQueries], end[kMaxBlockQueries];    // tokens of the page that the query sees; equal: none
};

/// A block of queries [first, first + count) of the stack, and what all its steps need.
struct QueryBlock {
  const AttentionArgs& args;
  uint32_t first, count, stride;      // stride: head_dim padded to 16

  ELLM_INLINE uint32_t position(uint32_t i) const { return args.first_position + (first + i) / args.group; }
  /// The first position that a query at position `p` sees.
  ELLM_INLINE uint32_t window_begin(uint32_t p) const {
    return args.window != 0 && p >= args.window ? p + 1 - args.window : 0;
  }
  ELLM_INLINE const float* query(uint32_t i) const {
    const uint32_t row = (first + i) / args.group, head = (first + i) % args.group;
    return args.q + row * args.q_stride + head * args.head_dim;
  }
  ELLM_INLINE float* output(uint32_t i) const {
    const uint32_t row = (first + i) / args.group, head = (first + i) % args.group;
    return args.out + row * args.out_stride + head * args.head_dim;
  }
  /// The block of the page after `page`; behind the last that the queries see, the page itself.
  ELLM_INLINE const std::byte* next_page(const std::byte* const* blocks, uint32_t page) const {
    return (page + 1) * kPageTokens <= position(count - 1) ? blocks[page + 1] : blocks[page];
  }
  /// The first query whose position is at least `p`.
  ELLM_INLINE uint32_t first_at(uint32_t p) const {
    uint32_t i = 0;
    while (i < count && position(i) < p) ++i;
    return i;
  }
  /// The first query that sees nothing before position `p`.
  ELLM_INLINE uint32_t first_blind(uint32_t p) const {
    uint32_t i = 0;
    while (i < count && window_begin(position(i)) < p) ++i;
    return i;
  }
};

/// Queries [from, to) of a block.
struct QueryRange {
  uint32_t from, to;
};

ELLM_INLINE uint32_t padded_head_dim(uint32_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// Queries of a block: whole tiles.
template <class L>
ELLM_INLINE uint32_t block_queries(uint32_t head_dim) {
  const uint32_t fit = kBlockFloats / padded_head_dim(head_dim);
  const uint32_t most = fit < kMaxBlockQueries ? fit : kMaxBlockQueries;
  return most / L::kQueries * L::kQueries;
}

template <class L>
ELLM_INLINE uint32_t tile_queries(uint32_t i, uint32_t count) {
  return count - i < L::kQueries ? count - i : L::kQueries;
}

/// The tree over tokens (or dimensions) of up to 16 queries' vectors, lane i for query i.
template <class L, class Op, class Get>
ELLM_INLINE L fold_queries(uint32_t n, Get get) {
  if (n == 1) return L::template fold<Op>(get(Index<0>{}));
  return L::template fold16<Op>(get);
}

}  // namespace
}  // namespace ellm::kernels
