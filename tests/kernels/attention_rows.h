// What the tests of attention share: rows of queries over a KV cache, and fixtures over levels and KV types.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/kernels/attention_twin.h"
#include "tests/kernels/levels.h"
#include "tests/kernels/same_bits.h"

namespace ellm::tests {

inline constexpr float kUntouched = 12345.5f;

/// Rows of queries with room between them, and the same for outputs, in guarded memory.
struct Rows {
  uint32_t rows, group, head_dim;
  size_t q_stride, out_stride;
  uint32_t window = 0;
  float soft_cap = 0;
  Guarded<float> q, out;

  Rows(uint32_t r, uint32_t g, uint32_t h)
      : rows(r), group(g), head_dim(h), q_stride(g * h + 3), out_stride(g * h + 5), q((r - 1) * q_stride + g * h),
        out((r - 1) * out_stride + g * h) {
    std::fill(q.begin(), q.end(), 0.0f);
    std::fill(out.begin(), out.end(), kUntouched);
  }
  void fill(std::mt19937& rng, float size = 1) {
    std::normal_distribution<float> normal(0, size);
    for (float& x : q) x = normal(rng);
  }
  AttentionArgs args(const KvBlocks& kv, uint32_t first_position, uint32_t row = 0, uint32_t n = 0) const {
    AttentionArgs a = kv.args();
    a.q = q.data() + row * q_stride;
    a.q_stride = q_stride;
    a.out = out.data() + row * out_stride;
    a.out_stride = out_stride;
    a.rows = n ? n : rows;
    a.group = group;
    a.first_position = first_position + row;
    a.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    a.window = window;
    a.soft_cap = soft_cap;
    return a;
  }
  void expect_gaps_untouched() const {
    for (uint32_t r = 0; r + 1 < rows; ++r) {
      for (size_t i = group * head_dim; i < out_stride; ++i) ASSERT_EQ(out[r * out_stride + i], kUntouched);
    }
  }
};

inline void fill_kv(KvBlocks& kv, uint32_t head_dim, uint32_t from, uint32_t to, std::mt19937& rng, float size = 1) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> k(head_dim), v(head_dim);
  for (uint32_t t = from; t < to; ++t) {
    for (float& x : k) x = normal(rng);
    for (float& x : v) x = normal(rng);
    kv.store(*kernels::kernel_set(kernels::Level::scalar), t, k.data(), v.data());
  }
}

inline std::string type_label(KvType type) {
  return type == KvType::f16 ? "f16" : type == KvType::int8 ? "int8" : type == KvType::int4 ? "int4" : "f32";
}

/// A test of one level and KV type.
class AttentionOfOne : public ::testing::TestWithParam<std::tuple<const KernelSet*, KvType>> {
 public:
  static auto all() {
    return ::testing::Combine(::testing::ValuesIn(kernels::levels_with_own(&KernelSet::attention)),
                              ::testing::Values(KvType::f16, KvType::int8, KvType::int4, KvType::f32));
  }
  static std::string label(const ::testing::TestParamInfo<ParamType>& info) {
    return kernels::level_label(*std::get<0>(info.param)) + "_" + type_label(std::get<1>(info.param));
  }

 protected:
  const KernelSet& set() const { return *std::get<0>(GetParam()); }
  KvType type() const { return std::get<1>(GetParam()); }
};

/// A test of all levels at once, so that the scalar level and the twin compute each case once.
class AttentionOfLevels : public ::testing::TestWithParam<KvType> {
 public:
  static std::string label(const ::testing::TestParamInfo<KvType>& info) { return type_label(info.param); }
};

/// Runs every level but the scalar one on the queries of `scalar` and compares its output.
inline void expect_levels_equal(const Rows& scalar, const KvBlocks& kv, uint32_t first_position) {
  for (const KernelSet* set : kernels::levels_with_own(&KernelSet::attention)) {
    if (set->level == kernels::Level::scalar) continue;
    Rows rows(scalar.rows, scalar.group, scalar.head_dim);
    std::copy(scalar.q.begin(), scalar.q.end(), rows.q.begin());
    rows.window = scalar.window;
    rows.soft_cap = scalar.soft_cap;
    set->attention(rows.args(kv, first_position));
    ASSERT_TRUE(same_bits(rows.out.data(), scalar.out.data(), rows.out.size())) << set->name;
  }
}

}  // namespace ellm::tests
