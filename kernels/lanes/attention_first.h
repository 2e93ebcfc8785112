// What rounding to int8 or int4 left of a context's first token (HACKING.md, "KV types"): what it rounds to shifts
// all tokens after it.
#pragma once
#include "kernels/lanes/attention_block.h"
#include "kernels/lanes/attention_bytes.h"
#include "kernels/lanes/quantise.h"
#include "kernels/lanes/rotation.h"

namespace ellm::kernels {
namespace {

/// The rest of slot 0 of a block of `bytes`: code * (scale / 254), (head_dim padded to 64). Of int4, scale(b) is that
/// of 32 dimensions.
template <class Scale>
ELLM_INLINE void read_rest(const std::byte* block, size_t bytes, KvType type, uint32_t head_dim, Scale scale,
                           float* to) {
  const size_t padded = kv_rest_bytes(type, head_dim);
  const auto* codes = reinterpret_cast<const int8_t*>(block + bytes - padded);
  for (uint32_t d = 0; d < padded; d += kKvBlock) {
    const float part = d < head_dim ? scale(d / kKvBlock) / kRestParts : 0.0f;
    for (uint32_t i = d; i < d + kKvBlock; ++i) to[i] = static_cast<float>(codes[i]) * part;
  }
}

template <class L>
ELLM_INLINE float half_at(const uint16_t* halves) {
  return L::load_halves(halves).first();
}

/// Calls f(i, block) for the queries that see the context's first token, with its block of `of`; `changed` where that
/// is another than of the query before.
template <class L, class F>
ELLM_INLINE void for_first_blocks(const QueryBlock& b, const std::byte* const* of, QueryRange queries,
                                  const AttentionScratch<L>& s, F f) {
  const std::byte* last = nullptr;
  for (uint32_t i = queries.from; i < queries.to; ++i) {
    if (s.begin[i] != 0 || s.end[i] == 0) continue;
    const std::byte* block = b.segment_blocks(of, i, 0)[0];
    f(i, block, block != last);
    last = block;
  }
}

/// Adds to the first token's scores what its key's rest makes: 16 lanes, then the tree, times scale.
template <class L>
void refine_first_key(const QueryBlock& b, QueryRange queries, AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  const KvType type = b.args.k_type;
  alignas(64) float rest[kMaxHeadDim];
  for_first_blocks(b, b.args.k_blocks, queries, s, [&](uint32_t i, const std::byte* block, bool changed) {
    if (changed) {
      const auto scale = [&](uint32_t kv_block) {
        return type == KvType::int8 ? key_scales_of(block, head_dim)[0]
                                    : half_at<L>(key_ranges_of(block, head_dim, kv_block));
      };
      read_rest(block, k_block_bytes(type, head_dim), type, head_dim, scale, rest);
      rotate(rest, head_dim);
      const float part = 1.0f / static_cast<float>(rotation_block(head_dim));
      for (uint32_t d = 0; d < head_dim; ++d) rest[d] *= part;
    }
    L sum = L::broadcast(0.0f);
    for (uint32_t d = 0; d < head_dim; d += 16)
      sum = fma(values_from<L>(b.query(i), d, head_dim), L::load(rest + d), sum);
    s.scores_of(i)[0] += L::template fold<typename L::Sum>(sum).first() * b.args.scale;
  });
}

/// Adds the rest of the first token's value, times its probability.
template <class L>
void refine_first_value(const QueryBlock& b, QueryRange queries, SoftmaxState& state, AttentionScratch<L>& s) {
  const uint32_t head_dim = b.args.head_dim;
  const KvType type = b.args.v_type;
  alignas(64) float rest[kMaxHeadDim];
  for_first_blocks(b, b.args.v_blocks, queries, s, [&](uint32_t i, const std::byte* block, bool changed) {
    if (changed) {
      const auto scale = [&](uint32_t kv_block) {
        return type == KvType::int8 ? value_scales_of(block, head_dim)[0]
                                    : half_at<L>(value_ranges_of(block, head_dim, kv_block));
      };
      read_rest(block, v_block_bytes(type, head_dim), type, head_dim, scale, rest);
    }
    float* values = state.values + i * b.stride;
    const L weight = L::broadcast(s.first_weights[i]);
    for (uint32_t d = 0; d < b.stride; d += 16) fma(weight, L::load(rest + d), L::load(values + d)).store(values + d);
  });
}

}  // namespace
}  // namespace ellm::kernels
