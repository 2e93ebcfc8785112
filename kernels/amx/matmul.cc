// Matrix products of the AMX level: integer sums of 16 tokens times a panel in tile registers, everything else by
// AVX-512. Tokens that fill no tile, and float weights, are that level's. HACKING.md, "The tile".
#include "kernels/lanes/matmul.h"

#include "kernels/amx/intrinsics.h"
#include "kernels/amx/level.h"
#include "kernels/avx512/block.h"
#include "kernels/avx512/lanes.h"
#include "kernels/avx512/level.h"

namespace ellm::kernels::ELLM_AMX {
namespace {

constexpr size_t kTokenBytes = 1 << 20;    // of the activations that pass over all panels together
constexpr size_t kGroupBytes = 256 << 10;  // of panels that those behind the last whole tile find in the cache
constexpr uint32_t kStretch = 32;          // blocks that are unpacked at a time
constexpr uint32_t kTokens = 256;          // for which they are, at most
constexpr int kSums = 2;                   // tile registers of sums, 0 and 1; 4: activations, 6: weights

/// GCC's tile intrinsics do not declare what they read: it must be in memory before.
ELLM_INLINE void finish_writing() { __asm__ volatile("" ::: "memory"); }

/// A step is what shares the scales: a block, of Q6_K half of one.
template <WeightType type>
constexpr uint32_t kSteps = type == WeightType::q6_k ? 2 : 1;
template <WeightType type>
constexpr uint32_t kPart = kBlock / kSteps<type>;  // its columns
template <WeightType type>
constexpr uint32_t kMinima = type == WeightType::q2_k ? 2 : 1;

/// Up to kStretch blocks of a panel: weights as signed bytes, as they lie in a tile register, and scales as f32.
struct alignas(64) Stretch {
  int8_t codes[kStretch][8][64];
  float d[2 * kStretch][kPanelRows];  // of each step
  float m[2 * kStretch][kPanelRows];
};

/// Blocks [first, first + blocks) of a panel; `first` begins a super-block.
template <WeightType type>
__attribute__((noinline)) void unpack(Bytes panel, size_t panel_bytes, uint32_t first, uint32_t blocks, Stretch& to) {
  constexpr QuantLayout l = quant_layout(type);
  // What makes codes unsigned; Q3_K: what fold_scales adds.
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(type == WeightType::q3_k ? 128 : l.offset));
  Bytes at = panel + first / l.blocks * (l.header + size_t{l.blocks} * l.block());
  for (uint32_t b = 0; b < blocks;) {
    Bytes header = at;
    at += l.header;
    for (uint32_t k = 0; k < l.blocks; ++k, ++b, at += l.block()) {
      prefetch_ahead<type, 1>(panel, panel_bytes, static_cast<size_t>(at - panel));
      const Scales s = scales_of<type>(header, at);
      __m512i w[8];
      unrolled<8>([&](auto g) ELLM_INLINE_LAMBDA { w[g] = group<type, g>(at + quant_layout(type).scales); });
      fold_scales<type>(w, s.pairs);
      unrolled<8>([&](auto g) ELLM_INLINE_LAMBDA {
        _mm512_store_si512(to.codes[b][g], quant_layout(type).offset == 0 ? w[g] : _mm512_sub_epi8(w[g], offset));
      });
      for (uint32_t i = 0; i < kSteps<type>; ++i) _mm512_store_ps(to.d[kSteps<type> * b + i], s.d[i]);
      if constexpr (l.has_minimum)
        for (uint32_t i = 0; i < kMinima<type>; ++i) _mm512_store_ps(to.m[kMinima<type> * b + i], s.m[i]);
    }
  }
}

/// The bits of 1.5 * 2^23, to which an integer within ±2^22 is added: those of the sum as f32.
constexpr int32_t kMagic = 0x4b400000;
alignas(64) constexpr int32_t kStart[16] = {kMagic, kMagic, kMagic, kMagic, kMagic, kMagic, kMagic, kMagic,
                                            kMagic, kMagic, kMagic, kMagic, kMagic, kMagic, kMagic, kMagic};

/// Begins the sums of a step in tile register t: 16 tokens (rows) times 16 rows of the panel (columns).
template <int t>
ELLM_INLINE void begin_sums(const int8_t* q, const int8_t* codes) {
  _tile_loadd(4, q, kBlock);
  _tile_loadd(6, codes, 64);
  if constexpr (t == 0) {
    _tile_loadd(0, kStart, 0);
    _tile_dpbssd(0, 4, 6);
  } else {
    _tile_loadd(1, kStart, 0);
    _tile_dpbssd(1, 4, 6);
  }
}
template <int t>
ELLM_INLINE void store_sums(float* to) {
  if constexpr (t == 0) _tile_stored(0, to, 64);
  if constexpr (t == 1) _tile_stored(1, to, 64);
}

/// Which sums begin next: the steps of one tile of tokens, then of the next. An odd number of steps is made even by the
/// last once more; behind the last tile it begins again. Nobody uses those sums.
template <WeightType type>
struct Next {
  const int8_t *q, *codes;
  size_t tile_bytes;
  uint32_t steps, tiles, step = 0;

  /// In tile register t, which is also the half of its block that a step is, where it is one.
  template <int t>
  ELLM_INLINE void begin() {
    constexpr uint32_t offset = kSteps<type> == 2 ? t * kPart<type> : 0;
    const uint32_t real = step < steps ? step : steps - 1;
    begin_sums<t>(q + real / kSteps<type> * (kTokenTile * kBlock) + offset, codes + real * (kPart<type> * kPanelRows));
    step += 1;
    if (t == 0 || step < steps) return;
    step = 0;
    if (tiles == 1) return;
    tiles -= 1;
    q += tile_bytes;
  }
};

/// 16 tokens' share of a step.
template <WeightType type>
ELLM_INLINE void add_step(const Stretch& w, uint32_t step, const Tile<type, 16>& tile, const float (*sums)[kPanelRows],
                          __m512 (&acc)[kTokenTile]) {
  const uint32_t block = step / kSteps<type>, at = block * kTokenTile;
  const __m512 d = _mm512_load_ps(w.d[step]), magic = _mm512_castsi512_ps(_mm512_set1_epi32(kMagic));
  unrolled<kTokenTile>([&](auto i) ELLM_INLINE_LAMBDA {
    const __m512 sum = _mm512_sub_ps(_mm512_load_ps(sums[i]), magic);
    __m512& a = acc[i];
    a = _mm512_fmadd_ps(sum, _mm512_mul_ps(d, _mm512_set1_ps(tile.scale[at + i])), a);
    if constexpr (type == WeightType::q2_k) {
      const float* halves = tile.scaled_halves + 2 * (at + i);
      a = _mm512_fmadd_ps(_mm512_load_ps(w.m[2 * block]), _mm512_set1_ps(halves[0]), a);
      a = _mm512_fmadd_ps(_mm512_load_ps(w.m[2 * block + 1]), _mm512_set1_ps(halves[1]), a);
    } else if constexpr (quant_layout(type).has_minimum) {
      a = _mm512_fmadd_ps(_mm512_load_ps(w.m[block]), _mm512_set1_ps(tile.scaled_sum[at + i]), a);
    }
  });
}

/// The share of a stretch, blocks [begin, begin + blocks) of a panel, in `tiles` tiles of tokens from `first` on.
template <WeightType type>
__attribute__((noinline)) void add_stretch(const MatmulArgs& a, uint32_t panel, const Stretch& w, uint32_t begin,
                                           uint32_t blocks, uint32_t first, uint32_t tiles,
                                           Avx512Lanes (*acc)[kTokenTile]) {
  alignas(64) float sums[kSums][kTokenTile][kPanelRows];
  const uint32_t steps = blocks * kSteps<type>;
  Next<type> next{a.x.q + size_t{first} * a.x.padded_cols() + size_t{begin} * (kTokenTile * kBlock), w.codes[0][0],
                  size_t{kTokenTile} * a.x.padded_cols(), steps, tiles};
  next.template begin<0>();
  next.template begin<1>();
  store_sums<0>(sums[0][0]);
  next.template begin<0>();
  for (uint32_t t = 0; t < tiles; ++t, first += kTokenTile) {
    prefetch_out<1>(a, panel, first, kTokenTile);
    Tile<type, 16> tile(a.x, first);
    tile.skip(begin);
    __m512 sum[kTokenTile];
    unrolled<kTokenTile>([&](auto i) ELLM_INLINE_LAMBDA { sum[i] = acc[t][i].v; });
    for (uint32_t s = 0; s < steps; s += kSums) {
      unrolled<kSums>([&](auto i) ELLM_INLINE_LAMBDA {
        store_sums<1 - i>(sums[1 - i][0]);
        next.template begin<1 - i>();
        if (s + i < steps) add_step(w, s + i, tile, sums[i], sum);
      });
    }
    unrolled<kTokenTile>([&](auto i) ELLM_INLINE_LAMBDA { acc[t][i].v = sum[i]; });
  }
}

/// Palette 1 (Intel SDM volume 1, 18.2): rows and bytes a row of each tile register.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
template <WeightType type>
void configure() {
  static_assert(sizeof(TileConfig) == 64);
  TileConfig c;
  for (int t = 0; t < kSums; ++t) c.rows[t] = kTokenTile, c.row_bytes[t] = 4 * kPanelRows;
  c.rows[4] = kTokenTile, c.row_bytes[4] = kPart<type>;
  c.rows[6] = kPart<type> / 4, c.row_bytes[6] = 4 * kPanelRows;
  finish_writing();
  _tile_loadconfig(&c);
}

/// A panel times up to kTokens tokens from `first` on, a multiple of 16.
template <WeightType type>
void multiply_panel(const MatmulArgs& a, uint32_t panel, uint32_t first, uint32_t tokens, Stretch& w) {
  Bytes data = a.w.data + panel * a.w.panel_bytes;
  const uint32_t tiles = tokens / kTokenTile, blocks = a.x.blocks();
  Avx512Lanes acc[kTokens / kTokenTile][kTokenTile];
  for (uint32_t t = 0; t < tiles; ++t)
    for (Avx512Lanes& lanes : acc[t]) lanes = Avx512Lanes::broadcast(0);
  for (uint32_t begin = 0; begin < blocks; begin += kStretch) {
    const uint32_t n = blocks - begin < kStretch ? blocks - begin : kStretch;
    unpack<type>(data, a.w.panel_bytes, begin, n, w);
    finish_writing();
    add_stretch<type>(a, panel, w, begin, n, first, tiles, acc);
  }
  for (uint32_t t = 0; t < tiles; ++t) write(a, panel, first + t * kTokenTile, kTokenTile, acc[t]);
}

/// Panels [begin, end) times `tokens` tokens from `first` on, a multiple of 16 and up to kTokens.
template <WeightType type>
void multiply_group(const MatmulArgs& a, uint32_t begin, uint32_t end, uint32_t first, uint32_t tokens) {
  Stretch w;
  configure<type>();
  for (uint32_t panel = begin; panel < end; ++panel) multiply_panel<type>(a, panel, first, tokens, w);
  _tile_release();
}

/// Tokens that pass over all panels together: as many as the L2 cache has room for, of about equal parts of `whole`.
uint32_t tokens_at_once(uint32_t whole, uint32_t padded_cols) {
  const uint32_t fit = static_cast<uint32_t>(kTokenBytes / padded_cols) / kTokenTile * kTokenTile;
  const uint32_t most = fit == 0 ? kTokenTile : fit < kTokens ? fit : kTokens;
  const uint32_t parts = (whole + most - 1) / most;
  return ((whole + parts - 1) / parts + kTokenTile - 1) / kTokenTile * kTokenTile;
}

}  // namespace

void matmul(const MatmulArgs& a) noexcept {
  const uint32_t whole = a.x.rows / kTokenTile * kTokenTile;
  if (!is_quantised(a.w.type) || whole == 0) return ELLM_AVX512::matmul(a);
  const uint32_t at_once = tokens_at_once(whole, a.x.padded_cols());
  const uint32_t fit = static_cast<uint32_t>(kGroupBytes / a.w.panel_bytes), panels = fit == 0 ? 1 : fit;
  for (uint32_t first = 0; first < whole; first += at_once) {
    const uint32_t tokens = whole - first < at_once ? whole - first : at_once;
    for (uint32_t begin = a.first_panel; begin < a.last_panel; begin += panels) {
      const uint32_t end = a.last_panel - begin < panels ? a.last_panel : begin + panels;
      with_type(a.w.type, [&](auto type) ELLM_INLINE_LAMBDA {
        if constexpr (is_quantised(type)) multiply_group<type>(a, begin, end, first, tokens);
      });
      if (first + tokens == a.x.rows || first + tokens < whole) continue;
      MatmulArgs group = a;
      group.first_panel = begin, group.last_panel = end;
      ELLM_AVX512::matmul_from(group, whole);
    }
  }
}

}  // namespace ellm::kernels::ELLM_AMX
