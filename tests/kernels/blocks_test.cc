// Quantised blocks against llama.cpp's bytes and floats, and panels against the rows they were made of.
#include "kernels/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <span>

#include "kernels/panel.h"
#include "tests/kernels/guarded.h"
#include "tests/kernels/levels.h"
#include "tests/kernels/twin.h"
#include "tests/support/test_data.h"

namespace ellm::kernels {
namespace {

struct Vectors {
  std::vector<float> inputs;                                                         // 1024
  std::map<int32_t, std::pair<std::vector<std::byte>, std::vector<float>>> by_type;  // bytes, dequantised
};

Vectors read_vectors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Vectors v;
  v.inputs.resize(1024);
  in.read(reinterpret_cast<char*>(v.inputs.data()), 4096);
  int32_t head[2];
  while (in.read(reinterpret_cast<char*>(head), 8)) {
    auto& [bytes, floats] = v.by_type[head[0]];
    bytes.resize(static_cast<size_t>(head[1]));
    floats.resize(1024);
    in.read(reinterpret_cast<char*>(bytes.data()), head[1]);
    in.read(reinterpret_cast<char*>(floats.data()), 4096);
  }
  return v;
}

uint32_t bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

::testing::AssertionResult same_bits(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (bits(a[i]) != bits(b[i])) return ::testing::AssertionFailure() << "at " << i << ": " << a[i] << " and " << b[i];
  }
  return ::testing::AssertionSuccess();
}

TEST(QuantVectors, DequantiseEveryType) {
  const auto dir = tests::test_data();
  if (!dir) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const Vectors v = read_vectors(*dir + "/reference/quant_vectors.bin");
  for (WeightType type : kWeightTypes) {
    if (type == WeightType::f32) continue;  // not among them
    const auto found = v.by_type.find(static_cast<int32_t>(type));
    ASSERT_NE(found, v.by_type.end()) << block_shape(type).name;
    const auto& [bytes, floats] = found->second;
    ASSERT_EQ(bytes.size(), 1024 / block_shape(type).weights * block_shape(type).bytes) << block_shape(type).name;
    std::vector<float> ours(1024);
    dequantize(type, bytes.data(), 1024, ours.data());
    EXPECT_TRUE(same_bits(ours.data(), floats.data(), 1024)) << block_shape(type).name;
  }
}

TEST(QuantVectors, QuantiseTheSimpleTypes) {
  const auto dir = tests::test_data();
  if (!dir) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const Vectors v = read_vectors(*dir + "/reference/quant_vectors.bin");
  for (WeightType type : {WeightType::f16, WeightType::bf16, WeightType::q8_0, WeightType::q4_0, WeightType::q4_1,
                          WeightType::q5_0, WeightType::q5_1}) {
    const auto& bytes = v.by_type.at(static_cast<int32_t>(type)).first;
    std::vector<std::byte> ours(bytes.size());
    ASSERT_TRUE(quantize(type, v.inputs.data(), 1024, ours.data())) << block_shape(type).name;
    EXPECT_EQ(ours, bytes) << block_shape(type).name;
  }
  std::byte nothing[210];
  for (WeightType type :
       {WeightType::q2_k, WeightType::q4_k, WeightType::q6_k, WeightType::iq4_nl, WeightType::mxfp4}) {
    EXPECT_FALSE(quantize(type, v.inputs.data(), 256, nothing)) << block_shape(type).name;
  }
}

// Every half against its definition, and back; floats around each rounding border.
TEST(Halves, AllOfThem) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = f16_to_f32(static_cast<uint16_t>(h));
    const int exponent = static_cast<int>(h >> 10 & 31), fraction = static_cast<int>(h & 1023);
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(f) && std::isnan(f16_to_f32(f32_to_f16(f))));
      continue;
    }
    if (exponent == 31) {
      EXPECT_TRUE(std::isinf(f));
    } else {
      EXPECT_EQ(f, static_cast<float>(h & 0x8000 ? -magnitude : magnitude));
    }
    EXPECT_EQ(f32_to_f16(f), h);
    if ((h & 0x7fff) >= 0x7bff) continue;
    const float next = f16_to_f32(static_cast<uint16_t>(h + 1)), middle = (f + next) / 2;  // exact
    EXPECT_EQ(f32_to_f16(middle), h % 2 == 0 ? h : h + 1) << middle;
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, f)), h);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, next)), h + 1);
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
}

TEST(Halves, Brain) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.00390625f), 0x3f80);  // a tie, to even
  EXPECT_EQ(f32_to_bf16(1.01171875f), 0x3f82);
  EXPECT_EQ(f32_to_bf16(1.0039064f), 0x3f81);
  EXPECT_EQ(f32_to_bf16(-INFINITY), 0xff80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
}

TEST(Quantise, AbnormalInputIsDefined) {
  std::vector<float> x(32, 1.0f);
  for (float odd : {NAN, INFINITY, -INFINITY, 3e38f, -3e38f}) {
    x[7] = odd;
    for (WeightType type : {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1}) {
      std::byte bytes[64];
      EXPECT_TRUE(quantize(type, x.data(), 32, bytes));
    }
  }
}

TEST(Twin, DequantisesAsTheLibrary) {
  std::mt19937 rng(7);
  for (WeightType type : kWeightTypes) {
    const auto row = twin::random_rows(type, 1, 1024, rng);
    std::vector<float> ours(1024);
    dequantize(type, row.data(), 1024, ours.data());
    EXPECT_TRUE(same_bits(ours.data(), twin::weights(type, row.data(), 1024).data(), 1024)) << block_shape(type).name;
  }
}

TEST(Panel, RepackThenRowEqualsDequantise) {
  std::mt19937 rng(1);
  for (WeightType type : kWeightTypes) {
    const bool k = block_shape(type).weights == 256;
    for (uint32_t rows = 1; rows <= 40; ++rows) {
      static constexpr uint32_t k_widths[] = {256, 1024}, block_widths[] = {32, 96, 576},
                                float_widths[] = {1, 31, 64, 172};
      std::span<const uint32_t> widths = block_widths;
      if (k) widths = k_widths;
      if (!is_quantised(type)) widths = float_widths;
      for (uint32_t cols : widths) {
        const auto src = twin::random_rows(type, rows, cols, rng);
        const size_t row_bytes = src.size() / rows, bytes = panel_bytes(type, cols);
        EXPECT_EQ(bytes % 64, 0u);
        PanelMatrix m{type, rows, cols, nullptr, bytes};
        tests::Guarded<std::byte> data(bytes * m.panels());
        tests::Guarded<std::byte> guarded_src(src.size());
        std::copy(src.begin(), src.end(), guarded_src.begin());
        std::fill(data.begin(), data.end(), std::byte{0xff});
        m.data = data.data();
        for (uint32_t p = m.panels(); p > 0; --p) repack(m, data.data(), guarded_src.data(), p - 1, p);
        for (const KernelSet* set : levels_under_test()) {
          tests::Guarded<std::byte> same(bytes * m.panels());
          std::fill(same.begin(), same.end(), std::byte{0xee});
          for (uint32_t p = 0; p < m.panels(); ++p) repack_of (*set)(m, same.data(), guarded_src.data(), p, p + 1);
          ASSERT_TRUE(std::equal(data.begin(), data.end(), same.begin())) << set->name << " " << block_shape(type).name;
        }
        std::vector<float> want(cols), got(cols);
        for (uint32_t r = 0; r < rows; ++r) {
          dequantize(type, src.data() + r * row_bytes, cols, want.data());
          dequantize_row(m, r, got.data());
          ASSERT_TRUE(same_bits(got.data(), want.data(), cols)) << block_shape(type).name << " " << rows << "x" << cols;
        }
        for (uint32_t r = rows; r < m.panels() * kPanelRows; ++r) {
          dequantize_row(m, r, got.data());
          for (float f : got) ASSERT_EQ(f, 0.0f) << "missing rows are zeros";
        }
      }
    }
  }
}

}  // namespace
}  // namespace ellm::kernels
