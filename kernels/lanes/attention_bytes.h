// The two products of attention on pages of int8 or int4, by integers, for a tile of queries: scores (lane = token)
// and weighted values (lane = output dimension). The cache's bytes are widened to pairs of 16 bits and meet codes of
// 16 bits; a widened vector serves all queries of the tile. Written once for all levels; what a level multiplies with
// is in kernels/<level>/lanes.h.
#pragma once
#include "kernels/kv_block.h"
#include "kernels/lanes/attention_ahead.h"
#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

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

/// A tile of queries as integers: query i's codes at codes + i * kQueryStride, x = code * scale.
template <class L>
struct CodedQueries {
  const typename L::Code* codes;
  const float* scales;   // that of the query times that of attention
  const float* sums;     // (query, kMostKvBlocks): codes of each 32 dimensions added up
  const float* offsets;  // (query, 16 pages), at the page: added to all its scores
  bool add;              // to the scores that are there (which begin with the offset)
};

/// What is added to the scores of tokens 16 v … 16 v + 15 for query i.
template <class L>
ELLM_INLINE L score_base(const CodedQueries<L>& q, uint32_t i, uint32_t v, const float* scores) {
  return q.add ? L::load(scores + i * kAttentionSegment + v * 16) : L::broadcast(q.offsets[i * kSegmentPages]);
}

/// Scores of V vectors of tokens from vector `first` on for N queries.
template <class L, int N, int V>
ELLM_INLINE void score_int8(const CodedQueries<L>& q, const std::byte* block, const Ahead<L>& ahead, uint32_t head_dim,
                            uint32_t first, float* scores) {
  typename L::Ints sum[V][N];
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i / N][i % N] = L::ints(0); });
  const uint32_t groups = (head_dim + 3) / 4;
  for (size_t g = 0; g < groups; ++g) {
    ahead.fetch(g, g * 128 + first * 64, V);
    unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
      const auto bytes = L::load_bytes(block + g * 128 + (first + v) * 64);
      unrolled<2>([&](auto pair) ELLM_INLINE_LAMBDA {
        const auto keys = L::template byte_words<pair.value>(bytes);
        unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
          sum[v][i] = L::add_dot(sum[v][i], keys, q.codes + i * kQueryStride + g * 4 + 2 * pair);
        });
      });
    });
  }
  const float* key_scales = key_scales_of(block, head_dim);
  unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
    const L key_scale = L::load(key_scales + (first + v) * 16);
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
      const L product = mul(L::from_ints(sum[v][i]), key_scale);
      fma(product, L::broadcast(q.scales[i]), score_base(q, i, first + v, scores))
          .store(scores + i * kAttentionSegment + (first + v) * 16);
    });
  });
}

/// The key mean's part of a page's scores where it has pairs: offsets, plus coefficients (query, 2 pairs, 16 pages), at
/// the page, times turns (2 pairs, 32).
template <class L, int N, int V>
ELLM_INLINE void score_turns(const float* offsets, const float* coefficients, const float* turns, uint32_t rows,
                             uint32_t first, float* scores) {
  L sum[V][N];
  unrolled<V * N>([&](auto i)
                      ELLM_INLINE_LAMBDA { sum[i / N][i % N] = L::broadcast(offsets[(i % N) * kSegmentPages]); });
  for (uint32_t r = 0; r < rows; ++r) {
    unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
      const L turn = L::load(turns + r * kPageTokens + (first + v) * 16);
      unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
        sum[v][i] = fma(L::broadcast(coefficients[i * kPairFloats + r * kSegmentPages]), turn, sum[v][i]);
      });
    });
  }
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA {
    sum[i / N][i % N].store(scores + (i % N) * kAttentionSegment + (first + i / N) * 16);
  });
}

template <class L, int N>
ELLM_INLINE void score_int4(const CodedQueries<L>& q, const std::byte* block, const Ahead<L>& ahead, uint32_t head_dim,
                            uint32_t first, float* scores) {
  L total[N];
  unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { total[i] = L::broadcast(0.0f); });
  const uint32_t groups = (head_dim + 7) / 8;
  for (uint32_t b = 0; b * 4 < groups; ++b) {
    typename L::Ints sum[N];
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i] = L::ints(0); });
    for (size_t g = b * 4; g < b * 4 + 4 && g < groups; ++g) {
      ahead.fetch(g, g * 128 + first * 64, 1);
      const auto bytes = L::load_bytes(block + g * 128 + first * 64);
      unrolled<4>([&](auto pair) ELLM_INLINE_LAMBDA {
        const auto keys = L::template nibble_words<pair.value>(bytes);
        unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
          sum[i] = L::add_dot(sum[i], keys, q.codes + i * kQueryStride + g * 8 + 2 * pair);
        });
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
    fma(total[i], L::broadcast(q.scales[i]), score_base(q, i, first, scores))
        .store(scores + i * kAttentionSegment + first * 16);
  });
}

/// Scores of a page's 32 tokens for n queries, (query, 512) at the page.
template <class L>
ELLM_INLINE void score_coded_tile(uint32_t n, KvType type, const CodedQueries<L>& q, const std::byte* block,
                                  const Ahead<L>& ahead, uint32_t head_dim, float* scores) {
  with_count<L::kWordQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::kWordVectors;
    if (type == KvType::int8) {
      for (uint32_t first = 0; first < 2; first += kVectors) {
        score_int8<L, kCount, kVectors>(q, block, ahead, head_dim, first, scores);
      }
    } else {
      for (uint32_t first = 0; first < 2; ++first) score_int4<L, kCount>(q, block, ahead, head_dim, first, scores);
    }
  });
}

template <class L>
ELLM_INLINE void score_turns_tile(uint32_t n, const float* offsets, const float* coefficients, const float* turns,
                                  uint32_t rows, float* scores) {
  with_count<L::kWordQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::kWordVectors;
    for (uint32_t first = 0; first < 2; first += kVectors) {
      score_turns<L, kCount, kVectors>(offsets, coefficients, turns, rows, first, scores);
    }
  });
}

/// The codes of a tile of queries, (query, 512), and the sums that their products with V are added to, (query, stride).
template <class L>
struct CodedWeights {
  const typename L::Code* codes;
  int32_t* sums;
  uint32_t stride;
};

// Where the values of V vectors of 16 dimensions lie in a page: group g (four tokens) at `first` + g * `group_bytes`.
template <class L, int V>
struct Int8Values {
  size_t first, group_bytes;
  static constexpr int kLines = V;
  template <int K>
  ELLM_INLINE typename L::Bytes load(const std::byte* group) const {
    return L::load_bytes(group + K * 64);
  }
  template <int K, int Pair>
  ELLM_INLINE typename L::Words words(typename L::Bytes bytes) const {
    return L::template byte_words<Pair>(bytes);
  }
};
/// The low halves (Half 0), then the high ones, of the same bytes.
template <class L, int Half>
struct Int4Values {
  size_t first, group_bytes;
  static constexpr int kLines = 1;
  template <int K>
  ELLM_INLINE typename L::Bytes load(const std::byte* group) const {
    return L::load_bytes(group);
  }
  template <int K, int Pair>
  ELLM_INLINE typename L::Words words(typename L::Bytes bytes) const {
    return L::template nibble_words<2 * (Half + K) + Pair>(bytes);
  }
};

/// Adds V vectors of dimensions from `dim` on of pages [from, to) to the sums of N queries.
template <class L, int N, int V, class Values, class Blocks, class Next>
ELLM_INLINE void weigh_words(const CodedWeights<L>& w, uint32_t from, uint32_t to, uint32_t dim, const Values& values,
                             Blocks block, Next ahead) {
  typename L::Ints sum[N][V];
  unrolled<N * V>([&](auto i) ELLM_INLINE_LAMBDA {
    sum[i / V][i % V] = L::load_ints(w.sums + (i / V) * w.stride + dim + (i % V) * 16);
  });
  for (uint32_t page = from; page < to; ++page) {
    const auto* codes = w.codes + page * kPageTokens;
    const std::byte* group = block(page) + values.first;
    const Ahead<L> next = ahead(page);
    for (uint32_t g = 0; g < kPageTokens / 4; ++g, group += values.group_bytes, codes += 4) {
      next.fetch(g, values.first + g * values.group_bytes, Values::kLines);
      unrolled<V>([&](auto k) ELLM_INLINE_LAMBDA {
        const auto bytes = values.template load<k.value>(group);
        unrolled<2>([&](auto pair) ELLM_INLINE_LAMBDA {
          const auto words = values.template words<k.value, pair.value>(bytes);
          unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
            sum[i][k] = L::add_dot(sum[i][k], words, codes + i * kAttentionSegment + 2 * pair);
          });
        });
      });
    }
  }
  unrolled<N * V>([&](auto i) ELLM_INLINE_LAMBDA {
    L::store_ints(sum[i / V][i % V], w.sums + (i / V) * w.stride + dim + (i % V) * 16);
  });
}

/// Adds the int8 values of pages [from, to) of a segment to n queries. `block(page)`, `ahead(page)`: what is read, and
/// what is asked for meanwhile.
template <class L, class Blocks, class Next>
ELLM_INLINE void weigh_int8_tile(uint32_t n, const CodedWeights<L>& w, uint32_t from, uint32_t to, Blocks block,
                                 Next ahead) {
  with_count<L::kWordQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::weigh_vectors(kCount);
    const size_t group_bytes = size_t{w.stride} * 4;
    uint32_t dim = 0;
    for (; dim + 16 * kVectors <= w.stride; dim += 16 * kVectors) {
      weigh_words<L, kCount, kVectors>(w, from, to, dim, Int8Values<L, kVectors>{dim * 4, group_bytes}, block, ahead);
    }
    for (; dim < w.stride; dim += 16)
      weigh_words<L, kCount, 1>(w, from, to, dim, Int8Values<L, 1>{dim * 4, group_bytes}, block, ahead);
  });
}
/// The same of int4: dimensions 32 b … 32 b + 31 (where a row ends within them, `sums` has room for what is behind).
template <class L, class Blocks, class Next>
ELLM_INLINE void weigh_int4_tile(uint32_t n, const CodedWeights<L>& w, uint32_t from, uint32_t to, Blocks block,
                                 Next ahead, uint32_t b, uint32_t blocks) {
  with_count<L::kWordQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value;
    const size_t first = size_t{b} * 64, group_bytes = size_t{blocks} * 64;
    if constexpr (L::weigh_vectors(kCount) > 1) {
      weigh_words<L, kCount, 2>(w, from, to, 0, Int4Values<L, 0>{first, group_bytes}, block, ahead);
    } else {
      weigh_words<L, kCount, 1>(w, from, to, 0, Int4Values<L, 0>{first, group_bytes}, block, ahead);
      weigh_words<L, kCount, 1>(w, from, to, 16, Int4Values<L, 1>{first, group_bytes}, block,
                                [](uint32_t) ELLM_INLINE_LAMBDA { return Ahead<L>{}; });
    }
  });
}

}  // namespace
}  // namespace ellm::kernels
