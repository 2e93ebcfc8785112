// Blocks of GGUF rows as codes and scales: what each format's bytes mean. Source: ggml's block structures. Internal to
// kernels/; inline, so that whoever knows the type at compile time gets straight-line code. Baseline code.
//
// Codes are read as words of 4 columns, of one row (OneRow) or of four rows at once (FourRows): the same lines say
// both.
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

/// A block, or super-block, of one row.
struct OneRow {
  using Word = uint32_t;
  const std::byte* p;

  /// The four words from byte `at` on.
  void words(size_t at, Word* w) const { memcpy(w, p + at, 16); }
};

template <class Rows>
[[gnu::always_inline]] static inline typename Rows::Word first_word(const Rows& rows, size_t at) {
  typename Rows::Word w[4];
  rows.words(at, w);
  return w[0];
}

// ---- codes: of group g, 4 columns, in code[g] ----------------------------------------------------------------------------

/// 16 bytes of nibbles: columns 0…15 low, 16…31 high.
template <class Rows, class Word = typename Rows::Word>
[[gnu::always_inline]] static inline void split_nibbles(const Rows& rows, size_t qs, Word* code) {
  rows.words(qs, code);
  for (int j = 0; j < 4; ++j) {
    code[j + 4] = code[j] >> 4 & kNibbles;
    code[j] = code[j] & kNibbles;
  }
}

/// 32 bytes, a column each.
template <class Rows, class Word = typename Rows::Word>
[[gnu::always_inline]] static inline void read_bytes(const Rows& rows, size_t qs, Word* code) {
  rows.words(qs, code);
  rows.words(qs + 16, code + 4);
}

/// Bit c of qh becomes bit 4 of column c's code.
template <class Word>
[[gnu::always_inline]] static inline void add_fifth_bits(Word qh, Word* code) {
  for (int g = 0; g < 8; ++g) {
    const Word b = qh >> (4 * g) & 15, two = b | b << 7;  // bit i to the lowest of byte i
    code[g] |= ((two | two << 14) & kBits) << 4;
  }
}

template <class Rows, class Word = typename Rows::Word>
[[gnu::always_inline]] static inline void q2_k_codes(const Rows& rows, int j, Word* code) {
  read_bytes(rows, 16 + j / 4 * 32, code);
  for (int g = 0; g < 8; ++g) code[g] = code[g] >> (j % 4 * 2) & kPairs;
}

template <class Rows, class Word = typename Rows::Word>
[[gnu::always_inline]] static inline void q3_k_codes(const Rows& rows, int j, Word* code) {
  Word high[8];
  read_bytes(rows, 32 + j / 4 * 32, code);
  read_bytes(rows, 0, high);
  for (int g = 0; g < 8; ++g) code[g] = (code[g] >> (j % 4 * 2) & kPairs) | (high[g] >> j & kBits) << 2;
}

/// Q4_K, and Q5_K with its fifth bits in front of the nibbles.
template <class Rows, class Word = typename Rows::Word>
[[gnu::always_inline]] static inline void q4_or_5_k_codes(const Rows& rows, int j, bool five, Word* code) {
  Word high[8];
  read_bytes(rows, (five ? 48 : 16) + j / 2 * 32, code);
  if (five) read_bytes(rows, 16, high);
  for (int g = 0; g < 8; ++g) {
    code[g] = code[g] >> (j % 2 * 4) & kNibbles;
    if (five) code[g] |= (high[g] >> j & kBits) << 4;
  }
}

template <class Rows, class Word = typename Rows::Word>
[[gnu::always_inline]] static inline void q6_k_codes(const Rows& rows, int j, Word* code) {
  Word high[8];
  read_bytes(rows, j / 4 * 64 + j % 2 * 32, code);
  read_bytes(rows, 128 + j / 4 * 32, high);
  for (int g = 0; g < 8; ++g)
    code[g] = (code[g] >> (j % 4 / 2 * 4) & kNibbles) | (high[g] >> (j % 4 * 2) & kPairs) << 4;
}

/// Block j of a super-block; of a type without, j is 0.
template <class Rows, class Word = typename Rows::Word>
[[gnu::always_inline]] static inline void read_codes(WeightType type, const Rows& rows, int j, Word* code) {
  switch (type) {
    case WeightType::q2_k: return q2_k_codes(rows, j, code);
    case WeightType::q3_k: return q3_k_codes(rows, j, code);
    case WeightType::q4_k: return q4_or_5_k_codes(rows, j, false, code);
    case WeightType::q5_k: return q4_or_5_k_codes(rows, j, true, code);
    case WeightType::q6_k: return q6_k_codes(rows, j, code);
    case WeightType::iq4_xs: return split_nibbles(rows, size_t(8 + 16 * j), code);
    case WeightType::mxfp4: return split_nibbles(rows, 1, code);
    case WeightType::q4_1: return split_nibbles(rows, 4, code);
    case WeightType::q5_0: split_nibbles(rows, 6, code); return add_fifth_bits(first_word(rows, 2), code);
    case WeightType::q5_1: split_nibbles(rows, 8, code); return add_fifth_bits(first_word(rows, 4), code);
    case WeightType::q8_0:
      read_bytes(rows, 2, code);
      for (int g = 0; g < 8; ++g) code[g] = code[g] ^ 0x80808080;
      return;
    default: return split_nibbles(rows, 2, code);  // Q4_0, IQ4_NL
  }
}

// ---- scales --------------------------------------------------------------------------------------------------------------

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

/// 6-bit scales (less 32): low nibbles of 0…7 and 8…15 in 8 bytes, upper bits of i in byte i % 4 of 4. Both d and the
/// scales are negated.
static inline void q3_k_scales(const std::byte* super, size_t j, LaneBlock& b) {
  b.d = load<uint16_t>(super + 108) ^ 0x8000;
  for (size_t half = 0; half < 2; ++half) {
    const size_t i = 2 * j + half;
    const uint32_t low = at(super, 96 + i % 8) >> (i / 8 * 4) & 15, high = at(super, 104 + i % 4) >> (i / 4 * 2) & 3;
    b.sc[half] = static_cast<uint8_t>(32 - static_cast<int>(low | high << 4));
  }
}

static inline void iq4_xs_scales(const std::byte* super, size_t j, LaneBlock& b) {
  b.d = load<uint16_t>(super);
  const uint32_t low = at(super, 4 + j / 2) >> (j % 2 * 4) & 15, high = load<uint16_t>(super + 2) >> (2 * j) & 3u;
  b.sc[0] = static_cast<uint8_t>(static_cast<int>(low | high << 4) - 32);
}

/// d, m and sc of block j of a super-block; the codes stay as they are.
static inline void read_scales(WeightType type, const std::byte* p, size_t j, LaneBlock& b) {
  switch (type) {
    case WeightType::q2_k:
      b.d = load<uint16_t>(p + 80);
      b.m = load<uint16_t>(p + 82);
      memcpy(b.sc, p + 2 * j, 2);
      return;
    case WeightType::q3_k: return q3_k_scales(p, j, b);
    case WeightType::q4_k:
    case WeightType::q5_k:
      b.d = load<uint16_t>(p);
      b.m = load<uint16_t>(p + 2);
      return unpack_scale_and_minimum(p + 4, j, b.sc);
    case WeightType::q6_k:
      b.d = load<uint16_t>(p + 208);
      memcpy(b.sc, p + 192 + 2 * j, 2);
      return;
    case WeightType::iq4_xs: return iq4_xs_scales(p, j, b);
    case WeightType::mxfp4: {  // half of 2^(e - 127), the codebook's values are doubled; bf16, subnormal for e = 0 and
                               // 1
      const uint32_t e = at(p, 0);
      b.d = static_cast<uint16_t>(e < 2 ? 0x20 << e : (e - 1) << 7);
      return;
    }
    case WeightType::q4_1:
    case WeightType::q5_1: b.m = load<uint16_t>(p + 2); [[fallthrough]];
    default: b.d = load<uint16_t>(p);
  }
}

/// Where block `block` (of 32 weights) of a row begins, or its super-block.
static inline size_t block_offset(BlockShape shape, size_t block) { return block / (shape.weights / 32) * shape.bytes; }

/// Block `block` (of 32 weights) of a GGUF row; `shape` is the type's.
static inline LaneBlock read_block(WeightType type, BlockShape shape, const std::byte* row, size_t block) {
  const std::byte* p = row + block_offset(shape, block);
  const size_t j = block % (shape.weights / 32);
  LaneBlock b{};
  read_scales(type, p, j, b);
  read_codes(type, OneRow{p}, static_cast<int>(j), b.code);
  return b;
}

}  // namespace ellm::kernels
