// Repacking, baseline: vectors of 16 bytes, which every x86-64 has. Any thread.
#include <immintrin.h>
#include <string.h>

#include <utility>

#include "kernels/avx2/level.h"
#include "kernels/avx512/level.h"
#include "kernels/panel.h"
#include "kernels/panel_place.h"
#include "kernels/read_block.h"

namespace ellm::kernels {
namespace {

struct ManyRows {
  static constexpr uint32_t kRows = 4;
  using Word = uint32_t __attribute__((vector_size(16)));
  const std::byte* p;
  size_t row_bytes;

  [[gnu::always_inline]] void words(size_t at, Word* w) const {
    const auto row = [&](size_t r) { return load<__m128i>(p + r * row_bytes + at); };
    const __m128i low01 = _mm_unpacklo_epi32(row(0), row(1)), high01 = _mm_unpackhi_epi32(row(0), row(1));
    const __m128i low23 = _mm_unpacklo_epi32(row(2), row(3)), high23 = _mm_unpackhi_epi32(row(2), row(3));
    w[0] = reinterpret_cast<Word>(_mm_unpacklo_epi64(low01, low23));
    w[1] = reinterpret_cast<Word>(_mm_unpackhi_epi64(low01, low23));
    w[2] = reinterpret_cast<Word>(_mm_unpacklo_epi64(high01, high23));
    w[3] = reinterpret_cast<Word>(_mm_unpackhi_epi64(high01, high23));
  }
  /// Four halves; SSE2 packs signed words only.
  [[gnu::always_inline]] static __m128i halves(Word w) {
    const __m128i sign_extended = _mm_srai_epi32(_mm_slli_epi32(reinterpret_cast<__m128i>(w), 16), 16);
    return _mm_packs_epi32(sign_extended, sign_extended);
  }
  [[gnu::always_inline]] static void put_halves(std::byte* to, Word w) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), halves(w));
  }
  [[gnu::always_inline]] static void put_bytes(std::byte* to, Word w) {
    const __m128i narrow = halves(w);
    const int bytes = _mm_cvtsi128_si32(_mm_packus_epi16(narrow, narrow));
    memcpy(to, &bytes, sizeof bytes);
  }
};

#include "kernels/lanes/repack.inc"

}  // namespace

void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept {
  repack_panels(dst, dst_data, src, first, last);
}

Repack repack_of(Level level) noexcept {
  switch (level) {
    case Level::amx:
    case Level::avx512: return avx512::repack;
    case Level::avx2: return avx2::repack;
    default: return repack;
  }
}

}  // namespace ellm::kernels
