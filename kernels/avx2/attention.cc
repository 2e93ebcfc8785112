// Attention and its KV stores of the AVX2 level (kernels/lanes/attention.h, store.h).
#include "kernels/avx2/level.h"

#include "kernels/avx2/lanes.h"
#include "kernels/lanes/attention.h"
#include "kernels/lanes/store.h"

namespace ellm::kernels::avx2 {

void attention(const AttentionArgs& args) noexcept { attend<Avx2Lanes>(args); }
void attention_partial(const AttentionArgs& args, uint32_t segment, uint32_t segments, float* partials) noexcept {
  attend_segment<Avx2Lanes>(args, segment, segments, partials);
}
void attention_merge(const AttentionArgs& args, uint32_t first_row, uint32_t last_row, uint32_t segments,
                     const float* partials) noexcept {
  merge_partials<Avx2Lanes>(args, first_row, last_row, segments, partials);
}
void store_k(KvType type, uint32_t head_dim, const float* k, std::byte* block, uint32_t slot) noexcept {
  store_k_slot<Avx2Lanes>(type, head_dim, k, block, slot);
}
void store_v(KvType type, uint32_t head_dim, const float* v, std::byte* block, uint32_t slot) noexcept {
  store_v_slot<Avx2Lanes>(type, head_dim, v, block, slot);
}

}  // namespace ellm::kernels::avx2
