// See read_block.h.
#include "kernels/read_block.h"

namespace ellm::kernels {

LaneBlock read_gguf(WeightType type, const std::byte* row, size_t block) noexcept {
  return read_block(type, block_shape(type), row, block);
}

}  // namespace ellm::kernels
