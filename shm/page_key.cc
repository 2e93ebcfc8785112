// See page_key.h.
#include "shm/page_key.h"

#include <xxhash.h>

#include <cassert>
#include <cstring>

#include "shm/geometry.h"

namespace ellm::shm {

PageKey page_key(const PageKey& parent, uint64_t name_space, std::span<const uint32_t> tokens) {
  assert(tokens.size() <= kPageTokens);
  constexpr size_t kHead = 3;  // parent key, namespace
  uint64_t bytes[kHead + kPageTokens / 2] = {parent.low, parent.high, name_space};
  std::memcpy(bytes + kHead, tokens.data(), tokens.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits(bytes, kHead * sizeof(uint64_t) + tokens.size_bytes());
  return {hash.low64, hash.high64};
}

uint64_t namespace_of_name(std::string_view name) { return XXH3_64bits(name.data(), name.size()) | uint64_t{1} << 63; }

}  // namespace ellm::shm
