// A fast hash for short byte strings, used by the tables of the tokenizers. Not for data that outlives the process and
// not keyed: tables whose keys a user chooses must not degrade by collisions (they are direct-mapped).
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>

namespace ellm::format {

/// Multiplies to 128 bits and folds: every bit of the result depends on every bit of both.
inline uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t text_hash(std::string_view text) {
  constexpr uint64_t k1 = 0x9E3779B97F4A7C15, k2 = 0xD6E8FEB86659FD93;
  uint64_t h = text.size() * k1 + k2;
  const char* p = text.data();
  size_t left = text.size();
  uint64_t word;
  for (; left >= 8; p += 8, left -= 8) {
    std::memcpy(&word, p, 8);
    h = mix(h ^ word, k1);
  }
  word = 0;
  if (left >= 4) {  // two overlapping halves: constant sizes compile to plain loads
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + left - 4, 4);
    word = static_cast<uint64_t>(high) << 32 | low;
  } else if (left > 0) {
    const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(p[i])); };
    word = byte(0) << 16 | byte(left / 2) << 8 | byte(left - 1);
  }
  return mix(h ^ word, k2);
}

}  // namespace ellm::format
