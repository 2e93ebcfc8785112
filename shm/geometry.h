// Pure arithmetic of page sizes: one page = 32 tokens x all layers, cut by KV head, so that a NUMA node's share of a
// page (its KV heads) is contiguous:
//   page    = [kv head][layer][K block | V block]      (blocks: kernels/kv_block.h)
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ellm::shm {

enum class KvType : uint8_t { f16, int8, f32 };
inline constexpr KvType kKvTypes[] = {KvType::f16, KvType::int8, KvType::f32};   // all of them

constexpr const char* name_of(KvType type) {
  return type == KvType::f16 ? "f16" : type == KvType::f32 ? "f32" : "int8";
}
/// Absent: no such type.
constexpr std::optional<KvType> find_kv_type(std::string_view name) {
  for (const KvType type : kKvTypes) {
    if (name == name_of(type)) return type;
  }
  return std::nullopt;
}

inline constexpr uint32_t kPageTokens = 32;

/// A piece of a block, `rows` times [32 tokens][token_bytes]: each token's bytes stand alone, so a token's K and V can be
/// copied without its neighbours'.
struct TokenRows {
  size_t rows, token_bytes;
};

struct PageGeometry {
  uint32_t layers, kv_heads, head_dim;
  KvType k_type, v_type;

  size_t k_block_bytes() const { return block_bytes(k_type, round_up(head_dim, 4)); }
  size_t v_block_bytes() const { return block_bytes(v_type, round_up(head_dim, 16)); }
  size_t page_bytes() const { return (k_block_bytes() + v_block_bytes()) * layers * kv_heads; }
  size_t k_offset(uint32_t layer, uint32_t kv_head) const {
    return (size_t{kv_head} * layers + layer) * (k_block_bytes() + v_block_bytes());
  }
  size_t v_offset(uint32_t layer, uint32_t kv_head) const { return k_offset(layer, kv_head) + k_block_bytes(); }
  /// The pieces of a K block and of a V block, in order.
  std::array<TokenRows, 2> k_rows() const {
    const size_t values = round_up(head_dim, 4);
    if (k_type == KvType::int8) return {{{values / 4, 4}, {1, 4}}};   // groups of 4 dimensions; scales
    return {{{values, value_bytes(k_type)}, {0, 0}}};
  }
  std::array<TokenRows, 2> v_rows() const {
    return {{{1, round_up(head_dim, 16) * value_bytes(v_type)}, {v_type == KvType::int8 ? 1u : 0u, 4}}};
  }

 private:
  static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
  static size_t value_bytes(KvType type) { return type == KvType::f16 ? 2 : type == KvType::f32 ? 4 : 1; }
  static size_t block_bytes(KvType type, size_t values) {
    return kPageTokens * (values * value_bytes(type) + (type == KvType::int8 ? 4 : 0));
  }
};

}  // namespace ellm::shm
