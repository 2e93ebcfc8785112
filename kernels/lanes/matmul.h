// The matrix product around a level's tiles: groups of panels, tiles of tokens, the switch over types, what is written.
// Compiled into every vector level: all in an anonymous namespace. HACKING.md, "The tile".
#pragma once
#include <type_traits>

#include "kernels/kernel_set.h"
#include "kernels/lanes/unroll.h"
#include "kernels/panel_layout.h"

namespace ellm::kernels {
namespace {

using Bytes = const std::byte*;

/// What a kernel of one weight type needs of a tile of T tokens; the pointers advance by one block at a time.
template <WeightType type, uint32_t T>
struct Tile {
  static constexpr uint32_t kOffsets = type == WeightType::q6_k ? 2 : 1;  // per block and token
  const int8_t* q;
  const float* scale;
  const float* scaled_sum;
  const float* scaled_halves;
  const int16_t* half_sums;
  const int32_t* offset;        // where an integer sum begins; of no use to types without an offset
  const int16_t* offset_pairs;  // the same as two sums of 16 bits

  Tile(const Activations& x, uint32_t first) {
    const size_t blocks = size_t{first} * x.blocks();
    q = x.q + blocks * kBlock;
    scale = x.scale + blocks;
    scaled_sum = x.scaled_sum + blocks;
    scaled_halves = x.scaled_halves + 2 * blocks;
    half_sums = x.half_sums + 2 * blocks;
    constexpr int kOffset = quant_layout(type).offset;
    offset = (kOffset == 8    ? x.minus_sum8
              : kOffset == 16 ? x.minus_sum16
              : kOffset == 32 ? x.minus_halves32
                              : x.minus_sum128) +
             kOffsets * blocks;
    offset_pairs = (kOffset == 32 ? x.minus_pairs32 : x.minus_pairs16) + 2 * kOffsets * blocks;
  }
  ELLM_INLINE void next() { skip(1); }
  ELLM_INLINE void skip(uint32_t blocks) {
    const size_t n = size_t{blocks} * T;
    q += n * kBlock;
    scale += n;
    scaled_sum += n;
    scaled_halves += 2 * n;
    half_sums += 2 * n;
    offset += kOffsets * n;
    offset_pairs += 2 * kOffsets * n;
  }
};

/// Asks for the cache lines of a block that stands `kAhead` bytes further on, in the order in which P panels at a time
/// are read: a panel's end is followed by the beginning of the one P panels on. `done`: bytes of the panels behind us.
/// kLocality: 3 for the first-level cache, 2 for the second.
template <WeightType type, uint32_t P, size_t kAhead, int kLocality = 3>
ELLM_INLINE void prefetch_block(Bytes panel, size_t panel_bytes, size_t done) {
  constexpr size_t kLine = 64;
  const size_t at = done + kAhead < panel_bytes ? done + kAhead : done + kAhead + (P - 1) * panel_bytes;
  unrolled<P>([&](auto p) ELLM_INLINE_LAMBDA {
    unrolled<(quant_layout(type).block() + kLine - 1) / kLine>([&](auto line) ELLM_INLINE_LAMBDA {
      __builtin_prefetch(panel + p * panel_bytes + at + kLine * line, 0, kLocality);
    });
  });
}

/// Bias, residual, and the rows that exist.
template <class Lanes>
ELLM_INLINE void write(const MatmulArgs& a, uint32_t panel, uint32_t first, uint32_t width, const Lanes* acc) {
  const uint32_t row = panel * kPanelRows, left = a.w.rows - row, rows = left < kPanelRows ? left : kPanelRows;
  const Lanes bias = a.bias == nullptr ? Lanes::broadcast(0) : Lanes::load_first(a.bias + row, rows);
  for (uint32_t t = 0; t < width; ++t) {
    float* out = a.out + (first + t) * a.out_stride + row;
    Lanes v = acc[t];
    if (a.bias != nullptr) v = add(v, bias);
    if (a.accumulate) v = add(v, Lanes::load_first(out, rows));
    v.store_first(out, rows);
  }
}

/// Asks for what `write` will write: a cache line of each token's row, which stand far apart. Stores that miss the
/// cache wait in line, and behind them the tile's own.
template <uint32_t P>
ELLM_INLINE void prefetch_out(const MatmulArgs& a, uint32_t panel, uint32_t first, uint32_t width) {
  for (uint32_t t = 0; t < width; ++t) {
    const float* out = a.out + (first + t) * a.out_stride + panel * kPanelRows;
    unrolled<P>([&](auto p) ELLM_INLINE_LAMBDA { __builtin_prefetch(out + p * kPanelRows, 1); });
  }
}

/// P neighbouring panels times the T tokens from `first` on. Not inlined: each is large.
/// Level::tile<type>(panel, panel_bytes, x, first, acc), acc (P, T).
template <class Level, WeightType type, uint32_t P, uint32_t T>
__attribute__((noinline)) void multiply_tile(const MatmulArgs& a, uint32_t panel, uint32_t first) {
  typename Level::Lanes acc[P][T];
  prefetch_out<P>(a, panel, first, T);
  Level::template tile<type>(a.w.data + panel * a.w.panel_bytes, a.w.panel_bytes, a.x, first, acc);
  for (uint32_t p = 0; p < P; ++p) write(a, panel + p, first, T, acc[p]);
}

/// Panels [begin, end) times the T tokens from `first` on.
template <class Level, WeightType type, uint32_t T>
void multiply_tokens(const MatmulArgs& a, uint32_t begin, uint32_t end, uint32_t first) {
  constexpr uint32_t kAtOnce = Level::panels_at_once(T);
  for (; end - begin >= kAtOnce; begin += kAtOnce) multiply_tile<Level, type, kAtOnce, T>(a, begin, first);
  if constexpr (kAtOnce > 1)
    for (; begin < end; ++begin) multiply_tile<Level, type, 1, T>(a, begin, first);
}

/// Panels in groups that stay in the L2 cache (Level::kCacheBytes of it) while all tokens from `from` on pass over
/// them.
template <class Level, WeightType type>
void multiply(const MatmulArgs& a, uint32_t from) {
  constexpr uint32_t kAtOnce = Level::panels_at_once(kTokenTile);
  const uint32_t fit = static_cast<uint32_t>(Level::kCacheBytes / a.w.panel_bytes) / kAtOnce * kAtOnce;
  const uint32_t step = fit == 0 ? kAtOnce : fit;
  for (uint32_t begin = a.first_panel; begin < a.last_panel; begin += step) {
    const uint32_t end = a.last_panel - begin < step ? a.last_panel : begin + step;
    for (uint32_t first = from, width; first < a.x.rows; first += width) {
      width = tile_width(first, a.x.rows);
      switch (width) {
        case 16: multiply_tokens<Level, type, 16>(a, begin, end, first); break;
        case 8: multiply_tokens<Level, type, 8>(a, begin, end, first); break;
        case 4: multiply_tokens<Level, type, 4>(a, begin, end, first); break;
        case 2: multiply_tokens<Level, type, 2>(a, begin, end, first); break;
        default: multiply_tokens<Level, type, 1>(a, begin, end, first);
      }
    }
  }
}

/// f(std::integral_constant<WeightType, type>()).
template <class F>
ELLM_INLINE void with_type(WeightType type, F f) {
  switch (type) {
    case WeightType::f32: return f(std::integral_constant<WeightType, WeightType::f32>());
    case WeightType::f16: return f(std::integral_constant<WeightType, WeightType::f16>());
    case WeightType::bf16: return f(std::integral_constant<WeightType, WeightType::bf16>());
    case WeightType::q8_0: return f(std::integral_constant<WeightType, WeightType::q8_0>());
    case WeightType::q4_0: return f(std::integral_constant<WeightType, WeightType::q4_0>());
    case WeightType::q4_1: return f(std::integral_constant<WeightType, WeightType::q4_1>());
    case WeightType::q5_0: return f(std::integral_constant<WeightType, WeightType::q5_0>());
    case WeightType::q5_1: return f(std::integral_constant<WeightType, WeightType::q5_1>());
    case WeightType::q2_k: return f(std::integral_constant<WeightType, WeightType::q2_k>());
    case WeightType::q3_k: return f(std::integral_constant<WeightType, WeightType::q3_k>());
    case WeightType::q4_k: return f(std::integral_constant<WeightType, WeightType::q4_k>());
    case WeightType::q5_k: return f(std::integral_constant<WeightType, WeightType::q5_k>());
    case WeightType::q6_k: return f(std::integral_constant<WeightType, WeightType::q6_k>());
    case WeightType::iq4_nl: return f(std::integral_constant<WeightType, WeightType::iq4_nl>());
    case WeightType::iq4_xs: return f(std::integral_constant<WeightType, WeightType::iq4_xs>());
    case WeightType::mxfp4: return f(std::integral_constant<WeightType, WeightType::mxfp4>());
  }
}

template <class Level>
ELLM_INLINE void multiply_any(const MatmulArgs& a, uint32_t from = 0) {
  with_type(a.w.type, [&](auto type) ELLM_INLINE_LAMBDA { multiply<Level, type>(a, from); });
}

}  // namespace
}  // namespace ellm::kernels
