// What rounding to int8 or int4 left of a context's first token (HACKING.md, "KV types"): what it rounds to shifts
// all tokens after it.
#pragma once
#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/attention_bytes.h"
#include "kernels/lanes/quantise.h"
#include "kernels/lanes/rotation.h"

namespace ellm::kernels {
namespace {

/// Blocks of K or of V.
struct StoredBlocks {
  const std::byte* const* of;
  KvType type;
  size_t bytes;  // of one
};

/// The rest of slot 0 of a block: code * (scale / 254), (head_dim padded to 64).
template <class L>
ELLM_INLINE void read_rest(const std::byte* block, const StoredBlocks& stored, uint32_t head_dim, float* to) {
  const size_t padded = kv_rest_bytes(stored.type, head_dim);
  const std::byte *rest = block + stored.bytes - padded, *scales = rest - kv_scale_bytes(stored.type, head_dim);
  const auto scale = [&](uint32_t kv_block) ELLM_INLINE_LAMBDA {
    if (stored.type == KvType::int8) return *reinterpret_cast<const float*>(scales);
    return L::load_halves(reinterpret_cast<const uint16_t*>(scales) + kv_block * 2 * kPageTokens).first();
  };
  const auto* codes = reinterpret_cast<const int8_t*>(rest);
  for (uint32_t d = 0; d < padded; d += kKvBlock) {
    const float part = d < head_dim ? scale(d / kKvBlock) / kRestParts : 0.0f;
    for (uint32_t i = d; i < d + kKvBlock; ++i) to[i] = static_cast<float>(codes[i]) * part;
  }
}

/// Calls f(i, rest) for the queries that see the context's first token; `prepare(rest)` before, once for each token.
template <class L, class Prepare, class F>
ELLM_INLINE void for_first_rests(const QueryBlock& b, const StoredBlocks& stored, QueryRange queries,
                                 const AttentionScratch<L>& s, Prepare prepare, F f) {
  alignas(64) float rest[kMaxHeadDim];
  const std::byte* last = nullptr;
  for (uint32_t i = queries.from; i < queries.to; ++i) {
    if (s.begin[i] != 0 || s.end[i] == 0) continue;
    const std::byte* block = b.segment_blocks(stored.of, i, 0)[0];
    if (block != last) {
      read_rest<L>(block, stored, b.args.head_dim, rest);
      prepare(rest);
    }
    last = block;
    f(i, rest);
  }
}

/// Adds to the first token's scores what its key's rest makes: 16 lanes, then the tree, times scale.
template <class L>
void refine_first_key(const QueryBlock& b, QueryRange queries, AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  const StoredBlocks keys{b.args.k_blocks, b.args.k_type, k_block_bytes(b.args.k_type, head_dim)};
  const auto turn_back = [&](float* rest) {
    rotate<L>(rest, head_dim);
    const float part = 1.0f / static_cast<float>(rotation_block(head_dim));
    for (uint32_t d = 0; d < head_dim; ++d) rest[d] *= part;
  };
  for_first_rests(b, keys, queries, s, turn_back, [&](uint32_t i, const float* rest) {
    L sum = L::broadcast(0.0f);
    for (uint32_t d = 0; d < head_dim; d += 16)
      sum = fma(values_from<L>(b.query(i), d, head_dim), L::load(rest + d), sum);
    s.scores_of(i)[0] += L::template fold<typename L::Sum>(sum).first() * b.args.scale;
  });
}

/// Adds the rest of the first token's value, times its probability.
template <class L>
void refine_first_value(const QueryBlock& b, QueryRange queries, SoftmaxState& state, AttentionScratch<L>& s) {
  const StoredBlocks values{b.args.v_blocks, b.args.v_type, v_block_bytes(b.args.v_type, b.args.head_dim)};
  for_first_rests(
      b, values, queries, s, [](float*) {},
      [&](uint32_t i, const float* rest) {
        float* to = state.values + i * b.stride;
        const L weight = L::broadcast(s.first_weights[i]);
        for (uint32_t d = 0; d < b.stride; d += 16) fma(weight, L::load(rest + d), L::load(to + d)).store(to + d);
      });
}

}  // namespace
}  // namespace ellm::kernels
