// What a page is known by: the hash of its tokens, its namespace and the page before it, so that equal keys stand for
// equal prefixes. A hash alone is never trusted: whoever finds a page by its key compares the tokens.
#pragma once
#include <compare>
#include <cstdint>
#include <span>
#include <string_view>

namespace ellm::shm {

struct PageKey {
  uint64_t low = 0, high = 0;  // both zero: the root, the parent of a namespace's first pages
  auto operator<=>(const PageKey&) const = default;
};

/// XXH3-128 of (parent key, namespace, tokens), in this machine's byte order. At most kPageTokens tokens.
PageKey page_key(const PageKey& parent, uint64_t name_space, std::span<const uint32_t> tokens);

/// The namespace of what a user's requests leave behind. Those that a configuration names have the highest bit set; the
/// name alone says which one it is.
constexpr uint64_t namespace_of_uid(uint32_t uid) { return uid; }
constexpr bool is_uid_namespace(uint64_t name_space) { return name_space < uint64_t{1} << 32; }
uint64_t namespace_of_name(std::string_view name);

}  // namespace ellm::shm
