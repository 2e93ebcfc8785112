// Sixteen floats of the scalar level: what every operation of the other levels' lanes means, to the bit (but for which
// NaN a NaN is).
#pragma once
#include <string.h>

#include "kernels/lanes/unroll.h"

namespace ellm::kernels {
namespace {

struct ScalarLanes {
  float v[16];

  // Register tiles of attention (kernels/lanes/attention_tiles.h).
  static constexpr int kQueries = 2;
  static constexpr int token_vectors(int) { return 1; }
  static constexpr int dim_vectors(int) { return 1; }
  static constexpr int kFetchLocality = 2;
  static constexpr size_t kTogetherBytes = SIZE_MAX;

  template <class F>
  static ELLM_INLINE ScalarLanes make(F f) {
    ScalarLanes r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
  }

  static ELLM_INLINE ScalarLanes load(const float* p) {
    return make([&](int i) { return p[i]; });
  }
  /// The first n values, then zeros; nothing behind them is read.
  static ELLM_INLINE ScalarLanes load_first(const float* p, uint32_t n) {
    return make([&](int i) { return static_cast<uint32_t>(i) < n ? p[i] : 0.0f; });
  }
  ELLM_INLINE void store(float* p) const {
    for (int i = 0; i < 16; ++i) p[i] = v[i];
  }
  ELLM_INLINE void store_first(float* p, uint32_t n) const {
    for (uint32_t i = 0; i < 16 && i < n; ++i) p[i] = v[i];
  }
  static ELLM_INLINE ScalarLanes broadcast(float x) {
    return make([&](int) { return x; });
  }

  static ELLM_INLINE float from_half(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude < 0x400) {  // zero and subnormal halves
      const float f = static_cast<float>(magnitude) * 0x1p-24f;
      return sign ? -f : f;
    }
    uint32_t bits = (magnitude << 13) + (112u << 23);
    if (magnitude >= 0x7c00) bits = (magnitude << 13) | (magnitude > 0x7c00 ? 0x7fc00000u : 0x7f800000u);
    bits |= sign;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
  }
  /// Rounds to the nearest, ties to even; NaN keeps its upper bits and becomes quiet.
  static ELLM_INLINE uint16_t to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    uint32_t h;
    if (bits > 0x7f800000) {
      h = 0x7e00 | (bits >> 13 & 0x3ff);
    } else if (bits >= 0x477ff000) {
      h = 0x7c00;
    } else if (bits < 0x38800000) {  // subnormal: 0.5's last place is a half's 2^-24
      float magnitude;
      memcpy(&magnitude, &bits, sizeof bits);
      magnitude += 0.5f;
      memcpy(&h, &magnitude, sizeof h);
      h -= 0x3f000000;
    } else {
      h = (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
    }
    return static_cast<uint16_t>(sign | h);
  }
  static ELLM_INLINE ScalarLanes load_halves(const uint16_t* p) {
    return make([&](int i) { return from_half(p[i]); });
  }
  ELLM_INLINE void store_halves(uint16_t* p) const {
    for (int i = 0; i < 16; ++i) p[i] = to_half(v[i]);
  }
  /// Even and odd values of a and b, which stand one after the other; `interleave` is the inverse.
  static ELLM_INLINE void deinterleave(ScalarLanes a, ScalarLanes b, ScalarLanes& even, ScalarLanes& odd) {
    for (int i = 0; i < 16; ++i) {
      even.v[i] = i < 8 ? a.v[2 * i] : b.v[2 * i - 16];
      odd.v[i] = i < 8 ? a.v[2 * i + 1] : b.v[2 * i - 15];
    }
  }
  static ELLM_INLINE void interleave(ScalarLanes even, ScalarLanes odd, ScalarLanes& a, ScalarLanes& b) {
    for (int i = 0; i < 16; ++i) (i < 8 ? a.v[2 * i] : b.v[2 * i - 16]) = even.v[i];
    for (int i = 0; i < 16; ++i) (i < 8 ? a.v[2 * i + 1] : b.v[2 * i - 15]) = odd.v[i];
  }

  // Products of integers: codes of 16 bits (of a query, or of probabilities) with four bytes of each of 16 lanes, by
  // pairs: byte_words<0> and <1> are the two pairs of bytes, nibble_words<0> … <3> those of their low, then of their high
  // halves; pair i meets the codes 2 i and 2 i + 1.
  using Code = int16_t;
  static constexpr int kWordQueries = 2, kWordVectors = 1;
  static constexpr int weigh_vectors(int) { return 1; }
  struct Ints {
    int32_t v[16];
  };
  struct Bytes {
    int8_t v[64];
  };
  struct Words {
    int16_t v[32];
  };
  static ELLM_INLINE Ints ints(int32_t x) {
    Ints r;
    for (int i = 0; i < 16; ++i) r.v[i] = x;
    return r;
  }
  static ELLM_INLINE Ints load_ints(const int32_t* p) {
    Ints r;
    memcpy(&r, p, sizeof r);
    return r;
  }
  static ELLM_INLINE void store_ints(Ints a, int32_t* p) { memcpy(p, &a, sizeof a); }
  static ELLM_INLINE Bytes load_bytes(const void* p) {
    Bytes r;
    memcpy(&r, p, sizeof r);
    return r;
  }
  template <int I>
  static ELLM_INLINE Words byte_words(Bytes a) {
    Words r;
    for (int i = 0; i < 32; ++i) r.v[i] = a.v[i / 2 * 4 + 2 * I + i % 2];
    return r;
  }
  template <int I>
  static ELLM_INLINE Words nibble_words(Bytes a) {
    Words r = byte_words<I % 2>(a);
    for (int16_t& x : r.v) x = static_cast<int16_t>(x >> (I / 2 * 4) & 15);
    return r;
  }
  static ELLM_INLINE Ints add_dot(Ints sum, Words a, const Code* codes) {
    for (int i = 0; i < 32; ++i) sum.v[i / 2] += a.v[i] * codes[i % 2];
    return sum;
  }
  static ELLM_INLINE ScalarLanes from_ints(Ints a) {
    return make([&](int i) { return static_cast<float>(a.v[i]); });
  }
  /// The nearest integers, ties to even, of values within -32767 … 32767.
  ELLM_INLINE void store_integers(int16_t* p) const {
    for (int i = 0; i < 16; ++i) {
      const float shifted = v[i] + 0x1.8p+23f;
      uint32_t bits;
      memcpy(&bits, &shifted, sizeof bits);
      p[i] = static_cast<int16_t>(bits & 0xffff);
    }
  }
  /// The same as codes, in whatever order a level has each four of them.
  ELLM_INLINE void store_codes(Code* p) const { store_integers(p); }

  struct Max {  // the second where either is NaN, as the instruction has it
    static ELLM_INLINE float apply(float a, float b) { return a > b ? a : b; }
  };
  struct Sum {
    static ELLM_INLINE float apply(float a, float b) { return a + b; }
  };
  /// The 16-lane tree: lane j with lane j + 8, then + 4, + 2, + 1. The result is in lane 0 (the others hold anything).
  template <class Op>
  static ELLM_INLINE ScalarLanes fold(ScalarLanes a) {
    for (int half = 8; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) a.v[j] = Op::apply(a.v[j], a.v[j + half]);
    }
    return a;
  }
  /// The trees of 16 vectors: lane i of the result is that of get(Index<i>).
  template <class Op, class Get>
  static ELLM_INLINE ScalarLanes fold16(Get get) {
    ScalarLanes r;
    unrolled<16>([&](auto i) ELLM_INLINE_LAMBDA { r.v[i] = fold<Op>(get(i)).v[0]; });
    return r;
  }
  ELLM_INLINE float first() const { return v[0]; }

  friend ELLM_INLINE ScalarLanes fma(ScalarLanes a, ScalarLanes b, ScalarLanes c) {
    return make([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
  }
  friend ELLM_INLINE ScalarLanes mul(ScalarLanes a, ScalarLanes b) {
    return make([&](int i) { return a.v[i] * b.v[i]; });
  }
  friend ELLM_INLINE ScalarLanes add(ScalarLanes a, ScalarLanes b) {
    return make([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend ELLM_INLINE ScalarLanes sub(ScalarLanes a, ScalarLanes b) {
    return make([&](int i) { return a.v[i] - b.v[i]; });
  }
  friend ELLM_INLINE ScalarLanes div(ScalarLanes a, ScalarLanes b) {
    return make([&](int i) { return a.v[i] / b.v[i]; });
  }
  friend ELLM_INLINE ScalarLanes max(ScalarLanes a, ScalarLanes b) {
    return make([&](int i) { return Max::apply(a.v[i], b.v[i]); });
  }
  friend ELLM_INLINE ScalarLanes min(ScalarLanes a, ScalarLanes b) {
    return make([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  friend ELLM_INLINE ScalarLanes abs(ScalarLanes a) {
    return make([&](int i) { return __builtin_fabsf(a.v[i]); });
  }
  /// a < b ? yes : no.
  friend ELLM_INLINE ScalarLanes select_less(ScalarLanes a, ScalarLanes b, ScalarLanes yes, ScalarLanes no) {
    return make([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
  }
  /// Lanes from the n-th on become `other`.
  friend ELLM_INLINE ScalarLanes keep_first(ScalarLanes a, uint32_t n, ScalarLanes other) {
    return make([&](int i) { return static_cast<uint32_t>(i) < n ? a.v[i] : other.v[i]; });
  }
  /// Bit i: a[i] == b[i].
  friend ELLM_INLINE uint32_t equal_bits(ScalarLanes a, ScalarLanes b) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(a.v[i] == b.v[i]) << i;
    return bits;
  }
  /// The float whose bits are those of a shifted left by 23: 2^n from n + 127 in the low bits.
  friend ELLM_INLINE ScalarLanes shift_to_exponent(ScalarLanes a) {
    return make([&](int i) {
      uint32_t bits;
      memcpy(&bits, &a.v[i], sizeof bits);
      bits <<= 23;
      float f;
      memcpy(&f, &bits, sizeof f);
      return f;
    });
  }
};

}  // namespace
}  // namespace ellm::kernels
