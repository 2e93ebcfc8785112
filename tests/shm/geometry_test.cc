// shm/geometry.h against kernels/kv_block.h, which owns the blocks' insides: two rooms that do not include each other.
#include "shm/geometry.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kernels/kernel_set.h"
#include "kernels/kv_block.h"

using ellm::shm::KvType;
using ellm::shm::PageGeometry;

namespace {

ellm::kernels::KvType kernel_type(KvType type) {
  using Kernels = ellm::kernels::KvType;
  switch (type) {
    case KvType::f16: return Kernels::f16;
    case KvType::int8: return Kernels::int8;
    case KvType::int4: return Kernels::int4;
    case KvType::f32: break;
  }
  return Kernels::f32;
}

TEST(PageGeometry, BlocksAreTheKernels) {
  EXPECT_EQ(ellm::shm::kPageTokens, ellm::kernels::kPageTokens);
  for (KvType k : ellm::shm::kKvTypes) {
    for (KvType v : ellm::shm::kKvTypes) {
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
  for (KvType k : ellm::shm::kKvTypes) {
    for (KvType v : ellm::shm::kKvTypes) {
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
  EXPECT_EQ((PageGeometry{30, 3, 64, KvType::int8, KvType::int8}.page_bytes()), 30u * 3 * 2 * (32 * (64 + 4) + 64));
  EXPECT_EQ((PageGeometry{30, 3, 64, KvType::int4, KvType::int4}.page_bytes()),
            30u * 3 * 2 * (32 * (64 / 2 + 2 * 4) + 64));
}

/// A token's bytes lie where TokenRows says, and nowhere else: what the kernels write for it.
TEST(PageGeometry, TokensAreWhereTheKernelsWriteThem) {
  const auto& kernels = *ellm::kernels::kernel_set(ellm::kernels::Level::scalar);
  const auto check = [](const std::array<ellm::shm::TokenRows, 3>& pieces, const std::vector<std::byte>& block,
                        uint32_t token) {
    std::vector<bool> listed(block.size());
    size_t at = 0;
    for (const auto& piece : pieces) {
      for (size_t row = 0; row < piece.rows && token < piece.tokens; ++row)
        for (size_t i = 0; i < piece.token_bytes; ++i) listed[at + piece.offset(row, token) + i] = true;
      at += piece.bytes();
    }
    ASSERT_EQ(at, block.size());
    for (size_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i] != std::byte{0xa5}, bool{listed[i]}) << "byte " << i;
  };
  for (KvType type : ellm::shm::kKvTypes) {
    for (uint32_t head_dim : {8u, 20u, 64u, 80u, 256u}) {
      for (uint32_t token : {0u, 5u, 31u}) {
        const PageGeometry g{1, 1, head_dim, type, type};
        const std::vector<float> x(head_dim, 0.75f);  // no byte of it is 0xa5
        std::vector<std::byte> k(g.k_block_bytes(), std::byte{0xa5}), v(g.v_block_bytes(), std::byte{0xa5});
        kernels.store_k(kernel_type(type), head_dim, x.data(), k.data(), token);
        kernels.store_v(kernel_type(type), head_dim, x.data(), v.data(), token);
        check(g.k_rows(), k, token);
        check(g.v_rows(), v, token);
      }
    }
  }
}

TEST(KvTypes, NamesOfKAndV) {
  using ellm::shm::find_kv_types, ellm::shm::KvTypes;
  EXPECT_EQ(find_kv_types("int8"), (KvTypes{KvType::int8, KvType::int8}));
  EXPECT_EQ(find_kv_types("int8:f16"), (KvTypes{KvType::int8, KvType::f16}));
  for (const char* wrong : {"", "int9", ":", "int8:", ":int8", "int8:f16:f16", "int8 "})
    EXPECT_FALSE(find_kv_types(wrong)) << wrong;
  for (KvType k : ellm::shm::kKvTypes)
    for (KvType v : ellm::shm::kKvTypes) EXPECT_EQ(find_kv_types(name_of(KvTypes{k, v})), (KvTypes{k, v}));
}

}  // namespace
