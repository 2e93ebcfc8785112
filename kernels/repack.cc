// Repacking, baseline: vectors of 16 bytes, which every x86-64 has. It is also what stands for the AVX2 level, where
// wider ones gained nothing (they wait for the same shuffles). Any thread.
#include <immintrin.h>
#include <string.h>

#include <utility>

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
};

#include "kernels/lanes/repack.inc"

}  // namespace

void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept {
  repack_panels(dst, dst_data, src, first, last);
}

Repack repack_of(Level level) noexcept { return level == Level::avx512 ? avx512::repack : repack; }

}  // namespace ellm::kernels
