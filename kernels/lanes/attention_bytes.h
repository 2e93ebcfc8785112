// The two products of attention on pages of int8 or int4, by integers, for a tile of queries: scores (lane = token)
// and weighted values (lane = output dimension). The cache's bytes are widened to pairs of 16 bits and meet codes of
// 16 bits; a widened vector serves all queries of the tile. Written once for all levels; what a level multiplies with
// is in kernels/<level>/lanes.h.
#pragma once
#include "kernels/kv_block.h"
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

ELLM_INLINE void fetch_lines(const std::byte* p, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/// Asks for the scales of a block that ends at `end`.
ELLM_INLINE void fetch_scales(const std::byte* end, KvType type, uint32_t head_dim) {
  const size_t scales = kv_scale_bytes(type, head_dim);
  fetch_lines(end - kv_rest_bytes(type, head_dim) - scales, static_cast<uint32_t>(scales));
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

/// Scores of V vectors of tokens from vector `first` on for N queries. `fetch`: a block to ask for meanwhile, or null.
template <class L, int N, int V>
ELLM_INLINE void score_int8(const CodedQueries<L>& q, const std::byte* block, const std::byte* fetch, uint32_t head_dim,
                            uint32_t first, float* scores) {
  typename L::Ints sum[V][N];
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i / N][i % N] = L::ints(0); });
  const uint32_t groups = (head_dim + 3) / 4;
  for (size_t g = 0; g < groups; ++g) {
    if (fetch) fetch_lines(fetch + g * 128, 128);
    unrolled<V>([&](auto v) ELLM_INLINE_LAMBDA {
      const auto keys = L::load_words(block + g * 128 + (first + v) * 64);
      unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
        sum[v][i] = L::add_dot(sum[v][i], keys, q.codes + i * kQueryStride + g * 4);
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

/// The key mean's part of a page's scores where it has pairs: offsets, plus coefficients (2 pairs, queries) times turns
/// (2 pairs, 32).
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
        sum[v][i] = fma(L::broadcast(coefficients[r * kMaxBlockQueries + i]), turn, sum[v][i]);
      });
    });
  }
  unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA {
    sum[i / N][i % N].store(scores + (i % N) * kAttentionSegment + (first + i / N) * 16);
  });
}

template <class L, int N>
ELLM_INLINE void score_int4(const CodedQueries<L>& q, const std::byte* block, const std::byte* fetch, uint32_t head_dim,
                            uint32_t first, float* scores) {
  L total[N];
  unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { total[i] = L::broadcast(0.0f); });
  const uint32_t groups = (head_dim + 7) / 8;
  for (uint32_t b = 0; b * 4 < groups; ++b) {
    typename L::Ints sum[N];
    unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA { sum[i] = L::ints(0); });
    for (size_t g = b * 4; g < b * 4 + 4 && g < groups; ++g) {
      if (fetch) fetch_lines(fetch + g * 128, 128);
      typename L::Words low, high;
      L::load_nibble_words(block + g * 128 + first * 64, low, high);
      unrolled<N>([&](auto i) ELLM_INLINE_LAMBDA {
        const auto* codes = q.codes + i * kQueryStride + g * 8;
        sum[i] = L::add_dot(L::add_dot(sum[i], low, codes), high, codes + 4);
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
                                  const std::byte* fetch, uint32_t head_dim, float* scores) {
  with_count<L::kWordQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::kWordVectors;
    if (type == KvType::int8) {
      for (uint32_t first = 0; first < 2; first += kVectors) {
        score_int8<L, kCount, kVectors>(q, block, first == 0 ? fetch : nullptr, head_dim, first, scores);
      }
    } else {
      for (uint32_t first = 0; first < 2; ++first)
        score_int4<L, kCount>(q, block, first == 0 ? fetch : nullptr, head_dim, first, scores);
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

template <class L, int N, int V, class Load>
ELLM_INLINE void weigh_words(const CodedWeights<L>& w, uint32_t from, uint32_t to, uint32_t dim, Load load) {
  typename L::Ints sum[N][V];
  unrolled<N * V>([&](auto i) ELLM_INLINE_LAMBDA {
    sum[i / V][i % V] = L::load_ints(w.sums + (i / V) * w.stride + dim + (i % V) * 16);
  });
  for (uint32_t page = from; page < to; ++page) {
    const auto* codes = w.codes + page * kPageTokens;
    for (uint32_t g = 0; g < kPageTokens / 4; ++g) {
      typename L::Words words[V];
      load(page, g, words);
      unrolled<V * N>([&](auto i) ELLM_INLINE_LAMBDA {
        sum[i % N][i / N] = L::add_dot(sum[i % N][i / N], words[i / N], codes + (i % N) * kAttentionSegment + g * 4);
      });
    }
  }
  unrolled<N * V>([&](auto i) ELLM_INLINE_LAMBDA {
    L::store_ints(sum[i / V][i % V], w.sums + (i / V) * w.stride + dim + (i % V) * 16);
  });
}

/// Adds the int8 values of pages [from, to) of a segment to n queries; page p is blocks[p]. `fetch(p)`: what to ask
/// for.
template <class L, class Blocks, class Fetch>
ELLM_INLINE void weigh_int8_tile(uint32_t n, const CodedWeights<L>& w, uint32_t from, uint32_t to, Blocks block,
                                 Fetch fetch) {
  with_count<L::kWordQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value, kVectors = L::weigh_vectors(kCount);
    const auto dims = [&](uint32_t dim, auto vectors, bool first) ELLM_INLINE_LAMBDA {
      weigh_words<L, kCount, vectors.value>(
          w, from, to, dim, [&](uint32_t page, uint32_t g, auto& words) ELLM_INLINE_LAMBDA {
            const uint32_t at = g * w.stride * 4;
            if (first) {
              if (const std::byte* next = fetch(page)) fetch_lines(next + at, w.stride * 4);
            }
            unrolled<vectors.value>(
                [&](auto k) ELLM_INLINE_LAMBDA { words[k] = L::load_words(block(page) + at + dim * 4 + k * 64); });
          });
    };
    uint32_t dim = 0;
    for (; dim + 16 * kVectors <= w.stride; dim += 16 * kVectors) dims(dim, Index<kVectors>{}, dim == 0);
    for (; dim < w.stride; dim += 16) dims(dim, Index<1>{}, dim == 0);
  });
}
/// The same of int4: dimensions 32 b … 32 b + 31 (where a row ends within them, `sums` has room for what is behind).
template <class L, class Blocks, class Fetch>
ELLM_INLINE void weigh_int4_tile(uint32_t n, const CodedWeights<L>& w, uint32_t from, uint32_t to, Blocks block,
                                 Fetch fetch, uint32_t b, uint32_t blocks) {
  with_count<L::kWordQueries>(n, [&](auto count) ELLM_INLINE_LAMBDA {
    constexpr int kCount = count.value;
    weigh_words<L, kCount, 2>(w, from, to, 0, [&](uint32_t page, uint32_t g, auto& words) ELLM_INLINE_LAMBDA {
      const uint32_t at = (g * blocks + b) * 64;
      if (const std::byte* next = fetch(page)) fetch_lines(next + at, 64);
      L::load_nibble_words(block(page) + at, words[0], words[1]);
    });
  });
}

}  // namespace
}  // namespace ellm::kernels
