// Pure arithmetic of page sizes: one page = 32 tokens x all layers, cut by KV head, so that a NUMA node's share of a
// page (its KV heads) is contiguous:
//   page    = [kv head][layer][K block | V block]      (blocks: kernels/kv_block.h)
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ellm::shm {

enum class KvType : uint8_t { f16, int8, f32, int4 };
inline constexpr KvType kKvTypes[] = {KvType::f16, KvType::int8, KvType::int4, KvType::f32};  // all of them

constexpr const char* name_of(KvType type) {
  return type == KvType::f16 ? "f16" : type == KvType::f32 ? "f32" : type == KvType::int4 ? "int4" : "int8";
}
/// Absent: no such type.
constexpr std::optional<KvType> find_kv_type(std::string_view name) {
  for (const KvType type : kKvTypes) {
    if (name == name_of(type)) return type;
  }
  return std::nullopt;
}

/// Of K and of V: "int8", or "int8:f16".
struct KvTypes {
  KvType k, v;
  constexpr KvTypes(KvType both) : k(both), v(both) {}
  constexpr KvTypes(KvType of_k, KvType of_v) : k(of_k), v(of_v) {}
  bool operator==(const KvTypes&) const = default;
};
constexpr std::optional<KvTypes> find_kv_types(std::string_view names) {
  const size_t colon = names.find(':');
  const auto k = find_kv_type(names.substr(0, colon));
  const auto v = colon == std::string_view::npos ? k : find_kv_type(names.substr(colon + 1));
  if (!k || !v) return std::nullopt;
  return KvTypes{*k, *v};
}
inline std::string name_of(KvTypes types) {
  return types.k == types.v ? name_of(types.k) : std::string(name_of(types.k)) + ":" + name_of(types.v);
}

inline constexpr uint32_t kPageTokens = 32;

/// A piece of a block, for each `group` of its first `tokens` tokens `rows` times [group][token_bytes]: each token's
/// bytes stand alone, so a token's K and V can be copied without its neighbours'.
struct TokenRows {
  size_t rows, token_bytes, group = kPageTokens, tokens = kPageTokens;

  size_t bytes() const { return tokens * rows * token_bytes; }
  size_t offset(size_t row, size_t token) const {
    return ((token / group * rows + row) * group + token % group) * token_bytes;
  }
};

struct PageGeometry {
  uint32_t layers, kv_heads, head_dim;
  KvType k_type, v_type;

  size_t k_block_bytes() const { return block_bytes(k_type, round_up(head_dim, k_type == KvType::int4 ? 8 : 4)); }
  size_t v_block_bytes() const { return block_bytes(v_type, round_up(head_dim, v_type == KvType::int4 ? 32 : 16)); }
  size_t page_bytes() const { return (k_block_bytes() + v_block_bytes()) * layers * kv_heads; }
  size_t k_offset(uint32_t layer, uint32_t kv_head) const {
    return (size_t{kv_head} * layers + layer) * (k_block_bytes() + v_block_bytes());
  }
  size_t v_offset(uint32_t layer, uint32_t kv_head) const { return k_offset(layer, kv_head) + k_block_bytes(); }
  /// The pieces of a K block and of a V block, in order.
  std::array<TokenRows, 3> k_rows() const {
    const size_t values = round_up(head_dim, 4);
    if (k_type == KvType::int8) return {{{values / 4, 4}, {1, 4}, rest()}};  // groups of 4 dimensions; scales
    if (k_type == KvType::int4) return {{{round_up(head_dim, 8) / 8, 4}, {2 * int4_blocks(), 2}, rest()}};
    return {{{values, value_bytes(k_type)}, {0, 0}, {0, 0}}};
  }
  std::array<TokenRows, 3> v_rows() const {
    const size_t values = round_up(head_dim, 16);
    if (v_type == KvType::int8) return {{{values, 1, 4}, {1, 4}, rest()}};
    if (v_type == KvType::int4) return {{{int4_blocks() * 16, 1, 4}, {2 * int4_blocks(), 2}, rest()}};
    return {{{1, values * value_bytes(v_type)}, {0, 0}, {0, 0}}};
  }

 private:
  static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
  size_t int4_blocks() const { return round_up(head_dim, 32) / 32; }    // 32 dimensions with a scale and a minimum
  TokenRows rest() const { return {1, round_up(head_dim, 64), 1, 1}; }  // of the first token
  static size_t value_bytes(KvType type) { return type == KvType::f16 ? 2 : 4; }
  size_t block_bytes(KvType type, size_t values) const {
    switch (type) {
      case KvType::f16: return kPageTokens * values * 2;
      case KvType::int8: return kPageTokens * (values + 4) + rest().bytes();
      case KvType::int4: return kPageTokens * (values / 2 + int4_blocks() * 4) + rest().bytes();
      case KvType::f32: break;
    }
    return kPageTokens * values * 4;
  }
};

}  // namespace ellm::shm
