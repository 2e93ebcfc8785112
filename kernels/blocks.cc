// GGUF blocks to floats and back. Formulas and roundings: ggml's reference (ggml-quants).
#include "kernels/blocks.h"

#include <math.h>
#include <string.h>

#include "kernels/panel_layout.h"

namespace ellm::kernels {
namespace {

template <class T>
T load(const std::byte* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
void store(std::byte* p, T v) {
  memcpy(p, &v, sizeof v);
}
uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}
float float_of(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

/// `x` towards zero, within 0…top; NaN gives 0.
uint32_t code_of(float x, uint32_t top) {
  if (!(x >= 0)) return 0;
  return x >= static_cast<float>(top) ? top : static_cast<uint32_t>(x);
}

void quantize_q8_0(const float* x, std::byte* dst) {
  float a = 0;
  for (int i = 0; i < 32; ++i) a = fmaxf(a, fabsf(x[i]));
  const float d = a / 127, inverse = d != 0 ? 1 / d : 0;
  store(dst, f32_to_f16(d));
  for (int i = 0; i < 32; ++i) {
    const float q = roundf(x[i] * inverse);  // half away from zero
    dst[2 + i] = static_cast<std::byte>(static_cast<int8_t>(q >= -128 && q <= 127 ? q : 0));
  }
}

/// Writes the nibbles, and the fifth bits where there are any, of 32 codes.
void write_codes(const uint32_t* code, bool five, std::byte* dst) {
  if (five) {
    uint32_t high = 0;
    for (int i = 0; i < 32; ++i) high |= (code[i] >> 4 & 1) << i;
    store(dst, high);
    dst += 4;
  }
  for (int i = 0; i < 16; ++i) dst[i] = static_cast<std::byte>((code[i] & 15) | (code[i + 16] & 15) << 4);
}

/// Q4_0, Q5_0: the value of largest magnitude becomes the lowest code.
void quantize_symmetric(const float* x, uint32_t top, std::byte* dst) {
  float a = 0, extreme = 0;
  for (int i = 0; i < 32; ++i) {
    if (a < fabsf(x[i])) {
      a = fabsf(x[i]);
      extreme = x[i];
    }
  }
  const float half = static_cast<float>((top + 1) / 2);
  const float d = extreme / -half, inverse = d != 0 ? 1 / d : 0;
  store(dst, f32_to_f16(d));
  uint32_t code[32];
  for (int i = 0; i < 32; ++i) code[i] = code_of(x[i] * inverse + (half + 0.5f), top);
  write_codes(code, top > 15, dst + 2);
}

/// Q4_1, Q5_1: the least value becomes code 0.
void quantize_with_minimum(const float* x, uint32_t top, std::byte* dst) {
  float least = x[0], most = x[0];
  for (int i = 1; i < 32; ++i) {
    least = x[i] < least ? x[i] : least;
    most = x[i] > most ? x[i] : most;
  }
  const float d = (most - least) / static_cast<float>(top), inverse = d != 0 ? 1 / d : 0;
  store(dst, f32_to_f16(d));
  store(dst + 2, f32_to_f16(least));
  uint32_t code[32];
  for (int i = 0; i < 32; ++i) code[i] = code_of((x[i] - least) * inverse + 0.5f, top);
  write_codes(code, top > 15, dst + 4);
}

}  // namespace

BlockShape block_shape(WeightType type) noexcept {
  switch (type) {
    case WeightType::f32: return {"F32", 1, 4};
    case WeightType::f16: return {"F16", 1, 2};
    case WeightType::bf16: return {"BF16", 1, 2};
    case WeightType::q4_0: return {"Q4_0", 32, 18};
    case WeightType::q4_1: return {"Q4_1", 32, 20};
    case WeightType::q5_0: return {"Q5_0", 32, 22};
    case WeightType::q5_1: return {"Q5_1", 32, 24};
    case WeightType::q8_0: return {"Q8_0", 32, 34};
    case WeightType::q2_k: return {"Q2_K", 256, 84};
    case WeightType::q3_k: return {"Q3_K", 256, 110};
    case WeightType::q4_k: return {"Q4_K", 256, 144};
    case WeightType::q5_k: return {"Q5_K", 256, 176};
    case WeightType::q6_k: return {"Q6_K", 256, 210};
    case WeightType::iq4_nl: return {"IQ4_NL", 32, 18};
    case WeightType::iq4_xs: return {"IQ4_XS", 256, 136};
    case WeightType::mxfp4: return {"MXFP4", 32, 17};
  }
  return {"?", 1, 0};
}

float f16_to_f32(uint16_t h) noexcept {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) {  // infinity; NaN becomes quiet
    return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13 | (magnitude > 0x7c00 ? 0x400000u : 0));
  }
  if (magnitude < 0x400) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
  return float_of(sign | ((magnitude << 13) + (112u << 23)));
}

uint16_t f32_to_f16(float f) noexcept {
  const uint32_t u = bits_of(f), magnitude = u & 0x7fffffff;
  const uint32_t sign = u >> 16 & 0x8000;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000) {  // subnormal: the sum with 0.5 leaves the rounded multiple of 2^-24 in the low bits
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

float bf16_to_f32(uint16_t h) noexcept { return float_of(static_cast<uint32_t>(h) << 16); }

uint16_t f32_to_bf16(float f) noexcept {
  const uint32_t u = bits_of(f);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(u >> 16 | 64);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

LaneScales lane_scales(WeightType type, const LaneBlock& b) noexcept {
  const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
  const auto scaled = [d](int sc) { return d * static_cast<float>(sc); };
  const auto minimum = [m](int sc) { return -(m * static_cast<float>(sc)); };
  const int signed_sc[2] = {static_cast<int8_t>(b.sc[0]), static_cast<int8_t>(b.sc[1])};
  switch (type) {
    case WeightType::q2_k:
      return {{scaled(b.sc[0] & 15), scaled(b.sc[1] & 15)}, {minimum(b.sc[0] >> 4), minimum(b.sc[1] >> 4)}};
    case WeightType::q3_k:
      return {{-d * static_cast<float>(-signed_sc[0]), -d * static_cast<float>(-signed_sc[1])}, {}};
    case WeightType::q4_k:
    case WeightType::q5_k: return {{scaled(b.sc[0]), scaled(b.sc[0])}, {minimum(b.sc[1]), minimum(b.sc[1])}};
    case WeightType::q6_k: return {{scaled(signed_sc[0]), scaled(signed_sc[1])}, {}};
    case WeightType::iq4_xs: return {{scaled(signed_sc[0]), scaled(signed_sc[0])}, {}};
    case WeightType::mxfp4: return {{bf16_to_f32(b.d), bf16_to_f32(b.d)}, {}};
    default: return {{d, d}, {m, m}};
  }
}

void expand(WeightType type, const LaneBlock& b, float* dst) noexcept {
  const QuantLayout layout = quant_layout(type);
  const LaneScales s = lane_scales(type, b);
  for (int c = 0; c < 32; ++c) {
    const float product = s.d[c / 16] * static_cast<float>(layout.weight(b.code[c / 4] >> (c % 4 * 8) & 255));
    dst[c] = layout.has_minimum ? product + s.m[c / 16] : product;
  }
}

void dequantize(WeightType type, const std::byte* src, size_t n, float* dst) noexcept {
  switch (type) {
    case WeightType::f32: memcpy(dst, src, n * 4); break;
    case WeightType::f16:
      for (size_t i = 0; i < n; ++i) dst[i] = f16_to_f32(load<uint16_t>(src + 2 * i));
      break;
    case WeightType::bf16:
      for (size_t i = 0; i < n; ++i) dst[i] = bf16_to_f32(load<uint16_t>(src + 2 * i));
      break;
    default:
      for (size_t i = 0; i < n / 32; ++i) expand(type, read_gguf(type, src, i), dst + 32 * i);
  }
}

bool quantize(WeightType type, const float* src, size_t n, std::byte* dst) noexcept {
  const size_t bytes = block_shape(type).bytes;
  for (size_t i = 0; i < n / block_shape(type).weights; ++i, dst += bytes) {
    const float* x = src + i * block_shape(type).weights;
    switch (type) {
      case WeightType::f32: store(dst, *x); break;
      case WeightType::f16: store(dst, f32_to_f16(*x)); break;
      case WeightType::bf16: store(dst, f32_to_bf16(*x)); break;
      case WeightType::q8_0: quantize_q8_0(x, dst); break;
      case WeightType::q4_0: quantize_symmetric(x, 15, dst); break;
      case WeightType::q5_0: quantize_symmetric(x, 31, dst); break;
      case WeightType::q4_1: quantize_with_minimum(x, 15, dst); break;
      case WeightType::q5_1: quantize_with_minimum(x, 31, dst); break;
      default: return false;
    }
  }
  return true;
}

}  // namespace ellm::kernels
