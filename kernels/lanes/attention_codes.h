// The steps of attention on int8 and int4: queries and probabilities become integers, K's mean goes back into the
// scores (HACKING.md, "KV types"; the products: kernels/lanes/attention_bytes.h).
#pragma once
#include <string.h>

#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/attention_bytes.h"
#include "kernels/lanes/quantise.h"
#include "kernels/lanes/rotation.h"
#include "kernels/lanes/rows.h"

namespace ellm::kernels {
namespace {

constexpr float kMostCode = 32767;

/// Rotates a block's queries and rounds them to integers.
template <class L>
void code_queries(const QueryBlock& b, AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  const float part = 1.0f / static_cast<float>(rotation_block(head_dim));
  for (uint32_t i = 0; i < b.count; ++i) {
    alignas(64) float x[kMaxHeadDim];
    memcpy(x, b.query(i), head_dim * sizeof(float));
    rotate<L>(x, head_dim);
    for (uint32_t d = 0; d < head_dim; ++d) x[d] *= part;
    const CodeScale scale = code_scale<L>(x, head_dim, kMostCode);
    typename L::Code* codes = s.query_codes + i * kQueryStride;
    for (uint32_t d = 0; d < b.stride; d += 16) {
      limited(values_from<L>(x, d, head_dim), L::broadcast(scale.factor), kMostCode).store_codes(codes + d);
      int32_t part_sum = 0;
      for (uint32_t j = 0; j < 16; ++j) part_sum += codes[d + j];
      float* block_sum = s.query_sums + i * kMostKvBlocks + d / kKvBlock;
      *block_sum = static_cast<float>(part_sum) + (d % kKvBlock == 0 ? 0.0f : *block_sum);
    }
    s.query_scales[i] = scale.scale * b.args.scale;
  }
  if (!b.args.key_mean) memset(s.offsets, 0, sizeof s.offsets);
}

/// k loses what K of the token at `position` is stored without.
template <class L>
ELLM_INLINE void take_key_mean(const KeyMean& mean, uint32_t head_dim, uint32_t position, float* k) {
  alignas(64) float turned[kMaxHeadDim], cosines[kMaxHeadDim / 2], sines[kMaxHeadDim / 2];
  const uint32_t page = position / kPageTokens;
  const size_t angles = size_t{page / kSegmentPages} * mean.half * kSegmentPages + page % kSegmentPages;
  for (uint32_t i = 0; i < mean.half; ++i) {
    cosines[i] = mean.cos[angles + i * kSegmentPages];
    sines[i] = mean.sin[angles + i * kSegmentPages];
  }
  memcpy(turned, mean.mean, head_dim * sizeof(float));
  rope_head<L>(turned, cosines, sines, mean.half, mean.neox);
  for (uint32_t d = 0; d < head_dim; ++d) {
    const float shared = turned[d] * mean.part[d];
    k[d] -= shared;
  }
  for (uint32_t p = 0; p < mean.pairs; ++p) {
    const uint32_t x = mean.pair_dims[2 * p], y = mean.pair_dims[2 * p + 1];
    const float* turns = mean.turns + 2 * p * kPageTokens + position % kPageTokens;
    const float cos = turns[0], sin = turns[kPageTokens];
    k[x] -= __builtin_fmaf(turned[x], cos, -(turned[y] * sin));
    k[y] -= __builtin_fmaf(turned[y], cos, turned[x] * sin);
  }
}

/// The key mean in the middle of each page of a segment, and what all tokens of the page are stored without (lane =
/// page).
template <class L>
void turn_key_mean(const KeyMean& mean, uint32_t head_dim, uint32_t segment, AttentionScratch<L>& s) {
  const float* cos = mean.cos + size_t{segment} * mean.half * kSegmentPages;
  const float* sin = mean.sin + size_t{segment} * mean.half * kSegmentPages;
  for (uint32_t d = 0; d < head_dim; ++d) L::broadcast(mean.mean[d]).store(s.turned_mean + d * kSegmentPages);
  for (uint32_t i = 0; i < mean.half; ++i) {
    const uint32_t x = mean.neox ? i : 2 * i, y = mean.neox ? i + mean.half : 2 * i + 1;
    L a = L::broadcast(mean.mean[x]), b = L::broadcast(mean.mean[y]);
    turn(a, b, L::load(cos + i * kSegmentPages), L::load(sin + i * kSegmentPages));
    a.store(s.turned_mean + x * kSegmentPages);
    b.store(s.turned_mean + y * kSegmentPages);
  }
  for (uint32_t d = 0; d < head_dim; ++d) {
    mul(L::load(s.turned_mean + d * kSegmentPages), L::broadcast(mean.part[d]))
        .store(s.shared_mean + d * kSegmentPages);
  }
}

/// Products of N queries with the shared mean of the segment's pages, (N, 16 pages).
template <class L, int N>
ELLM_INLINE void offset_tile(const QueryBlock& b, uint32_t first, AttentionScratch<L>& s) {
  const float* q[N];
  L sum[N];
  unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
    q[i] = b.query(first + i);
    sum[i] = L::broadcast(0.0f);
  });
  for (uint32_t d = 0; d < b.args.head_dim; ++d) {
    const L mean = L::load(s.shared_mean + d * kSegmentPages);
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i] = fma(L::broadcast(q[i][d]), mean, sum[i]); });
  }
  const L scale = L::broadcast(b.args.scale);
  unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { mul(sum[i], scale).store(s.offsets + (first + i) * kSegmentPages); });
}

/// What each query's scores of the segment's pages lack without the key mean but for its pairs.
template <class L>
void offset_queries(const QueryBlock& b, uint32_t segment, AttentionScratch<L>& s) {
  turn_key_mean(*b.args.key_mean, b.args.head_dim, segment, s);
  for (uint32_t i = 0; i < b.count; i += L::kWordQueries) {
    with_count<L::kWordQueries>(least_of(b.count - i, L::kWordQueries),
                                [&](auto n) ELLM_INLINE_LAMBDA { offset_tile<L, n.value>(b, i, s); });
  }
}

/// The pairs' coefficients in the segment's pages: q . (mean turned by t) = a cos t + b sin t.
template <class L>
void weigh_pairs(const QueryBlock& b, QueryRange queries, AttentionScratch<L>& s) {
  const KeyMean& mean = *b.args.key_mean;
  const L scale = L::broadcast(b.args.scale);
  for (uint32_t i = queries.from; i < queries.to; ++i) {
    for (uint32_t p = 0; p < mean.pairs; ++p) {
      const uint32_t* dims = mean.pair_dims + 2 * p;
      const L x = L::load(s.turned_mean + dims[0] * kSegmentPages),
              y = L::load(s.turned_mean + dims[1] * kSegmentPages);
      const L qx = L::broadcast(b.query(i)[dims[0]]), qy = L::broadcast(b.query(i)[dims[1]]);
      float* to = s.pairs_of(i) + 2 * p * kSegmentPages;
      mul(fma(qx, x, mul(qy, y)), scale).store(to);
      mul(sub(mul(qy, x), mul(qx, y)), scale).store(to + kSegmentPages);
    }
  }
}

/// Scores of a page (of the segment) of int8 or int4.
template <class L>
void score_codes(const QueryBlock& b, const std::byte* block, const std::byte* next, uint32_t page, QueryRange range,
                 AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  const uint32_t pairs = b.args.key_mean ? b.args.key_mean->pairs : 0;
  for (uint32_t i = range.from; i < range.to; i += L::kWordQueries) {
    const uint32_t n = least_of(range.to - i, L::kWordQueries);
    float* scores = s.scores_of(i) + page * kPageTokens;
    const float* offsets = s.offsets + i * kSegmentPages + page;
    const CodedQueries<L> q{s.query_codes + i * kQueryStride, s.query_scales + i, s.query_sums + i * kMostKvBlocks,
                            offsets, pairs > 0};
    if (pairs > 0) score_turns_tile<L>(n, offsets, s.pairs_of(i) + page, b.args.key_mean->turns, 2 * pairs, scores);
    score_coded_tile<L>(n, b.args.k_type, q, block, tile_ahead<L>(next, range, i), head_dim, scores);
  }
}

/// Probabilities times their tokens' scales, for a query's vectors of tokens [from, to): p * scale = code * (top /
/// 32767) with the segment's largest as top. `weight(t)`: p * scale of tokens t … t + 15, 0 where p is not above 0.
template <class L, class Weight>
ELLM_INLINE float code_weights(uint32_t from, uint32_t to, L top_lanes, Weight weight, typename L::Code* codes) {
  const float top = L::template fold<typename L::Max>(top_lanes).first();
  const float factor = top < 1e-30f ? 0.0f : kMostCode / top;
  const L factors = L::broadcast(factor), most = L::broadcast(kMostCode);
  for (uint32_t t = from; t < to; t += 16) min(mul(weight(t), factors), most).store_codes(codes + t);
  return top < 1e-30f ? 0.0f : top / kMostCode;
}

/// p * scale, and 0 where p is not above 0: what stands in unseen slots is not looked at.
template <class L>
ELLM_INLINE L scaled_weight(L p, L scale) {
  const L zero = L::broadcast(0.0f);
  return select_less(zero, p, mul(p, scale), zero);
}

/// Codes of what a query does not see of pages [from, to) are 0.
template <class L>
ELLM_INLINE void clear_codes(uint32_t i, uint32_t from, uint32_t to, AttentionScratch<L>& s) {
  typename L::Code* codes = s.codes_of(i);
  const uint32_t first = from * kPageTokens, last = to * kPageTokens;
  const uint32_t begin = s.begin[i] / 16 * 16, end = (s.end[i] + 15) / 16 * 16;
  if (s.begin[i] == s.end[i] || begin >= last || end <= first) {
    memset(codes + first, 0, (last - first) * sizeof *codes);
    return;
  }
  if (begin > first) memset(codes + first, 0, (begin - first) * sizeof *codes);
  if (end < last) memset(codes + end, 0, (last - end) * sizeof *codes);
}

}  // namespace
}  // namespace ellm::kernels
