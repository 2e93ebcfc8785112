#include "tests/kernels/twin.h"

#include <cmath>
#include <cstring>

namespace ellm::twin {
namespace {

uint8_t u8(const std::byte* p) { return std::to_integer<uint8_t>(*p); }
int i8(const std::byte* p) { return static_cast<int8_t>(u8(p)); }

double half(const std::byte* p) {
  const int bits = u8(p) | u8(p + 1) << 8;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}
float f(const std::byte* p) { return static_cast<float>(half(p)); }

size_t row_bytes(WeightType t, uint32_t cols) {
  switch (t) {
    case WeightType::f32: return cols * 4;
    case WeightType::f16:
    case WeightType::bf16: return cols * 2;
    case WeightType::q8_0: return cols / 32 * 34;
    case WeightType::q4_0: return cols / 32 * 18;
    case WeightType::q4_1: return cols / 32 * 20;
    case WeightType::q5_0: return cols / 32 * 22;
    case WeightType::q5_1: return cols / 32 * 24;
    case WeightType::q2_k: return cols / 256 * 84;
    case WeightType::q3_k: return cols / 256 * 110;
    case WeightType::q4_k: return cols / 256 * 144;
    case WeightType::q5_k: return cols / 256 * 176;
    case WeightType::q6_k: return cols / 256 * 210;
    case WeightType::iq4_nl: return cols / 32 * 18;
    case WeightType::iq4_xs: return cols / 256 * 136;
    case WeightType::mxfp4: return cols / 32 * 17;
  }
  return 0;
}

/// Weight `c` of a quantised row: w = d * q + m, m as it is added. Q2_K and Q3_K: d = whole * part.
struct Weight {
  int q;
  float d, m;
  float whole = 0;
  int part = 1;
};

int nibble(const std::byte* p, uint32_t i) { return i < 16 ? u8(p + i) & 15 : u8(p + i - 16) >> 4; }
int fifth_bit(const std::byte* p, uint32_t i) { return u8(p + i / 8) >> (i % 8) & 1; }

/// Scale and minimum of block 0 … 7 of Q4_K and Q5_K.
void six_bits(const std::byte* packed, uint32_t block, int& sc, int& mn) {
  if (block < 4) {
    sc = u8(packed + block) & 63;
    mn = u8(packed + block + 4) & 63;
  } else {
    sc = (u8(packed + block + 4) & 15) + 16 * (u8(packed + block - 4) >> 6);
    mn = (u8(packed + block + 4) >> 4) + 16 * (u8(packed + block) >> 6);
  }
}

Weight q4_k(const std::byte* s, uint32_t c) {
  int sc, mn;
  six_bits(s + 4, c / 32, sc, mn);
  const int byte = u8(s + 16 + c / 64 * 32 + c % 32);
  return {c % 64 < 32 ? byte & 15 : byte >> 4, static_cast<float>(half(s) * sc), -static_cast<float>(half(s + 2) * mn)};
}

Weight q5_k(const std::byte* s, uint32_t c) {
  int sc, mn;
  six_bits(s + 4, c / 32, sc, mn);
  const int byte = u8(s + 48 + c / 64 * 32 + c % 32), fifth = u8(s + 16 + c % 32) >> (c / 32) & 1;
  return {(c % 64 < 32 ? byte & 15 : byte >> 4) + 16 * fifth, static_cast<float>(half(s) * sc),
          -static_cast<float>(half(s + 2) * mn)};
}

Weight q2_k(const std::byte* s, uint32_t c) {
  const int scales = u8(s + c / 16), q = u8(s + 16 + c / 128 * 32 + c % 32) >> (c % 128 / 32 * 2) & 3;
  const float d = f(s + 80);
  return {q, d * static_cast<float>(scales & 15), -static_cast<float>(half(s + 82) * (scales >> 4)), d, scales & 15};
}

Weight q3_k(const std::byte* s, uint32_t c) {
  const std::byte* packed = s + 96;  // 16 scales: low nibbles of 8 bytes, two more bits in 4 bytes
  const uint32_t i = c / 16;
  const int low = i < 8 ? u8(packed + i) & 15 : u8(packed + i - 8) >> 4,
            high = u8(packed + 8 + i % 4) >> (i / 4 * 2) & 3;
  const int sc = low + 16 * high - 32, two = u8(s + 32 + c / 128 * 32 + c % 32) >> (c % 128 / 32 * 2) & 3;
  const int third = u8(s + c % 32) >> (c / 32) & 1;
  const float d = f(s + 108);
  return {two + 4 * third - 4, d * static_cast<float>(sc), 0, -d, -sc};  // the specification negates both
}

constexpr int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

Weight iq4_xs(const std::byte* s, uint32_t c) {
  const uint32_t block = c / 32;
  const int low = block % 2 == 0 ? u8(s + 4 + block / 2) & 15 : u8(s + 4 + block / 2) >> 4;
  const int high = (u8(s + 2) | u8(s + 3) << 8) >> (2 * block) & 3;
  return {kIq4[nibble(s + 8 + 16 * block, c % 32)], static_cast<float>(half(s) * (low + 16 * high - 32)), 0};
}

/// E2M1 times two: exponent of two bits, mantissa of one.
Weight mxfp4(const std::byte* p, uint32_t c) {
  const int code = nibble(p + 1, c), exponent = code >> 1 & 3, mantissa = code & 1;
  const int magnitude = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
  return {code & 8 ? -magnitude : magnitude, static_cast<float>(std::ldexp(1.0, u8(p) - 128)), 0};
}

Weight q6_k(const std::byte* s, uint32_t c) {
  const uint32_t h = c / 128, r = c % 128, quarter = r / 32, l = r % 32;
  const int low_byte = u8(s + h * 64 + l + (quarter % 2) * 32);
  const int low = quarter < 2 ? low_byte & 15 : low_byte >> 4;
  const int high = u8(s + 128 + h * 32 + l) >> (2 * quarter) & 3;
  return {low + 16 * high - 32, static_cast<float>(half(s + 208) * i8(s + 192 + c / 16)), 0};
}

Weight weight(WeightType t, const std::byte* row, uint32_t col) {
  const uint32_t b = col / 32, c = col % 32;
  const std::byte* p = row + row_bytes(t, 32) * b;
  switch (t) {
    case WeightType::q8_0: return {i8(p + 2 + c), f(p), 0};
    case WeightType::q4_0: return {nibble(p + 2, c) - 8, f(p), 0};
    case WeightType::q4_1: return {nibble(p + 4, c), f(p), f(p + 2)};
    case WeightType::q5_0: return {nibble(p + 6, c) + 16 * fifth_bit(p + 2, c) - 16, f(p), 0};
    case WeightType::q5_1: return {nibble(p + 8, c) + 16 * fifth_bit(p + 4, c), f(p), f(p + 2)};
    case WeightType::iq4_nl: return {kIq4[nibble(p + 2, c)], f(p), 0};
    case WeightType::mxfp4: return mxfp4(p, c);
    case WeightType::iq4_xs: return iq4_xs(row + col / 256 * 136, col % 256);
    case WeightType::q2_k: return q2_k(row + col / 256 * 84, col % 256);
    case WeightType::q3_k: return q3_k(row + col / 256 * 110, col % 256);
    case WeightType::q4_k: return q4_k(row + col / 256 * 144, col % 256);
    case WeightType::q5_k: return q5_k(row + col / 256 * 176, col % 256);
    default: return q6_k(row + col / 256 * 210, col % 256);
  }
}

bool has_minimum(WeightType t) { return scale_place(t).m >= 0; }
bool halves_in_dot(WeightType t) { return t == WeightType::q2_k || t == WeightType::q3_k; }

float float_weight(WeightType t, const std::byte* row, uint32_t c) {
  float v;
  if (t == WeightType::f16) return f(row + 2 * c);
  if (t == WeightType::f32) {
    std::memcpy(&v, row + 4 * c, 4);
  } else {
    const uint32_t bits = static_cast<uint32_t>(u8(row + 2 * c)) << 16 | static_cast<uint32_t>(u8(row + 2 * c + 1))
                                                                             << 24;
    std::memcpy(&v, &bits, 4);
  }
  return v;
}

void put_half(std::byte* p, double v) {  // |v| < 0.06, a multiple of 2^-20 below 2^-10, rounded by construction
  const bool negative = v < 0;
  int exponent;
  const double fraction = std::frexp(std::fabs(v), &exponent);
  int bits = 0;
  if (v != 0 && exponent > -14) bits = (exponent + 14) << 10 | (static_cast<int>(fraction * 2048) & 1023);
  p[0] = static_cast<std::byte>(bits & 255);
  p[1] = static_cast<std::byte>(bits >> 8 | (negative ? 0x80 : 0));
}

}  // namespace

ScalePlace scale_place(WeightType type) {
  switch (type) {
    case WeightType::q4_1:
    case WeightType::q5_1:
    case WeightType::q4_k:
    case WeightType::q5_k: return {0, 2};
    case WeightType::q2_k: return {80, 82};
    case WeightType::q3_k: return {108, -1};
    case WeightType::q6_k: return {208, -1};
    case WeightType::mxfp4: return {-1, -1};
    default: return {0, -1};
  }
}

std::vector<std::byte> random_rows(WeightType type, uint32_t rows, uint32_t cols, std::mt19937& rng) {
  std::vector<std::byte> data(rows * row_bytes(type, cols));
  std::uniform_real_distribution<double> scale(-0.05, 0.05);
  if (!kernels::is_quantised(type)) {
    const size_t size = row_bytes(type, 1);
    for (size_t i = 0; i < data.size() / size; ++i) {
      const float v = static_cast<float>(scale(rng));
      if (type == WeightType::f16) put_half(&data[2 * i], v);
      if (type == WeightType::f32) std::memcpy(&data[4 * i], &v, 4);
      if (type == WeightType::bf16) std::memcpy(&data[2 * i], reinterpret_cast<const char*>(&v) + 2, 2);
    }
    return data;
  }
  for (std::byte& b : data) b = static_cast<std::byte>(rng());
  const size_t block = kernels::block_shape(type).bytes;
  const ScalePlace place = scale_place(type);
  for (size_t i = 0; i < data.size(); i += block) {
    if (place.d >= 0) put_half(&data[i + place.d], rng() % 17 == 0 ? 0 : scale(rng));
    if (place.m >= 0) put_half(&data[i + place.m], scale(rng));
    if (type == WeightType::mxfp4) data[i] = static_cast<std::byte>(118 + rng() % 9);
  }
  return data;
}

/// sum(x q) / sum(q q): the sum of products over 16 lanes, then pairwise.
float fitted_scale(const std::vector<float>& x, const Token& t, size_t b, float most) {
  const auto value = [&](size_t c) { return b * 32 + c < x.size() ? x[b * 32 + c] : 0.0f; };
  const auto q = [&](size_t c) { return static_cast<float>(t.q[b * 32 + c]); };
  std::vector<float> lanes(16);
  double squares = 0;
  for (size_t c = 0; c < 32; ++c) squares += double{q(c)} * q(c);
  for (size_t j = 0; j < 16; ++j) lanes[j] = std::fma(value(j + 16), q(j + 16), value(j) * q(j));
  while (lanes.size() > 1) {
    for (size_t j = 0; j < lanes.size() / 2; ++j) lanes[j] += lanes[j + lanes.size() / 2];
    lanes.resize(lanes.size() / 2);
  }
  const float scale = lanes[0] / static_cast<float>(squares);
  return std::isfinite(scale) ? scale : most / 127;
}

Token quantise(const std::vector<float>& x) {
  const size_t blocks = (x.size() + 31) / 32;
  Token t{std::vector<int8_t>(blocks * 32), std::vector<float>(blocks), std::vector<int32_t>(blocks)};
  for (size_t b = 0; b < blocks; ++b) {
    float most = 0;
    for (size_t c = b * 32; c < x.size() && c < b * 32 + 32; ++c) most = std::fmax(most, std::fabs(x[c]));
    if (most < 1e-30f) continue;
    for (size_t c = b * 32; c < x.size() && c < b * 32 + 32; ++c) {
      const float q = std::nearbyint(x[c] * (127.0f / most));
      t.q[c] = static_cast<int8_t>(std::fmin(127.0f, std::fmax(-127.0f, q)));
      t.sum[b] += t.q[c];
    }
    t.scale[b] = fitted_scale(x, t, b, most);
  }
  return t;
}

float dot(WeightType type, const std::byte* row, uint32_t cols, const std::vector<float>& x, const Token& token) {
  if (!kernels::is_quantised(type)) {
    float a[4] = {0, 0, 0, 0};
    for (uint32_t c = 0; c < cols; ++c) a[c % 4] = std::fma(float_weight(type, row, c), x[c], a[c % 4]);
    for (uint32_t c = cols; c % 32 != 0; ++c) a[c % 4] = std::fma(0.0f, 0.0f, a[c % 4]);
    return (a[0] + a[1]) + (a[2] + a[3]);
  }
  const uint32_t group = type == WeightType::q6_k ? 16 : 32, minima = type == WeightType::q2_k ? 16 : 32;
  float acc = 0;
  for (uint32_t b = 0; b < cols / 32; ++b) {
    for (uint32_t first = b * 32; first < b * 32 + 32; first += group) {
      int64_t sum = 0;
      for (uint32_t c = first; c < first + group; ++c) {
        const Weight w = weight(type, row, c);
        sum += w.q * w.part * token.q[c];
      }
      const Weight w = weight(type, row, first);
      acc = std::fma(static_cast<float>(sum), (halves_in_dot(type) ? w.whole : w.d) * token.scale[b], acc);
    }
    for (uint32_t first = b * 32; has_minimum(type) && first < b * 32 + 32; first += minima) {
      int32_t sum = 0;
      for (uint32_t c = first; c < first + minima; ++c) sum += token.q[c];
      acc = std::fma(weight(type, row, first).m, token.scale[b] * static_cast<float>(sum), acc);
    }
  }
  return acc;
}

std::vector<float> weights(WeightType type, const std::byte* row, uint32_t cols) {
  std::vector<float> w(cols);
  for (uint32_t c = 0; c < cols; ++c) {
    if (!kernels::is_quantised(type)) {
      w[c] = float_weight(type, row, c);
    } else {
      const Weight v = weight(type, row, c);
      const float product = v.d * static_cast<float>(v.q);
      w[c] = has_minimum(type) ? product + v.m : product;
    }
  }
  return w;
}

}  // namespace ellm::twin
