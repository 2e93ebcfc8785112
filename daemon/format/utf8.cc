// UTF-8 beyond a single step; see utf8.h.
#include "daemon/format/utf8.h"

#include <cstring>

namespace ellm::format {

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

size_t valid_utf8_prefix(std::string_view bytes) {
  const char* const begin = bytes.data();
  const char* const end = begin + bytes.size();
  const char* p = begin;
  while (p < end) {
    for (uint64_t word; end - p >= 8; p += 8) {  // ASCII, eight bytes at a time
      std::memcpy(&word, p, 8);
      if (word & 0x8080808080808080u) break;
    }
    if (p == end) break;
    const Utf8Step step = utf8_step(p, end);
    if (step.kind != Utf8::character) break;
    p += step.length;
  }
  return static_cast<size_t>(p - begin);
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    out.append("\xEF\xBF\xBD");
    bytes.remove_prefix(utf8_step(bytes.data(), bytes.data() + bytes.size()).length);
  }
  return out;
}

}  // namespace ellm::format
