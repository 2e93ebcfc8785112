// The two products of attention on one page of int8 or int4, by integers, for a tile of queries: scores (lane = token) and
// weighted values (lane = output dimension). Written once for all levels; what a level multiplies with is in
// kernels/<level>/lanes.h.
#pragma once
#include "kernels/kv_block.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

constexpr uint32_t kMostKvBlocks = kMaxHeadDim / kKvBlock;

// The scales behind a block's values, and in int4 the minima.
ELLM_INLINE const float* key_scales_of(const std::byte* block, uint32_t head_dim) {
  return reinterpret_cast<const float*>(block + (head_dim + 3) / 4 * 4 * kPageTokens);
}
ELLM_INLINE const float* value_scales_of(const std::byte* block, uint32_t head_dim) {
  return reinterpret_cast<const float*>(block + (head_dim + 15) / 16 * 16 * kPageTokens);
}
/// [32] scales, then [32] minima.
ELLM_INLINE const uint16_t* key_ranges_of(const std::byte* block, uint32_t head_dim, uint32_t kv_block) {
  return reinterpret_cast<const uint16_t*>(block + (head_dim + 7) / 8 * 4 * kPageTokens) + kv_block * 2 * kPageTokens;
}
ELLM_INLINE const uint16_t* value_ranges_of(const std::byte* block, uint32_t head_dim, uint32_t kv_block) {
  return reinterpret_cast<const uint16_t*>(block + kv_blocks(head_dim) * 16 * kPageTokens) + kv_block * 2 * kPageTokens;
}

ELLM_INLINE void fetch_lines(const std::byte* p, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/// A tile of queries as integers: query i's codes at codes + i * stride, x = code * scale.
template <class L>
struct CodedQueries {
  const typename L::Code* codes;
  uint32_t stride;
  const float* scales;                     // that of the query times that of attention
  const int32_t* starts;                   // what takes L::kKeyOffset out of an int8 product
  const float* sums;                       // (query, kMostKvBlocks): codes of each 32 dimensions added up
  const float* offsets;                    // added to all scores of the page: the removed mean's part
  bool add;                                // to the scores that are there, too
};

/// What is added to the scores of tokens 16 v … 16 v + 15 for query i.
template <class L>
ELLM_INLINE L score_base(const CodedQueries<L>& q, uint32_t i, uint32_t v, const float* scores) {
  const L offset = L::broadcast(q.offsets[i]);
  return q.add ? add(L::load(scores + i * kPageTokens + v * 16), offset) : offset;
}

/// Scores of V vectors of tokens from vector `first` on for N queries.
template <class L, int N, int V>
ELLM_INLINE void score_int8(const CodedQueries<L>& q, const std::byte* block, const std::byte* next, uint32_t head_dim,
                            uint32_t first, float* scores) {
  typename L::Ints sum[V][N];
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i / N][i % N] = L::ints(q.starts[i % N]); });
  const uint32_t groups = (head_dim + 3) / 4;
  for (uint32_t g = 0; g < groups; ++g) {
    if (first == 0) fetch_lines(next + g * 128, 128);
    unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
      const auto keys = L::load_key_quads(block + g * 128 + (first + v) * 64);
      unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[v][i] = L::add_dot_key(sum[v][i], keys, q.codes + i * q.stride + g * 4); });
    });
  }
  const float* key_scales = key_scales_of(block, head_dim);
  unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
    const L key_scale = L::load(key_scales + (first + v) * 16);
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
      const L product = mul(L::from_ints(sum[v][i]), key_scale);
      fma(product, L::broadcast(q.scales[i]), score_base(q, i, first + v, scores)).store(scores + i * kPageTokens + (first + v) * 16);
    });
  });
}

/// The part of the key mean's pairs in a page's scores: coefficients (2 pairs, queries) times turns (2 pairs, 32).
template <class L, int N, int V>
ELLM_INLINE void score_turns(const float* coefficients, uint32_t queries, const float* turns, uint32_t rows, uint32_t first, float* scores) {
  L sum[V][N];
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i / N][i % N] = L::broadcast(0.0f); });
  for (uint32_t r = 0; r < rows; ++r) {
    unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
      const L turn = L::load(turns + r * kPageTokens + (first + v) * 16);
      unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[v][i] = fma(L::broadcast(coefficients[r * queries + i]), turn, sum[v][i]); });
    });
  }
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i / N][i % N].store(scores + (i % N) * kPageTokens + (first + i / N) * 16); });
}

template <class L, int N>
ELLM_INLINE void score_int4(const CodedQueries<L>& q, const std::byte* block, const std::byte* next, uint32_t head_dim,
                            uint32_t first, float* scores) {
  L total[N];
  unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { total[i] = L::broadcast(0.0f); });
  const uint32_t groups = (head_dim + 7) / 8;
  for (uint32_t b = 0; b * 4 < groups; ++b) {
    typename L::Ints sum[N];
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i] = L::ints(0); });
    for (uint32_t g = b * 4; g < b * 4 + 4 && g < groups; ++g) {
      if (first == 0) fetch_lines(next + g * 128, 128);
      typename L::Quads low, high;
      L::load_nibble_quads(block + g * 128 + first * 64, low, high);
      unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
        const auto* codes = q.codes + i * q.stride + g * 8;
        sum[i] = L::add_dot_key(L::add_dot_key(sum[i], low, codes), high, codes + 4);
      });
    }
    const uint16_t* ranges = key_ranges_of(block, head_dim, b) + first * 16;
    const L scale = L::load_halves(ranges), least = L::load_halves(ranges + kPageTokens);
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
      total[i] = fma(L::from_ints(sum[i]), scale, total[i]);
      total[i] = fma(L::broadcast(q.sums[i * kMostKvBlocks + b]), least, total[i]);
    });
  }
  unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
    fma(total[i], L::broadcast(q.scales[i]), score_base(q, i, first, scores)).store(scores + i * kPageTokens + first * 16);
  });
}

/// Scores of a page's 32 tokens for n queries, (query, 32).
template <class L>
ELLM_INLINE void score_coded_tile(uint32_t n, KvType type, const CodedQueries<L>& q, const std::byte* block,
                                  const std::byte* next, uint32_t head_dim, float* scores) {
  with_count<L::kByteQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::kByteVectors;
    if (type == KvType::int8) {
      for (uint32_t first = 0; first < 2; first += kVectors) score_int8<L, kCount, kVectors>(q, block, next, head_dim, first, scores);
    } else {
      for (uint32_t first = 0; first < 2; ++first) score_int4<L, kCount>(q, block, next, head_dim, first, scores);
    }
  });
}

template <class L>
ELLM_INLINE void score_turns_tile(uint32_t n, const float* coefficients, uint32_t queries, const float* turns, uint32_t rows, float* scores) {
  with_count<L::kByteQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::kByteVectors;
    for (uint32_t first = 0; first < 2; first += kVectors) {
      score_turns<L, kCount, kVectors>(coefficients, queries, turns, rows, first, scores);
    }
  });
}

/// The probabilities of a tile of queries on a page as integers, p * (the token's scale) = code * scale, and what they are
/// added to: acc * decay (+ least). acc (N, stride).
template <class L>
struct CodedWeights {
  const typename L::Code* codes;           // (query, 32)
  const float *scales, *decay, *least;     // per query; least: of int4
  float* acc;
  uint32_t stride;
};

template <class L, int N, int V>
ELLM_INLINE void weigh_int8(const CodedWeights<L>& w, const std::byte* block, const std::byte* next, uint32_t dim) {
  typename L::Ints sum[N][V];
  unrolled<N * V>([&](auto i) ELLM_INLINE_LAMBDA { sum[i / V][i % V] = L::ints(0); });
  for (uint32_t g = 0; g < kPageTokens / 4; ++g) {
    const uint32_t at = (g * w.stride + dim) * 4;
    fetch_lines(next + at, 64 * V);
    unrolled<V>([&](auto k) ELLM_INLINE_LAMBDA {
      const auto values = L::load_value_quads(block + at + k * 64);
      unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i][k] = L::add_dot_value(sum[i][k], values, w.codes + i * kPageTokens + g * 4); });
    });
  }
  unrolled<N * V>([&](auto i) ELLM_INLINE_LAMBDA {
    float* to = w.acc + (i / V) * w.stride + dim + (i % V) * 16;
    const L kept = mul(L::load(to), L::broadcast(w.decay[i / V]));
    fma(L::from_ints(sum[i / V][i % V]), L::broadcast(w.scales[i / V]), kept).store(to);
  });
}

/// Dimensions 32 b … 32 b + 31 (or fewer, at the end of a row).
template <class L, int N>
ELLM_INLINE void weigh_int4(const CodedWeights<L>& w, const std::byte* block, const std::byte* next, uint32_t b, uint32_t blocks) {
  typename L::Ints sum[N][2];
  unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i][0] = sum[i][1] = L::ints(0); });
  for (uint32_t g = 0; g < kPageTokens / 4; ++g) {
    const uint32_t at = (g * blocks + b) * 64;
    fetch_lines(next + at, 64);
    typename L::Quads low, high;
    L::load_nibble_quads(block + at, low, high);
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
      const auto* codes = w.codes + i * kPageTokens + g * 4;
      sum[i][0] = L::add_dot_value(sum[i][0], low, codes);
      sum[i][1] = L::add_dot_value(sum[i][1], high, codes);
    });
  }
  unrolled<2 * N>([&](auto i) ELLM_INLINE_LAMBDA {
    const uint32_t dim = b * 32 + (i % 2) * 16;
    if (dim >= w.stride) return;
    float* to = w.acc + (i / 2) * w.stride + dim;
    const L kept = fma(L::load(to), L::broadcast(w.decay[i / 2]), L::broadcast(w.least[i / 2]));
    fma(L::from_ints(sum[i / 2][i % 2]), L::broadcast(w.scales[i / 2]), kept).store(to);
  });
}

/// Adds a page's int8 values to n queries.
template <class L>
ELLM_INLINE void weigh_int8_tile(uint32_t n, const CodedWeights<L>& w, const std::byte* block, const std::byte* next) {
  with_count<L::kByteQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::kByteVectors;
    uint32_t dim = 0;
    for (; dim + 16 * kVectors <= w.stride; dim += 16 * kVectors) weigh_int8<L, kCount, kVectors>(w, block, next, dim);
    for (; dim < w.stride; dim += 16) weigh_int8<L, kCount, 1>(w, block, next, dim);
  });
}
/// Adds the values of int4 block b to n queries.
template <class L>
ELLM_INLINE void weigh_int4_tile(uint32_t n, const CodedWeights<L>& w, const std::byte* block, const std::byte* next, uint32_t b,
                                 uint32_t blocks) {
  with_count<L::kByteQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value;
    weigh_int4<L, kCount>(w, block, next, b, blocks);
  });
}

}  // namespace
}  // namespace ellm::kernels
