// The steps of attention on int8 and int4: queries and probabilities become integers, K's mean goes back into the scores
// (HACKING.md, "KV types"; the products: kernels/lanes/attention_bytes.h).
#pragma once
#include <string.h>

#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/quantise.h"
#include "kernels/lanes/rotation.h"
#include "kernels/lanes/rows.h"

namespace ellm::kernels {
namespace {

/// Rotates a block's queries and rounds them to integers.
template <class L>
void code_queries(const QueryBlock& b, AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  const float part = 1.0f / static_cast<float>(rotation_block(head_dim));
  for (uint32_t i = 0; i < b.count; ++i) {
    alignas(64) float x[kMaxHeadDim];
    memcpy(x, b.query(i), head_dim * sizeof(float));
    rotate(x, head_dim);
    for (uint32_t d = 0; d < head_dim; ++d) x[d] *= part;
    const Int8Scale scale = int8_scale<L>(x, head_dim);
    typename L::Code* codes = s.query_codes + i * b.stride;
    int32_t sum = 0;
    for (uint32_t d = 0; d < b.stride; d += 16) {
      limited(values_from<L>(x, d, head_dim), L::broadcast(scale.factor)).store_codes(codes + d);
      int32_t part_sum = 0;
      for (uint32_t j = 0; j < 16; ++j) part_sum += static_cast<int8_t>(codes[d + j]);
      float* block_sum = s.query_sums + i * kMostKvBlocks + d / kKvBlock;
      *block_sum = static_cast<float>(part_sum) + (d % kKvBlock == 0 ? 0.0f : *block_sum);
      sum += part_sum;
    }
    const KeyMean* mean = b.args.key_mean;
    for (uint32_t p = 0; mean && p < 2 * mean->pairs; ++p) s.pair_queries[p * kMaxBlockQueries + i] = b.query(i)[mean->pair_dims[p]];
    s.query_starts[i] = -L::kKeyOffset * sum;
    s.query_scales[i] = scale.scale * b.args.scale;
    s.offsets[i] = 0;
  }
}

/// The key mean in the middle of a page, and what all its tokens are stored without.
template <class L>
ELLM_INLINE void turn_key_mean(const KeyMean& mean, uint32_t head_dim, uint32_t page, float* turned, float* shared) {
  memcpy(turned, mean.mean, head_dim * sizeof(float));
  rope_head<L>(turned, mean.cos + size_t{page} * mean.half, mean.sin + size_t{page} * mean.half, mean.half, mean.neox);
  for (uint32_t d = 0; d < head_dim; ++d) shared[d] = turned[d] * mean.part[d];
}

template <class L>
ELLM_INLINE void take_key_mean(const KeyMean& mean, uint32_t head_dim, uint32_t position, float* k) {
  alignas(64) float turned[kMaxHeadDim], shared[kMaxHeadDim];
  turn_key_mean<L>(mean, head_dim, position / kPageTokens, turned, shared);
  for (uint32_t d = 0; d < head_dim; ++d) k[d] -= shared[d];
  for (uint32_t p = 0; p < mean.pairs; ++p) {
    const uint32_t x = mean.pair_dims[2 * p], y = mean.pair_dims[2 * p + 1];
    const float* turns = mean.turns + 2 * p * kPageTokens + position % kPageTokens;
    const float cos = turns[0], sin = turns[kPageTokens];
    k[x] -= __builtin_fmaf(turned[x], cos, -(turned[y] * sin));
    k[y] -= __builtin_fmaf(turned[y], cos, turned[x] * sin);
  }
}

/// What each query's scores of the page lack without the key mean: one number, and for its pairs the scores themselves.
template <class L>
void score_mean(const QueryBlock& b, uint32_t page, QueryRange range, AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  const KeyMean& mean = *b.args.key_mean;
  turn_key_mean<L>(mean, head_dim, page, s.turned_mean, s.shared_mean);
  const L scale = L::broadcast(b.args.scale);
  for (uint32_t g = range.from / 16 * 16; g < range.to; g += 16) {
    const uint32_t n = b.count - g < 16 ? b.count - g : 16;
    const L products = fold_queries<L, typename L::Sum>(n, [&](auto i) ELLM_INLINE_LAMBDA {
      const float* q = b.query(static_cast<uint32_t>(i) < n ? g + i : g);
      L sum = L::broadcast(0.0f);
      for (uint32_t d = 0; d < head_dim; d += 16) sum = fma(values_from<L>(q, d, head_dim), values_from<L>(s.shared_mean, d, head_dim), sum);
      return sum;
    });
    mul(products, scale).store(s.offsets + g);
    for (uint32_t p = 0; p < mean.pairs; ++p) {      // q . (mean turned by t) = a cos t + b sin t
      const L x = L::broadcast(s.turned_mean[mean.pair_dims[2 * p]]), y = L::broadcast(s.turned_mean[mean.pair_dims[2 * p + 1]]);
      const L qx = L::load(s.pair_queries + 2 * p * kMaxBlockQueries + g), qy = L::load(s.pair_queries + (2 * p + 1) * kMaxBlockQueries + g);
      float* to = s.pair_coefficients + 2 * p * kMaxBlockQueries + g;
      mul(fma(qx, x, mul(qy, y)), scale).store(to);
      mul(sub(mul(qy, x), mul(qx, y)), scale).store(to + kMaxBlockQueries);
    }
  }
}

/// Scores of a page of int8 or int4.
template <class L>
void score_codes(const QueryBlock& b, uint32_t page, QueryRange range, AttentionScratch<L>& s) {
  const std::byte *block = b.args.k_blocks[page], *next = b.next_page(b.args.k_blocks, page);
  const uint32_t head_dim = b.args.head_dim;
  const uint32_t pairs = b.args.key_mean ? b.args.key_mean->pairs : 0;
  if (b.args.key_mean) score_mean<L>(b, page, range, s);
  const size_t bytes = k_block_bytes(b.args.k_type, head_dim), scales = (b.args.k_type == KvType::int8 ? 4 : 4 * kv_blocks(head_dim)) * kPageTokens;
  fetch_lines(next + bytes - scales, static_cast<uint32_t>(scales));
  for (uint32_t i = range.from; i < range.to; i += L::kByteQueries) {
    const uint32_t n = b.count - i < L::kByteQueries ? b.count - i : L::kByteQueries;
    const CodedQueries<L> q{s.query_codes + i * b.stride, b.stride, s.query_scales + i, s.query_starts + i,
                            s.query_sums + i * kMostKvBlocks, s.offsets + i, pairs > 0};
    if (pairs > 0) {
      score_turns_tile<L>(n, s.pair_coefficients + i, kMaxBlockQueries, b.args.key_mean->turns, 2 * pairs, s.scores + i * kPageTokens);
    }
    score_coded_tile<L>(n, b.args.k_type, q, block, next, head_dim, s.scores + i * kPageTokens);
  }
}

/// Probabilities times the tokens' scales become integers of 8 bits, for queries [g, g + n): p * scale = code * (top / 255)
/// with the page's largest as top. `scale(half)`: the scales of 16 tokens. What stands in unseen slots is not looked at.
template <class L, class Scale>
ELLM_INLINE void code_weights(uint32_t g, uint32_t n, Scale scale, AttentionScratch<L>& s) {
  const float* scores = s.scores + g * kPageTokens;
  const L zero = L::broadcast(0.0f), scale_low = scale(0), scale_high = scale(1);
  const auto weight = [&](uint32_t i, uint32_t half) ELLM_INLINE_LAMBDA {
    const L p = L::load(scores + i * kPageTokens + half * 16);
    return select_less(zero, p, mul(p, half == 0 ? scale_low : scale_high), zero);
  };
  const L top = fold_queries<L, typename L::Max>(n, [&](auto i) ELLM_INLINE_LAMBDA { return max(weight(i, 0), weight(i, 1)); });
  const L most = L::broadcast(255.0f), least = L::broadcast(1e-30f);
  select_less(top, least, zero, div(top, most)).store(s.weight_scales + g);
  float factors[16];
  select_less(top, least, zero, div(most, top)).store(factors);
  for (uint32_t i = 0; i < n; ++i) {
    const L factor = L::broadcast(factors[i]);
    for (uint32_t half = 0; half < 2; ++half) {
      min(mul(weight(i, half), factor), most).store_codes(s.weight_codes + (g + i) * kPageTokens + half * 16);
    }
  }
}

/// The sums over tokens of p times the tokens' minima.
template <class L>
ELLM_INLINE void weigh_least(uint32_t g, uint32_t n, const uint16_t* least, AttentionScratch<L>& s) {
  const float* scores = s.scores + g * kPageTokens;
  const L zero = L::broadcast(0.0f), least_low = L::load_halves(least), least_high = L::load_halves(least + 16);
  fold_queries<L, typename L::Sum>(n, [&](auto i) ELLM_INLINE_LAMBDA {
    const L low = L::load(scores + i * kPageTokens), high = L::load(scores + i * kPageTokens + 16);
    return add(select_less(zero, low, mul(low, least_low), zero), select_less(zero, high, mul(high, least_high), zero));
  }).store(s.weight_least + g);
}

/// Calls f(i, n) for tiles of queries that see something of the page: of single queries where some see it in part (the
/// weights of tokens that a query does not see are 0, but a query that sees none must not be touched).
template <class L, class F>
ELLM_INLINE void for_coded_tiles(const QueryBlock& b, QueryRange range, bool partly, AttentionScratch<L>& s, F f) {
  for (uint32_t i = range.from; i < range.to; i += L::kByteQueries) {
    const uint32_t n = b.count - i < L::kByteQueries ? b.count - i : L::kByteQueries;
    bool all = true;
    for (uint32_t k = 0; partly && k < n; ++k) all = all && s.begin[i + k] < s.end[i + k];
    if (all) {
      f(i, n);
      continue;
    }
    for (uint32_t k = 0; k < n; ++k) {
      if (s.begin[i + k] < s.end[i + k]) f(i + k, 1u);
    }
  }
}

/// Adds a page's values of int8 or int4.
template <class L>
void weigh_codes(const QueryBlock& b, uint32_t page, QueryRange range, bool partly, SoftmaxState& state, AttentionScratch<L>& s) {
  const std::byte *block = b.args.v_blocks[page], *next = b.next_page(b.args.v_blocks, page);
  const uint32_t head_dim = b.args.head_dim, first = range.from / 16 * 16;
  const auto weights = [&](uint32_t i) ELLM_INLINE_LAMBDA {
    return CodedWeights<L>{s.weight_codes + i * kPageTokens, s.weight_scales + i, s.decay + i, s.weight_least + i,
                           state.values + i * b.stride, b.stride};
  };
  const auto group = [&](uint32_t g) ELLM_INLINE_LAMBDA { return b.count - g < 16 ? b.count - g : 16; };
  if (b.args.v_type == KvType::int8) {
    const float* scales = value_scales_of(block, head_dim);
    fetch_lines(reinterpret_cast<const std::byte*>(value_scales_of(next, head_dim)), 128);
    for (uint32_t g = first; g < range.to; g += 16) {
      code_weights<L>(g, group(g), [&](uint32_t half) ELLM_INLINE_LAMBDA { return L::load(scales + half * 16); }, s);
    }
    for_coded_tiles<L>(b, range, partly, s, [&](uint32_t i, uint32_t n) ELLM_INLINE_LAMBDA { weigh_int8_tile<L>(n, weights(i), block, next); });
    return;
  }
  const uint32_t blocks = kv_blocks(head_dim);
  for (uint32_t kv_block = 0; kv_block < blocks; ++kv_block) {
    const uint16_t* ranges = value_ranges_of(block, head_dim, kv_block);
    fetch_lines(reinterpret_cast<const std::byte*>(value_ranges_of(next, head_dim, kv_block)), 128);
    for (uint32_t g = first; g < range.to; g += 16) {
      code_weights<L>(g, group(g), [&](uint32_t half) ELLM_INLINE_LAMBDA { return L::load_halves(ranges + half * 16); }, s);
      weigh_least<L>(g, group(g), ranges + kPageTokens, s);
    }
    for_coded_tiles<L>(b, range, partly, s, [&](uint32_t i, uint32_t n) ELLM_INLINE_LAMBDA {
      weigh_int4_tile<L>(n, weights(i), block, next, kv_block, blocks);
    });
  }
}

}  // namespace
}  // namespace ellm::kernels
