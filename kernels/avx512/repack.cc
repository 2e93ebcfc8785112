// Repacking at the AVX-512 level: a vector has a word of each of a panel's 16 rows.
#include <string.h>

#include <utility>

#include "kernels/avx512/intrinsics.h"
#include "kernels/avx512/level.h"
#include "kernels/panel_place.h"
#include "kernels/read_block.h"

namespace ellm::kernels::ELLM_AVX512 {
namespace {

struct ManyRows {
  static constexpr uint32_t kRows = 16;
  using Word = uint32_t __attribute__((vector_size(64)));
  const std::byte* p;
  size_t row_bytes;

  /// Rows r, r + 4, r + 8 and r + 12: what is transposed within their quarters stands in order then.
  [[gnu::always_inline]] __m512i rows(size_t r, size_t at) const {
    const auto row = [&](size_t i) { return load<__m128i>(p + (r + 4 * i) * row_bytes + at); };
    const __m512i half = _mm512_inserti32x4(_mm512_castsi128_si512(row(0)), row(1), 1);
    return _mm512_inserti32x4(_mm512_inserti32x4(half, row(2), 2), row(3), 3);
  }
  [[gnu::always_inline]] void words(size_t at, Word* w) const {
    const __m512i r0 = rows(0, at), r1 = rows(1, at), r2 = rows(2, at), r3 = rows(3, at);
    const __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    const __m512i all[4] = {_mm512_unpacklo_epi64(low01, low23), _mm512_unpackhi_epi64(low01, low23),
                            _mm512_unpacklo_epi64(high01, high23), _mm512_unpackhi_epi64(high01, high23)};
    memcpy(w, all, sizeof all);
  }
  [[gnu::always_inline]] static void put_halves(std::byte* to, Word w) {
    const auto narrow = __builtin_convertvector(w, uint16_t __attribute__((vector_size(32))));
    memcpy(to, &narrow, sizeof narrow);
  }
  [[gnu::always_inline]] static void put_bytes(std::byte* to, Word w) {
    const auto narrow = __builtin_convertvector(w, uint8_t __attribute__((vector_size(16))));
    memcpy(to, &narrow, sizeof narrow);
  }
};

#include "kernels/lanes/repack.inc"

}  // namespace

void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept {
  repack_panels(dst, dst_data, src, first, last);
}

}  // namespace ellm::kernels::ELLM_AVX512
