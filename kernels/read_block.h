// Blocks of a GGUF row as codes and scales: what each format's bytes mean. Source: ggml's block structures. Internal to
// kernels/; inline, so that whoever knows the type at compile time gets straight-line code. Baseline code.
#pragma once
#include <string.h>

#include "kernels/panel_layout.h"

namespace ellm::kernels {

static constexpr uint32_t kNibbles = 0x0f0f0f0f, kPairs = 0x03030303, kBits = 0x01010101;

template <class T>
static inline T load(const std::byte* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline uint32_t at(const std::byte* p, size_t i) { return std::to_integer<uint32_t>(p[i]); }

/// 16 bytes of nibbles: columns 0…15 low, 16…31 high.
static inline void split_nibbles(const std::byte* qs, uint32_t* code) {
  for (int j = 0; j < 4; ++j) {
    const uint32_t v = load<uint32_t>(qs + 4 * j);
    code[j] = v & kNibbles;
    code[j + 4] = v >> 4 & kNibbles;
  }
}

/// Bit c of qh becomes bit 4 of column c's code.
static inline void add_fifth_bits(uint32_t qh, uint32_t* code) {
  for (int g = 0; g < 8; ++g) {
    const uint32_t b = qh >> (4 * g) & 15;
    code[g] |= (b * 0x00204081u & kBits) << 4;  // bit i of the copy that is moved by 7 i
  }
}

/// Q4_K's and Q5_K's block j of 8: 6-bit scale and minimum out of 12 bytes.
static inline void unpack_scale_and_minimum(const std::byte* p, size_t j, uint8_t* sc) {
  if (j < 4) {
    sc[0] = at(p, j) & 63;
    sc[1] = at(p, j + 4) & 63;
  } else {
    sc[0] = static_cast<uint8_t>((at(p, j + 4) & 15) | (at(p, j - 4) >> 6) << 4);
    sc[1] = static_cast<uint8_t>((at(p, j + 4) >> 4) | (at(p, j) >> 6) << 4);
  }
}

static inline LaneBlock read_q2_k(const std::byte* super, size_t j) {
  LaneBlock b{};
  b.d = load<uint16_t>(super + 80);
  b.m = load<uint16_t>(super + 82);
  memcpy(b.sc, super + 2 * j, 2);
  const std::byte* qs = super + 16 + j / 4 * 32;
  for (int g = 0; g < 8; ++g) b.code[g] = load<uint32_t>(qs + 4 * g) >> (j % 4 * 2) & kPairs;
  return b;
}

/// 6-bit scales (less 32): low nibbles of 0…7 and 8…15 in 8 bytes, upper bits of i in byte i % 4 of 4. Both d and the
/// scales are negated.
static inline LaneBlock read_q3_k(const std::byte* super, size_t j) {
  LaneBlock b{};
  b.d = load<uint16_t>(super + 108) ^ 0x8000;
  for (size_t half = 0; half < 2; ++half) {
    const size_t i = 2 * j + half;
    const uint32_t low = at(super, 96 + i % 8) >> (i / 8 * 4) & 15, high = at(super, 104 + i % 4) >> (i / 4 * 2) & 3;
    b.sc[half] = static_cast<uint8_t>(32 - static_cast<int>(low | high << 4));
  }
  const std::byte* qs = super + 32 + j / 4 * 32;
  for (int g = 0; g < 8; ++g) {
    const uint32_t low = load<uint32_t>(qs + 4 * g) >> (j % 4 * 2) & kPairs;
    b.code[g] = low | (load<uint32_t>(super + 4 * g) >> j & kBits) << 2;
  }
  return b;
}

/// Q4_K, and Q5_K with its fifth bits in front of the nibbles.
static inline LaneBlock read_q4_or_5_k(const std::byte* super, size_t j, bool five) {
  LaneBlock b{};
  b.d = load<uint16_t>(super);
  b.m = load<uint16_t>(super + 2);
  unpack_scale_and_minimum(super + 4, j, b.sc);
  const std::byte *qh = super + 16, *qs = qh + (five ? 32 : 0) + j / 2 * 32;
  for (int g = 0; g < 8; ++g) {
    b.code[g] = load<uint32_t>(qs + 4 * g) >> (j % 2 * 4) & kNibbles;
    if (five) b.code[g] |= (load<uint32_t>(qh + 4 * g) >> j & kBits) << 4;
  }
  return b;
}

static inline LaneBlock read_q6_k(const std::byte* super, size_t j) {
  const std::byte* ql = super + j / 4 * 64 + j % 2 * 32;
  const std::byte* qh = super + 128 + j / 4 * 32;
  LaneBlock b{};
  b.d = load<uint16_t>(super + 208);
  memcpy(b.sc, super + 192 + 2 * j, 2);
  for (int g = 0; g < 8; ++g) {
    const uint32_t low = load<uint32_t>(ql + 4 * g) >> (j % 4 / 2 * 4) & kNibbles;
    const uint32_t high = load<uint32_t>(qh + 4 * g) >> (2 * (j % 4)) & kPairs;
    b.code[g] = low | high << 4;
  }
  return b;
}

static inline LaneBlock read_iq4_xs(const std::byte* super, size_t j) {
  LaneBlock b{};
  b.d = load<uint16_t>(super);
  const uint32_t low = at(super, 4 + j / 2) >> (j % 2 * 4) & 15, high = load<uint16_t>(super + 2) >> (2 * j) & 3u;
  b.sc[0] = static_cast<uint8_t>(static_cast<int>(low | high << 4) - 32);
  split_nibbles(super + 8 + 16 * j, b.code);
  return b;
}

/// The scale is half of 2^(e - 127), since the codebook's values are doubled; as bf16, subnormal for e = 0 and 1.
static inline LaneBlock read_mxfp4(const std::byte* p) {
  LaneBlock b{};
  const uint32_t e = at(p, 0);
  b.d = static_cast<uint16_t>(e < 2 ? 0x20 << e : (e - 1) << 7);
  split_nibbles(p + 1, b.code);
  return b;
}

static inline LaneBlock read_simple(WeightType type, const std::byte* p) {
  LaneBlock b{};
  b.d = load<uint16_t>(p);
  p += 2;
  if (type == WeightType::q8_0) {
    for (int g = 0; g < 8; ++g) b.code[g] = load<uint32_t>(p + 4 * g) ^ 0x80808080;
    return b;
  }
  if (type == WeightType::q4_1 || type == WeightType::q5_1) {
    b.m = load<uint16_t>(p);
    p += 2;
  }
  if (type == WeightType::q5_0 || type == WeightType::q5_1) {
    split_nibbles(p + 4, b.code);
    add_fifth_bits(load<uint32_t>(p), b.code);
  } else {
    split_nibbles(p, b.code);
  }
  return b;
}

/// Block `block` (of 32 weights) of a GGUF row; `shape` is the type's.
static inline LaneBlock read_block(WeightType type, BlockShape shape, const std::byte* row, size_t block) {
  const std::byte* p = row + block / (shape.weights / 32) * shape.bytes;
  const size_t j = block % 8;
  switch (type) {
    case WeightType::q2_k: return read_q2_k(p, j);
    case WeightType::q3_k: return read_q3_k(p, j);
    case WeightType::q4_k: return read_q4_or_5_k(p, j, false);
    case WeightType::q5_k: return read_q4_or_5_k(p, j, true);
    case WeightType::q6_k: return read_q6_k(p, j);
    case WeightType::iq4_xs: return read_iq4_xs(p, j);
    case WeightType::mxfp4: return read_mxfp4(p);
    default: return read_simple(type, p);
  }
}

}  // namespace ellm::kernels
