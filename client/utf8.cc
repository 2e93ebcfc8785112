// One step function knows the well-formed sequences; both questions are answered with it.
#include "client/utf8.h"

#include <cstddef>

namespace ellm::client {
namespace {

struct Step {
  size_t bytes;  // consumed, at least 1
  bool good;
};

/// The character, or the maximal ill-formed part, at the beginning of `s` (not empty).
Step step(std::string_view s) {
  auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  unsigned char lead = at(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;  // of the second byte
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; i++) {
    if (i >= s.size() || at(i) < low || at(i) > high) return {i, false};
    low = 0x80, high = 0xBF;
  }
  return {length, true};
}

}  // namespace

size_t utf8_length(std::string_view bytes) {
  size_t good = 0;
  while (good < bytes.size()) {
    Step next = step(bytes.substr(good));
    if (!next.good) break;
    good += next.bytes;
  }
  return good;
}

bool is_utf8(std::string_view bytes) { return utf8_length(bytes) == bytes.size(); }

std::string to_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    Step next = step(bytes);
    if (next.good) out.append(bytes.substr(0, next.bytes));
    else out.append("\xEF\xBF\xBD");
    bytes.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace ellm::client
