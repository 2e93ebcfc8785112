// UTF-8 as the tokenizers need it: one step of a decoder that tolerates anything, and replacement of what is invalid.
// Follows the Unicode standard's table 3-7 and its practice for U+FFFD (one per maximal subpart). Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ellm::format {

enum class Utf8 : uint8_t { character, invalid, truncated };  // truncated: the text ends inside a character

/// What begins at a position: `length` bytes (at least 1), one character where the kind says so.
struct Utf8Step {
  uint32_t length;
  Utf8 kind;
};

/// Precondition: p < end.
inline Utf8Step utf8_step(const char* p, const char* end) {
  const auto byte = [&](int i) { return static_cast<unsigned char>(p[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, Utf8::character};
  if (lead < 0xC2 || lead > 0xF4) return {1, Utf8::invalid};
  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (uint32_t i = 1; i < length; ++i) {
    if (p + i == end) return {i, Utf8::truncated};
    const unsigned char b = byte(static_cast<int>(i));
    if (i == 1 ? (b < low || b > high) : (b & 0xC0) != 0x80) return {i, Utf8::invalid};
  }
  return {length, Utf8::character};
}

/// The code point of a valid character of `length` bytes.
inline char32_t utf8_code_point(const char* p, uint32_t length) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  switch (length) {
    case 1: return byte(0);
    case 2: return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3: return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default: return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

void append_utf8(std::string& out, char32_t code_point);

/// The number of bytes at the beginning that are valid UTF-8, whole characters only.
size_t valid_utf8_prefix(std::string_view bytes);

/// Every maximal subpart of an invalid sequence, and a truncated end, becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace ellm::format
