// Repacking at the AVX2 level: a vector has a word of each of 8 rows.
#include <immintrin.h>
#include <string.h>

#include <utility>

#include "kernels/avx2/level.h"
#include "kernels/panel_place.h"
#include "kernels/read_block.h"

namespace ellm::kernels::avx2 {
namespace {

struct ManyRows {
  static constexpr uint32_t kRows = 8;
  using Word = uint32_t __attribute__((vector_size(32)));
  const std::byte* p;
  size_t row_bytes;

  [[gnu::always_inline]] void words(size_t at, Word* w) const {
    // Rows r and r + 4: what is transposed within their halves stands in order then.
    const auto rows = [&](size_t r) {
      const __m128i low = load<__m128i>(p + r * row_bytes + at), high = load<__m128i>(p + (r + 4) * row_bytes + at);
      return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    };
    const __m256i r0 = rows(0), r1 = rows(1), r2 = rows(2), r3 = rows(3);
    const __m256i low01 = _mm256_unpacklo_epi32(r0, r1), high01 = _mm256_unpackhi_epi32(r0, r1);
    const __m256i low23 = _mm256_unpacklo_epi32(r2, r3), high23 = _mm256_unpackhi_epi32(r2, r3);
    w[0] = reinterpret_cast<Word>(_mm256_unpacklo_epi64(low01, low23));
    w[1] = reinterpret_cast<Word>(_mm256_unpackhi_epi64(low01, low23));
    w[2] = reinterpret_cast<Word>(_mm256_unpacklo_epi64(high01, high23));
    w[3] = reinterpret_cast<Word>(_mm256_unpackhi_epi64(high01, high23));
  }
  /// Eight halves: both halves of the vector packed on their own.
  [[gnu::always_inline]] static __m128i halves(Word w) {
    const __m256i words = reinterpret_cast<__m256i>(w), packed = _mm256_packus_epi32(words, words);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
  [[gnu::always_inline]] static void put_halves(std::byte* to, Word w) {
    const __m128i narrow = halves(w);
    memcpy(to, &narrow, sizeof narrow);
  }
  [[gnu::always_inline]] static void put_bytes(std::byte* to, Word w) {
    const __m128i narrow = halves(w);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(narrow, narrow));
  }
};

#include "kernels/lanes/repack.inc"

}  // namespace

void repack(const PanelMatrix& dst, std::byte* dst_data, const std::byte* src, uint32_t first, uint32_t last) noexcept {
  repack_panels(dst, dst_data, src, first, last);
}

}  // namespace ellm::kernels::avx2
