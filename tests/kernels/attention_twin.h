// A KV cache in blocks for the attention tests, and attention over it in double precision: a naive full softmax that reads
// the blocks by the layout that kernels/kv_block.h describes.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/kernel_set.h"
#include "tests/kernels/guarded.h"

namespace ellm::tests {

using kernels::AttentionArgs;
using kernels::KernelSet;
using kernels::KvType;
using kernels::kPageTokens;

/// Blocks of one layer and head, each at the end of readable memory. Slots that were not stored are full of NaN.
class KvBlocks {
 public:
  KvBlocks(KvType k_type, KvType v_type, uint32_t head_dim, uint32_t tokens)
      : k_type_(k_type), v_type_(v_type), head_dim_(head_dim) {
    for (uint32_t page = 0; page * kPageTokens < tokens; ++page) {
      add(k_, k_blocks_, k_block_bytes(k_type, head_dim));
      add(v_, v_blocks_, v_block_bytes(v_type, head_dim));
    }
  }
  void store(const KernelSet& set, uint32_t token, const float* k, const float* v) {
    set.store_k(k_type_, head_dim_, k, k_[token / kPageTokens]->data(), token % kPageTokens);
    set.store_v(v_type_, head_dim_, v, v_[token / kPageTokens]->data(), token % kPageTokens);
  }
  double k(uint32_t token, uint32_t d) const {
    const std::byte* block = k_blocks_[token / kPageTokens];
    const uint32_t t = token % kPageTokens;
    if (k_type_ == KvType::f16) return half(block, d * kPageTokens + t);
    if (k_type_ == KvType::f32) return scale(block, 0, d * kPageTokens + t);
    const size_t values = (head_dim_ + 3) / 4 * 4 * kPageTokens;
    return byte(block, (d / 4 * kPageTokens + t) * 4 + d % 4) * scale(block, values, t);
  }
  double v(uint32_t token, uint32_t d) const {
    const std::byte* block = v_blocks_[token / kPageTokens];
    const uint32_t t = token % kPageTokens, stride = (head_dim_ + 15) / 16 * 16;
    if (v_type_ == KvType::f16) return half(block, t * stride + d);
    if (v_type_ == KvType::f32) return scale(block, 0, t * stride + d);
    return byte(block, t * stride + d) * scale(block, stride * kPageTokens, t);
  }
  AttentionArgs args() const {
    AttentionArgs a{};
    a.head_dim = head_dim_;
    a.k_type = k_type_;
    a.v_type = v_type_;
    a.k_blocks = k_blocks_.data();
    a.v_blocks = v_blocks_.data();
    return a;
  }

 private:
  using Blocks = std::vector<std::unique_ptr<Guarded<std::byte>>>;
  static void add(Blocks& blocks, std::vector<const std::byte*>& pointers, size_t bytes) {
    blocks.push_back(std::make_unique<Guarded<std::byte>>(bytes));
    std::memset(blocks.back()->data(), 0xff, bytes);
    pointers.push_back(blocks.back()->data());
  }
  static double half(const std::byte* p, size_t i) {
    uint16_t h;
    std::memcpy(&h, p + 2 * i, 2);
    return kernels::f16_to_f32(h);
  }
  static double byte(const std::byte* p, size_t i) { return static_cast<int8_t>(p[i]); }
  static double scale(const std::byte* p, size_t values, size_t t) {
    float f;
    std::memcpy(&f, p + values + t * 4, 4);
    return f;
  }

  KvType k_type_, v_type_;
  uint32_t head_dim_;
  Blocks k_, v_;
  std::vector<const std::byte*> k_blocks_, v_blocks_;
};

/// One query over the tokens 0 … position, or the last `window` of them, scores capped where `cap` is not 0. bound[d] is how far a float computation in the order of HACKING.md may be off:
/// u = 2^-24 times (steps of the longest chain) relative to the sum of magnitudes.
struct TwinResult {
  std::vector<double> out, bound;
};
inline TwinResult attention_twin(const KvBlocks& kv, const float* q, uint32_t head_dim, uint32_t position, double scale,
                                 uint32_t window = 0, double cap = 0) {
  const double u = 0x1p-24;
  const uint32_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;
  std::vector<double> score(position + 1);
  double most = -std::numeric_limits<double>::infinity(), score_error = 0;
  for (uint32_t t = first; t <= position; ++t) {
    double sum = 0, magnitude = 0;
    for (uint32_t d = 0; d < head_dim; ++d) {
      sum += q[d] * kv.k(t, d);
      magnitude += std::fabs(q[d] * kv.k(t, d));
    }
    score[t] = sum * scale;
    if (cap != 0) score[t] = cap * std::tanh(score[t] / cap);
    most = std::max(most, score[t]);
    // The cap's slope is at most 1; exp, its argument, quotient and difference add a few roundings of the cap.
    score_error = std::max(score_error, (head_dim + 4) * u * magnitude * scale + 8 * u * cap);
  }
  double total = 0;
  for (uint32_t t = first; t <= position; ++t) total += score[t] = std::exp(score[t] - most);
  TwinResult r{std::vector<double>(head_dim), std::vector<double>(head_dim)};
  for (uint32_t d = 0; d < head_dim; ++d) {
    double magnitude = 0;
    for (uint32_t t = first; t <= position; ++t) {
      r.out[d] += score[t] / total * kv.v(t, d);
      magnitude += score[t] / total * std::fabs(kv.v(t, d));
    }
    // Weights and their sum are off by the error of a score difference and of exp each; p, V and the sums add their steps.
    r.bound[d] = magnitude * (std::expm1(4 * score_error) + (position + 100) * u) + 1e-37;
  }
  return r;
}

}  // namespace ellm::tests
