// Softmax of a query over one segment: scores become probabilities in place, with maximum and sum; for V of int8 and
// int4 also integers. Every query looks at its own tokens alone, whatever stands beside it in its block.
#pragma once
#include "kernels/lanes/attention_codes.h"
#include "kernels/lanes/exp.h"

namespace ellm::kernels {
namespace {

/// The tokens of a segment that a query sees, in vectors of 16.
template <class L>
struct VisibleTokens {
  uint32_t begin, end;
  ELLM_INLINE uint32_t first() const { return begin / 16 * 16; }
  /// f(t, cut) for all of them; `cut`, a constant, for the vectors of which some tokens are not seen.
  template <class F>
  ELLM_INLINE void each(F f) const {
    uint32_t t = first();
    if (t < begin) f(t, Index<true>{}), t += 16;
    for (; t + 16 <= end; t += 16) f(t, Index<false>{});
    if (t < end) f(t, Index<true>{});
  }
  /// The same, but f(t) for two vectors at once where there are.
  template <class F, class FewerF>
  ELLM_INLINE void each_two(F f, FewerF fewer) const {
    uint32_t t = first();
    if (t < begin) fewer(t, Index<true>{}), t += 16;
    for (; t + 32 <= end; t += 32) f(t);
    if (t + 16 <= end) fewer(t, Index<false>{}), t += 16;
    if (t < end) fewer(t, Index<true>{});
  }
  /// x of tokens t … t + 15; `other` for those that are not seen.
  ELLM_INLINE L of(L x, uint32_t t, L other) const {
    if (t + 16 > end) x = keep_first(x, end - t, other);
    if (t < begin) x = keep_first(other, begin - t, x);
    return x;
  }
};

/// The largest score. Scores are capped on the way; those of unseen tokens become -infinity.
template <class L>
ELLM_INLINE float find_largest(VisibleTokens<L> seen, float soft_cap, float* scores) {
  const L hidden = L::broadcast(-__builtin_inff());
  L largest = hidden;
  for (uint32_t t = seen.first(); soft_cap != 0 && t < seen.end; t += 16)
    soft_cap_lanes(L::load(scores + t), soft_cap).store(scores + t);
  seen.each([&](uint32_t t, auto cut) ELLM_INLINE_LAMBDA {
    L x = L::load(scores + t);
    if (cut) {
      x = seen.of(x, t, hidden);
      x.store(scores + t);
    }
    largest = max(x, largest);
  });
  return L::template fold<typename L::Max>(largest).first();
}

/// Scores of query i become probabilities, and 16 at a time go through `keep(t, p)`.
template <class L, class Keep>
ELLM_INLINE void soften(const QueryBlock& b, uint32_t i, SoftmaxState& state, AttentionScratch<L>& s, Keep keep) {
  const VisibleTokens<L> seen{s.begin[i], s.end[i]};
  float* scores = s.scores_of(i);
  state.largest[i] = find_largest<L>(seen, b.args.soft_cap, scores);
  const L zero = L::broadcast(0.0f), largest = L::broadcast(state.largest[i]);
  L sum = zero;
  const auto take = [&](uint32_t t, L p) ELLM_INLINE_LAMBDA {
    sum = add(sum, p);
    keep(t, p).store(scores + t);
  };
  seen.each_two(
      [&](uint32_t t) ELLM_INLINE_LAMBDA {
        const Two<L> x{L::load(scores + t), L::load(scores + t + 16)};
        const Two<L> p = exp_falling(sub(x, Two<L>{largest, largest}));
        take(t, p.a);
        take(t + 16, p.b);
      },
      [&](uint32_t t, auto cut) ELLM_INLINE_LAMBDA {
        const L p = exp_falling(sub(L::load(scores + t), largest));
        take(t, cut ? seen.of(p, t, zero) : p);
      });
  state.sum[i] = L::template fold<typename L::Sum>(sum).first();
}

/// Softmax of query i, and its codes for V of int8 (the probabilities themselves are not needed any more).
template <class L>
void soften_query(const QueryBlock& b, uint32_t segment, uint32_t i, SoftmaxState& state, AttentionScratch<L>& s) {
  if (b.args.v_type != KvType::int8)
    return soften(b, i, state, s, [&](uint32_t t, L p) ELLM_INLINE_LAMBDA {
      if (t == 0) s.first_weights[i] = p.first();
      return p;
    });
  const std::byte* const* blocks = b.segment_blocks(b.args.v_blocks, i, segment);
  L top = L::broadcast(0.0f);
  soften(b, i, state, s, [&](uint32_t t, L p) ELLM_INLINE_LAMBDA {
    if (t == 0) s.first_weights[i] = p.first();
    const L weight =
        scaled_weight(p, L::load(value_scales_of(blocks[t / kPageTokens], b.args.head_dim) + t % kPageTokens));
    top = max(weight, top);
    return weight;
  });
  const float* weights = s.scores_of(i);
  s.weight_scales[i] = code_weights(
      s.begin[i] / 16 * 16, s.end[i], top, [&](uint32_t t) ELLM_INLINE_LAMBDA { return L::load(weights + t); },
      s.codes_of(i));
}

/// The codes of query i for 32 dimensions of V of int4, and the sum of the probabilities times the tokens' minima.
template <class L>
void code_int4_block(const QueryBlock& b, uint32_t segment, uint32_t i, uint32_t kv_block, AttentionScratch<L>& s) {
  const std::byte* const* blocks = b.segment_blocks(b.args.v_blocks, i, segment);
  const float* p = s.scores_of(i);
  const auto ranges = [&](uint32_t t) ELLM_INLINE_LAMBDA {
    return value_ranges_of(blocks[t / kPageTokens], b.args.head_dim, kv_block) + t % kPageTokens;
  };
  const auto weight = [&](uint32_t t)
                          ELLM_INLINE_LAMBDA { return scaled_weight(L::load(p + t), L::load_halves(ranges(t))); };
  const L zero = L::broadcast(0.0f);
  L top = zero, least = zero;
  for (uint32_t t = s.begin[i] / 16 * 16; t < s.end[i]; t += 16) {
    top = max(weight(t), top);
    const L x = L::load(p + t);
    least = select_less(zero, x, fma(x, L::load_halves(ranges(t) + kPageTokens), least), least);
  }
  s.weight_scales[i] = code_weights(s.begin[i] / 16 * 16, s.end[i], top, weight, s.codes_of(i));
  s.weight_least[i] = L::template fold<typename L::Sum>(least).first();
}

}  // namespace
}  // namespace ellm::kernels
