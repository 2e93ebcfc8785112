// KV stores of every level: f16 rounds to nearest even as the compiler's _Float16 does, int8 as HACKING.md says; equal
// bytes at all levels, padding included, and nothing outside the slot is touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/blocks.h"
#include "kernels/kernel_set.h"
#include "tests/kernels/attention_twin.h"
#include "tests/kernels/guarded.h"
#include "tests/kernels/levels.h"

namespace ellm::kernels {
namespace {

using tests::Guarded;

class Store : public ::testing::TestWithParam<const KernelSet*> {};
INSTANTIATE_TEST_SUITE_P(Levels, Store, ::testing::ValuesIn(levels_with_own(&KernelSet::store_k)),
                         [](const auto& info) { return level_label(*info.param); });

uint16_t compiler_half(float f) {
  const _Float16 h = static_cast<_Float16>(f);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

struct Slot {  // what a slot should hold, at the offsets of kv_block.h
  std::vector<std::pair<size_t, std::byte>> bytes;
  template <class T>
  void put(size_t offset, T value) {
    std::byte b[sizeof(T)];
    std::memcpy(b, &value, sizeof(T));
    for (size_t i = 0; i < sizeof(T); ++i) bytes.emplace_back(offset + i, b[i]);
  }
};

struct Quantised {
  float scale;
  std::vector<int8_t> q;
};
Quantised quantised(const std::vector<float>& x) {
  float a = 0;
  for (float v : x) a = std::max(a, std::fabs(v));
  Quantised r{0, std::vector<int8_t>(x.size())};
  if (a < 1e-30f) return r;
  r.scale = a / 127;
  const float factor = 127 / a;
  for (size_t i = 0; i < x.size(); ++i) {
    r.q[i] = static_cast<int8_t>(std::clamp(std::nearbyint(x[i] * factor), -127.0f, 127.0f));
  }
  return r;
}
/// One int4 block's halves (scale, minimum) and codes.
struct Ranged {
  uint16_t scale, least;
  std::vector<uint8_t> q;
};
Ranged ranged(const float* x, size_t n) {
  const float most = *std::max_element(x, x + n), least = *std::min_element(x, x + n);
  Ranged r{compiler_half((most - least) / 15 + 0.0f), compiler_half(least + 0.0f), {}};
  const float scale = f16_to_f32(r.scale), from = f16_to_f32(r.least), factor = scale > 0 ? 1 / scale : 0;
  for (size_t i = 0; i < n; ++i)
    r.q.push_back(static_cast<uint8_t>(std::clamp(std::nearbyint((x[i] - from) * factor), 0.0f, 15.0f)));
  return r;
}
std::vector<uint8_t> put_ranges(Slot& s, size_t offset, const std::vector<float>& x, uint32_t slot, size_t padded) {
  std::vector<uint8_t> codes;
  for (size_t b = 0; b * 32 < x.size(); ++b) {
    const Ranged r = ranged(&x[b * 32], std::min<size_t>(32, x.size() - b * 32));
    s.put(offset + b * 128 + slot * 2, r.scale);
    s.put(offset + b * 128 + 64 + slot * 2, r.least);
    codes.insert(codes.end(), r.q.begin(), r.q.end());
  }
  codes.resize(padded);
  return codes;
}

/// What rounding left of the token in slot 0, at the end of its block.
void put_rest(Slot& s, KvType type, const std::vector<float>& x, uint32_t slot, size_t block_bytes) {
  if (slot != 0 || !is_quantised(type)) return;
  const size_t padded = (x.size() + 63) / 64 * 64;
  const auto put = [&](size_t d, float code, float scale, float least) {
    const float rest = (x[d] - std::fmaf(code, scale, least)) * (scale > 0 ? 254 / scale : 0);
    s.put(block_bytes - padded + d, static_cast<int8_t>(std::clamp(std::nearbyint(rest), -127.0f, 127.0f)));
  };
  const Quantised q = quantised(x);
  for (size_t d = 0; type == KvType::int8 && d < x.size(); ++d) put(d, q.q[d], q.scale, 0);
  for (size_t b = 0; type == KvType::int4 && b < x.size(); b += 32) {
    const Ranged r = ranged(&x[b], std::min<size_t>(32, x.size() - b));
    for (size_t i = 0; i < r.q.size(); ++i) put(b + i, r.q[i], f16_to_f32(r.scale), f16_to_f32(r.least));
  }
  for (size_t d = x.size(); d < padded; ++d) s.put(block_bytes - padded + d, int8_t{0});
}

Slot expected_k(KvType type, std::vector<float> x, uint32_t slot) {
  Slot s;
  if (is_quantised(type)) {
    size_t block = 1;
    while (x.size() % (2 * block) == 0) block *= 2;
    tests::rotate_row(x.data(), static_cast<uint32_t>(x.size()), static_cast<uint32_t>(block));
    put_rest(s, type, x, slot, k_block_bytes(type, static_cast<uint32_t>(x.size())));
  }
  if (type == KvType::int4) {
    const size_t padded = (x.size() + 7) / 8 * 8;
    const auto codes = put_ranges(s, padded / 2 * 32, x, slot, padded);
    for (size_t d = 0; d < padded; d += 8)
      for (size_t i = 0; i < 4; ++i)
        s.put((d / 8 * 32 + slot) * 4 + i, static_cast<uint8_t>(codes[d + i] | codes[d + 4 + i] << 4));
    return s;
  }
  x.resize((x.size() + 3) / 4 * 4);
  const Quantised q = quantised(x);
  for (size_t d = 0; d < x.size(); ++d) {
    if (type == KvType::f16) s.put((d * 32 + slot) * 2, compiler_half(x[d]));
    else if (type == KvType::f32) s.put((d * 32 + slot) * 4, x[d]);
    else s.put((d / 4 * 32 + slot) * 4 + d % 4, q.q[d]);
  }
  if (type == KvType::int8) s.put(x.size() * 32 + slot * 4, q.scale);
  return s;
}
Slot expected_v(KvType type, std::vector<float> x, uint32_t slot) {
  Slot s;
  put_rest(s, type, x, slot, v_block_bytes(type, static_cast<uint32_t>(x.size())));
  if (type == KvType::int4) {
    const size_t blocks = (x.size() + 31) / 32;
    const auto codes = put_ranges(s, blocks * 16 * 32, x, slot, blocks * 32);
    for (size_t b = 0; b < blocks; ++b)
      for (size_t i = 0; i < 16; ++i)
        s.put((slot / 4 * blocks + b) * 64 + i * 4 + slot % 4,
              static_cast<uint8_t>(codes[b * 32 + i] | codes[b * 32 + 16 + i] << 4));
    return s;
  }
  x.resize((x.size() + 15) / 16 * 16);
  const Quantised q = quantised(x);
  for (size_t d = 0; d < x.size(); ++d) {
    if (type == KvType::f16) s.put((slot * x.size() + d) * 2, compiler_half(x[d]));
    else if (type == KvType::f32) s.put((slot * x.size() + d) * 4, x[d]);
    else s.put((slot / 4 * x.size() + d) * 4 + slot % 4, q.q[d]);
  }
  if (type == KvType::int8) s.put(x.size() * 32 + slot * 4, q.scale);
  return s;
}

void expect_only(const Guarded<std::byte>& block, const Slot& slot) {
  std::vector<std::byte> expected(block.size(), std::byte{0xa5});
  for (const auto& [offset, value] : slot.bytes) expected[offset] = value;
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(block[i], expected[i]) << "byte " << i;
}

void check(const KernelSet& set, const std::vector<float>& x, uint32_t slot) {
  const uint32_t head_dim = static_cast<uint32_t>(x.size());
  Guarded<float> row(x.size());
  std::copy(x.begin(), x.end(), row.begin());
  for (const KvType type : {KvType::f16, KvType::int8, KvType::int4, KvType::f32}) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " slot " << slot << " type "
                                    << static_cast<int>(type));
    Guarded<std::byte> k(k_block_bytes(type, head_dim)), v(v_block_bytes(type, head_dim));
    std::fill(k.begin(), k.end(), std::byte{0xa5});
    std::fill(v.begin(), v.end(), std::byte{0xa5});
    set.store_k(type, head_dim, row.data(), k.data(), slot);
    set.store_v(type, head_dim, row.data(), v.data(), slot);
    expect_only(k, expected_k(type, x, slot));
    expect_only(v, expected_v(type, x, slot));
  }
}

TEST_P(Store, EverySizeAndSlot) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 2);
  for (uint32_t head_dim = 1; head_dim <= 33; ++head_dim) {
    std::vector<float> x(head_dim);
    for (float& v : x) v = normal(rng);
    check(*GetParam(), x, head_dim % 32);
  }
  for (const uint32_t head_dim : {64u, 80u, 96u, 128u, 256u}) {
    std::vector<float> x(head_dim);
    for (float& v : x) v = normal(rng);
    for (const uint32_t slot : {0u, 17u, 31u}) check(*GetParam(), x, slot);
  }
}

TEST_P(Store, RoundingAndRange) {
  std::mt19937 rng(2);
  std::vector<float> x(64);
  for (int round = 0; round < 300; ++round) {  // finite floats of any exponent that a half can tell apart, and ties
    for (float& v : x) {
      const uint32_t bits =
          (rng() & 0x80000000) | ((95 + rng() % 50) << 23) | (rng() & (round % 2 ? 0x7fffff : 0x7ff000));
      std::memcpy(&v, &bits, 4);
    }
    check(*GetParam(), x, 5);
  }
  check(*GetParam(), std::vector<float>(16, 0.0f), 0);
  check(*GetParam(), std::vector<float>(16, -0.0f), 0);
  check(*GetParam(), std::vector<float>(16, 1e-31f), 0);
  check(*GetParam(), std::vector<float>(16, 1e-38f), 0);
  check(*GetParam(), {1, 0.5f, -1, 63.5f / 127, 0.5f / 127, 1.5f / 127, 2.5f / 127, -2.5f / 127}, 9);
}

// Not numbers of a model, but the bytes must not depend on the level.
TEST_P(Store, StrangeValuesEqualScalar) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float strange : {inf, -inf, nan, -nan, 65519.0f, 65520.0f, 3e38f}) {
    for (uint32_t at = 0; at < 40; ++at) {
      std::vector<float> x(40, 0.75f);
      x[at] = strange;
      for (const KvType type : {KvType::f16, KvType::int8, KvType::int4, KvType::f32}) {
        std::vector<std::byte> k[2], v[2];
        const KernelSet* sets[2] = {GetParam(), kernel_set(Level::scalar)};
        for (int i = 0; i < 2; ++i) {
          k[i].resize(k_block_bytes(type, 40));
          v[i].resize(v_block_bytes(type, 40));
          sets[i]->store_k(type, 40, x.data(), k[i].data(), 3);
          sets[i]->store_v(type, 40, x.data(), v[i].data(), 3);
        }
        ASSERT_EQ(k[0], k[1]) << strange << " at " << at;
        ASSERT_EQ(v[0], v[1]) << strange << " at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace ellm::kernels
