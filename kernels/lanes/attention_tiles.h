// The two products of attention on one page of f16 or f32, for a register tile of queries: scores (lane = token) and
// weighted values (lane = output dimension). Written once for all levels; the tile's shape is the level's
// (kernels/<level>/lanes.h).
#pragma once
#include "kernels/kv_block.h"
#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

// Where K comes from: at(d, j, v) is dimension d + j of tokens 16 v … 16 v + 15, d a multiple of 4, j in 0 … 3.
// fetch(d) asks for the same dimensions of the next page (attention_ahead.h).
template <class L>
struct HalfKeys {  // [head_dim][32] half
  const uint16_t *k, *next;
  template <int J>
  ELLM_INLINE L at(size_t d, size_t v) const {
    return L::load_halves(k + (d + J) * kPageTokens + v * 16);
  }
  ELLM_INLINE void fetch(size_t d) const {
    unrolled<4>([&](auto j)
                    ELLM_INLINE_LAMBDA { __builtin_prefetch(next + (d + j) * kPageTokens, 0, L::kFetchLocality); });
  }
};
template <class L>
struct FloatKeys {  // [head_dim][32] float, converted before
  const float* k;
  template <int J>
  ELLM_INLINE L at(size_t d, size_t v) const {
    return L::load(k + (d + J) * kPageTokens + v * 16);
  }
  ELLM_INLINE void fetch(size_t) const {}
};

// Where V comes from: at(t, d) is dimensions d … d + 15 of token t; rows are `stride` values apart. fetch as above.
template <class L>
struct HalfValues {
  const uint16_t *v, *next;
  uint32_t stride;
  ELLM_INLINE L at(size_t t, size_t d) const { return L::load_halves(v + t * stride + d); }
  ELLM_INLINE void fetch(size_t t, size_t d) const { __builtin_prefetch(next + t * stride + d, 0, L::kFetchLocality); }
};
template <class L>
struct FloatValues {
  const float* v;
  uint32_t stride;
  ELLM_INLINE L at(size_t t, size_t d) const { return L::load(v + t * stride + d); }
  ELLM_INLINE void fetch(size_t, size_t) const {}
};

/// Scores of V vectors of tokens from vector `first` on for N queries: scores (N, 512), q (N, kQueryStride).
template <class L, int N, int V, class Keys>
ELLM_INLINE void score_vectors(const Keys& keys, const float* q, uint32_t head_dim, float scale, uint32_t first,
                               float* scores) {
  L sum[V][N];
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i / N][i % N] = L::broadcast(0.0f); });
  const auto dimension = [&](size_t d, auto j) ELLM_INLINE_LAMBDA {
    unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
      const L k = keys.template at<j.value>(d, first + v);
      unrolled<N>([&](auto i)
                      ELLM_INLINE_LAMBDA { sum[v][i] = fma(L::broadcast(q[i * kQueryStride + d + j]), k, sum[v][i]); });
    });
  };
  size_t d = 0;
  for (; d + 4 <= head_dim; d += 4) {
    if (first == 0) keys.fetch(d);
    unrolled<4>([&](auto j) ELLM_INLINE_LAMBDA { dimension(d, j); });
  }
  unrolled<3>([&](auto j) ELLM_INLINE_LAMBDA {
    if (d + j < head_dim) dimension(d, j);
  });
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA {
    mul(sum[i / N][i % N], L::broadcast(scale)).store(scores + (i % N) * kAttentionSegment + (first + i / N) * 16);
  });
}

/// score = (q . K) * scale for the 32 tokens of a page and n queries.
template <class L, class Keys>
ELLM_INLINE void score_tile(uint32_t n, const Keys& keys, const float* q, uint32_t head_dim, float scale,
                            float* scores) {
  with_count<L::kQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::token_vectors(kCount);
    for (uint32_t first = 0; first < 2; first += kVectors) {
      score_vectors<L, kCount, kVectors>(keys, q, head_dim, scale, first, scores);
    }
  });
}

/// acc (N, stride) of V vectors of dimensions from `dim` on: acc + sum over tokens of p * V.
template <class L, int N, int V, class Values>
ELLM_INLINE void weigh_vectors(const Values& values, uint32_t first, uint32_t last, const float* p, uint32_t dim,
                               float* acc, uint32_t stride) {
  L sum[N][V];
  unrolled<N * V>([&](auto i)
                      ELLM_INLINE_LAMBDA { sum[i / V][i % V] = L::load(acc + (i / V) * stride + dim + (i % V) * 16); });
  for (uint32_t t = first; t < last; ++t) {
    L v[V];
    unrolled<V>([&](auto k) ELLM_INLINE_LAMBDA {
      if (k % 2 == 0) values.fetch(t, dim + k * 16);
      v[k] = values.at(t, dim + k * 16);
    });
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
      const L weight = L::broadcast(p[i * kAttentionSegment + t]);
      unrolled<V>([&](auto k) ELLM_INLINE_LAMBDA { sum[i][k] = fma(weight, v[k], sum[i][k]); });
    });
  }
  unrolled<N * V>([&](auto i)
                      ELLM_INLINE_LAMBDA { sum[i / V][i % V].store(acc + (i / V) * stride + dim + (i % V) * 16); });
}

/// The remaining dimensions [dim, stride) in tiles of V vectors, then of V / 2 …
template <class L, int N, int V, class Values>
ELLM_INLINE void weigh_from(const Values& values, uint32_t first, uint32_t last, const float* p, uint32_t dim,
                            float* acc, uint32_t stride) {
  for (; dim + 16 * V <= stride; dim += 16 * V) {
    weigh_vectors<L, N, V>(values, first, last, p, dim, acc, stride);
  }
  if constexpr (V > 1) weigh_from<L, N, V / 2>(values, first, last, p, dim, acc, stride);
}

/// Tokens [first, last) of a page added to the values of n queries.
template <class L, class Values>
ELLM_INLINE void weigh_tile(uint32_t n, const Values& values, uint32_t first, uint32_t last, const float* p, float* acc,
                            uint32_t stride) {
  with_count<L::kQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value;
    weigh_from<L, kCount, L::dim_vectors(kCount)>(values, first, last, p, 0, acc, stride);
  });
}

}  // namespace
}  // namespace ellm::kernels
