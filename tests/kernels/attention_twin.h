// A KV cache in blocks for the attention tests, and attention over it in double precision: a naive full softmax that
// reads the blocks by the layout that kernels/kv_block.h describes.
#pragma once
#include <algorithm>
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
using kernels::kPageTokens;
using kernels::KvType;

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
  /// K as it is stored: of int8 and int4 rotated.
  double k(uint32_t token, uint32_t d) const {
    const std::byte* block = k_blocks_[token / kPageTokens];
    const uint32_t t = token % kPageTokens;
    switch (k_type_) {
      case KvType::f16: return half(block, d * kPageTokens + t);
      case KvType::f32: return scale(block, 0, d * kPageTokens + t);
      case KvType::int8:
        return (byte(block, (d / 4 * kPageTokens + t) * 4 + d % 4) +
                rest(token, block, k_block_bytes(k_type_, head_dim_), d)) *
               scale(block, (head_dim_ + 3) / 4 * 4 * kPageTokens, t);
      case KvType::int4: break;
    }
    const double code = nibble(block, (d / 8 * kPageTokens + t) * 4 + d % 4, d % 8 >= 4);
    return ranged(code + rest(token, block, k_block_bytes(k_type_, head_dim_), d), block,
                  (head_dim_ + 7) / 8 * 4 * kPageTokens, d / 32, t);
  }
  double v(uint32_t token, uint32_t d) const {
    const std::byte* block = v_blocks_[token / kPageTokens];
    const uint32_t t = token % kPageTokens, stride = (head_dim_ + 15) / 16 * 16, blocks = (head_dim_ + 31) / 32;
    switch (v_type_) {
      case KvType::f16: return half(block, t * stride + d);
      case KvType::f32: return scale(block, 0, t * stride + d);
      case KvType::int8:
        return (byte(block, (t / 4 * stride + d) * 4 + t % 4) +
                rest(token, block, v_block_bytes(v_type_, head_dim_), d)) *
               scale(block, stride * kPageTokens, t);
      case KvType::int4: break;
    }
    const double code = nibble(block, (t / 4 * blocks + d / 32) * 64 + d % 16 * 4 + t % 4, d % 32 >= 16);
    return ranged(code + rest(token, block, v_block_bytes(v_type_, head_dim_), d), block, blocks * 16 * kPageTokens,
                  d / 32, t);
  }
  /// A token's scale of V's dimension d; 0 for types without.
  double v_scale(uint32_t token, uint32_t d) const {
    const std::byte* block = v_blocks_[token / kPageTokens];
    const uint32_t t = token % kPageTokens, stride = (head_dim_ + 15) / 16 * 16, blocks = (head_dim_ + 31) / 32;
    if (v_type_ == KvType::int8) return scale(block, stride * kPageTokens, t);
    if (v_type_ == KvType::int4) return half(block + blocks * 16 * kPageTokens, d / 32 * 64 + t);
    return 0;
  }
  KvType k_type() const { return k_type_; }
  KvType v_type() const { return v_type_; }
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
  static double nibble(const std::byte* p, size_t i, bool high) {
    return static_cast<double>(std::to_integer<unsigned>(p[i]) >> (high ? 4 : 0) & 15);
  }
  /// code * scale + minimum of a block of 32 dimensions.
  static double ranged(double code, const std::byte* p, size_t values, size_t block, size_t t) {
    return code * half(p + values, block * 64 + t) + half(p + values, block * 64 + 32 + t);
  }
  /// What rounding left of the first token's dimension d, in scales; 0 of others.
  double rest(uint32_t token, const std::byte* p, size_t block_bytes, uint32_t d) const {
    return token == 0 ? byte(p, block_bytes - (head_dim_ + 63) / 64 * 64 + d) / 254 : 0;
  }
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

/// H x for Hadamard matrices of the largest power of two in n, in floats, by the definition's recursion.
inline void rotate_row(float* x, uint32_t n, uint32_t block) {
  if (block == 1) return;
  for (uint32_t part = 0; part < n; part += block) {
    rotate_row(x + part, block / 2, block / 2);
    rotate_row(x + part + block / 2, block / 2, block / 2);
    for (uint32_t i = part; i < part + block / 2; ++i) {
      const float a = x[i], b = x[i + block / 2];
      x[i] = a + b;
      x[i + block / 2] = a - b;
    }
  }
}

/// What the scores of K's type are computed with: the query itself, or rotated and rounded to 16 bits.
inline std::vector<double> query_of(const KvBlocks& kv, const float* q, uint32_t head_dim) {
  if (!kernels::is_quantised(kv.k_type())) return {q, q + head_dim};
  std::vector<float> x(q, q + head_dim);
  uint32_t block = 1;
  while (head_dim % (2 * block) == 0) block *= 2;
  rotate_row(x.data(), head_dim, block);
  float a = 0;
  for (float& v : x) a = std::max(a, std::fabs(v /= static_cast<float>(block)));
  std::vector<double> out(head_dim);
  if (a < 1e-30f) return out;
  for (uint32_t d = 0; d < head_dim; ++d) out[d] = double{std::nearbyint(x[d] * (32767 / a))} * (a / 32767);
  return out;
}

/// q times what K of a token is stored without, in double.
inline double key_mean_score(const kernels::KeyMean* mean, const float* q, uint32_t head_dim, uint32_t position) {
  if (mean == nullptr) return 0;
  const uint32_t page = position / kPageTokens;
  std::vector<double> m(mean->mean, mean->mean + head_dim);
  for (uint32_t i = 0; i < mean->half; ++i) {
    const uint32_t x = mean->neox ? i : 2 * i, y = mean->neox ? i + mean->half : 2 * i + 1;
    const size_t angle = (page / 16 * mean->half + i) * 16 + page % 16;
    const double c = mean->cos[angle], s = mean->sin[angle], a = m[x], b = m[y];
    m[x] = a * c - b * s;
    m[y] = b * c + a * s;
  }
  double sum = 0;
  for (uint32_t d = 0; d < head_dim; ++d) sum += q[d] * m[d] * mean->part[d];
  for (uint32_t p = 0; p < mean->pairs; ++p) {
    const uint32_t x = mean->pair_dims[2 * p], y = mean->pair_dims[2 * p + 1];
    const double c = mean->turns[2 * p * 32 + position % 32], s = mean->turns[(2 * p + 1) * 32 + position % 32];
    sum += q[x] * (m[x] * c - m[y] * s) + q[y] * (m[y] * c + m[x] * s);
  }
  return sum;
}

/// One query over the tokens 0 … position, or the last `window` of them, scores capped where `cap` is not 0. bound[d] is how far a float computation in the order of HACKING.md may be off:
/// u = 2^-24 times (steps of the longest chain) relative to the sum of magnitudes.
struct TwinResult {
  std::vector<double> out, bound;
};
inline TwinResult attention_twin(const KvBlocks& kv, const float* q, uint32_t head_dim, uint32_t position, double scale,
                                 uint32_t window = 0, double cap = 0, const kernels::KeyMean* mean = nullptr) {
  const double u = 0x1p-24;
  const uint32_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;
  const std::vector<double> query = query_of(kv, q, head_dim);
  std::vector<double> score(position + 1);
  double most = -std::numeric_limits<double>::infinity(), score_error = 0;
  for (uint32_t t = first; t <= position; ++t) {
    double sum = key_mean_score(mean, q, head_dim, t), magnitude = 0;
    for (uint32_t d = 0; mean && d < head_dim; ++d) magnitude += 100 * std::fabs(q[d]);  // of the mean: at most 40
    for (uint32_t d = 0; d < head_dim; ++d) {
      sum += query[d] * kv.k(t, d);
      magnitude += std::fabs(query[d]) * (std::fabs(kv.k(t, d)) + (kv.k_type() == KvType::int4 ? 16 : 0));
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
    // Probabilities are rounded to 1/32767 of the segment's largest (times scales): half of that for each token.
    double rounding = 0;
    for (uint32_t segment = first / 512; segment <= position / 512; ++segment) {
      double top = 0, codes = 0;
      for (uint32_t t = std::max(first, segment * 512); t <= position && t < (segment + 1) * 512; ++t) {
        const double scale_of = kv.v_scale(t, d);
        top = std::max(top, score[t] / total * scale_of);
        if (scale_of > 0) codes += kv.v_type() == KvType::int4 ? 15 : std::fabs(kv.v(t, d)) / scale_of;
      }
      rounding += 0.501 / 32767 * top * codes;
    }
    // Weights and their sum are off by the error of a score difference and of exp each; p, V and the sums add their
    // steps.
    r.bound[d] = magnitude * (std::expm1(4 * score_error) + (position + 100) * u) + rounding + 1e-37;
  }
  return r;
}

}  // namespace ellm::tests
