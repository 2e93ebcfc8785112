// shm/geometry.h against kernels/kv_block.h, which owns the blocks' insides: two rooms that do not include each other.
#include "shm/geometry.h"

#include <gtest/gtest.h>

#include "kernels/kv_block.h"

using ellm::shm::KvType;
using ellm::shm::PageGeometry;

namespace {

ellm::kernels::KvType kernel_type(KvType type) {
  return type == KvType::f16 ? ellm::kernels::KvType::f16 : ellm::kernels::KvType::int8;
}

TEST(PageGeometry, BlocksAreTheKernels) {
  EXPECT_EQ(ellm::shm::kPageTokens, ellm::kernels::kPageTokens);
  for (KvType k : {KvType::f16, KvType::int8}) {
    for (KvType v : {KvType::f16, KvType::int8}) {
      for (uint32_t head_dim = 8; head_dim <= 256; ++head_dim) {
        const PageGeometry g{3, 2, head_dim, k, v};
        ASSERT_EQ(g.k_block_bytes(), ellm::kernels::k_block_bytes(kernel_type(k), head_dim)) << head_dim;
        ASSERT_EQ(g.v_block_bytes(), ellm::kernels::v_block_bytes(kernel_type(v), head_dim)) << head_dim;
        ASSERT_EQ(g.k_block_bytes() % 64, 0u) << head_dim;
        ASSERT_EQ(g.v_block_bytes() % 64, 0u) << head_dim;
      }
    }
  }
}

/// Blocks fill a page without gap or overlap, a KV head's in one piece.
TEST(PageGeometry, BlocksTileThePage) {
  for (KvType k : {KvType::f16, KvType::int8}) {
    for (KvType v : {KvType::f16, KvType::int8}) {
      for (uint32_t head_dim : {8u, 20u, 64u, 80u, 128u, 250u, 256u}) {
        const PageGeometry g{5, 3, head_dim, k, v};
        size_t at = 0;
        for (uint32_t head = 0; head < g.kv_heads; ++head) {
          for (uint32_t layer = 0; layer < g.layers; ++layer) {
            ASSERT_EQ(g.k_offset(layer, head), at);
            at += g.k_block_bytes();
            ASSERT_EQ(g.v_offset(layer, head), at);
            at += g.v_block_bytes();
          }
        }
        ASSERT_EQ(g.page_bytes(), at);
      }
    }
  }
}

/// smollm2 (30 layers, 3 KV heads of 64): by hand.
TEST(PageGeometry, KnownSizes) {
  EXPECT_EQ((PageGeometry{30, 3, 64, KvType::f16, KvType::f16}.page_bytes()), 30u * 3 * 2 * 32 * 64 * 2);
  EXPECT_EQ((PageGeometry{30, 3, 64, KvType::int8, KvType::int8}.page_bytes()), 30u * 3 * 2 * 32 * (64 + 4));
}

}  // namespace
