// NFC; see normalize.h. Only what stands around an unstable character is normalised, everything else is copied. A
// character is stable when normalisation can never change it or join it with what stands before it: NFC_Quick_Check=Yes
// and combining class 0 (UAX #15). utf8proc sorts combining marks by insertion, which a long run of them makes
// quadratic, so we decompose and sort ourselves and leave it the composition.
#include "daemon/format/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "daemon/format/utf8.h"

namespace ellm::format {
namespace {

constexpr char32_t kFirstUnstable = 0x300;

bool is_second_of_a_composition(char32_t c, const utf8proc_property_t& property) {
  // In utf8proc's tables an index from 0x8000 up marks a second character. Hangul vowels and finals are composed by
  // arithmetic.
  return (property.comb_index != UINT16_MAX && property.comb_index >= 0x8000) || (c >= 0x1161 && c <= 0x1175) ||
         (c >= 0x11A8 && c <= 0x11C2);
}

void append_decomposed(std::vector<utf8proc_int32_t>& out, char32_t c) {
  utf8proc_int32_t buffer[32];
  int boundary = 0;
  const auto n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, 32,
                              static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &boundary);
  if (n < 0 || n > 32) {  // cannot happen: the longest canonical decomposition has 4
    out.push_back(static_cast<utf8proc_int32_t>(c));
  } else {
    out.insert(out.end(), buffer, buffer + n);
  }
}

// Canonical order: marks between two starters by class, those of one class as they stand.
void sort_marks(std::vector<utf8proc_int32_t>& points) {
  const auto mark_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  std::vector<uint64_t> keys;  // class, place and character in one number
  for (size_t begin = 0, end; begin < points.size(); begin = end + 1) {
    keys.clear();
    for (end = begin; end < points.size(); ++end) {
      const auto key = static_cast<uint64_t>(mark_class(points[end]));
      if (key == 0) break;
      keys.push_back(key << 56 | static_cast<uint64_t>(end - begin) << 21 | static_cast<uint64_t>(points[end]));
    }
    std::ranges::sort(keys);
    for (size_t i = 0; i < keys.size(); ++i) points[begin + i] = static_cast<utf8proc_int32_t>(keys[i] & 0x1FFFFF);
  }
}

void compose(std::vector<utf8proc_int32_t>& points) {
  sort_marks(points);
  const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  if (n >= 0) points.resize(static_cast<size_t>(n));
}

bool is_stable(char32_t c) {
  if (c < kFirstUnstable) return true;
  // Chinese, Japanese kana without voicing marks, Hangul syllables of the common blocks: no look at the tables.
  if ((c >= 0x3400 && c < 0xA000) || (c >= 0xAC00 && c < 0xD7A4)) return true;
  const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (property.combining_class != 0 || is_second_of_a_composition(c, property)) return false;
  const bool decomposes = property.decomp_seqindex != UINT16_MAX && property.decomp_type == 0;  // canonically
  if (!decomposes) return true;
  std::vector<utf8proc_int32_t> points;
  append_decomposed(points, c);
  compose(points);
  return points.size() == 1 && points[0] == static_cast<utf8proc_int32_t>(c);
}

// The first byte of `text` from `from` on that belongs to an unstable character; text.size() where there is none.
size_t find_unstable(std::string_view text, size_t from) {
  const char* const end = text.data() + text.size();
  for (size_t i = from; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0xCC) {  // below U+0300, or a byte that is invalid here
      ++i;
      continue;
    }
    const Utf8Step step = utf8_step(text.data() + i, end);
    if (step.kind == Utf8::character && !is_stable(utf8_code_point(text.data() + i, step.length))) return i;
    i += step.length;
  }
  return text.size();
}

// Where the valid character that ends at `at` begins, not before `floor`; `at` itself where there is none.
size_t previous_character(std::string_view text, size_t at, size_t floor) {
  for (size_t n = 1; n <= 4 && at - floor >= n; ++n) {
    const Utf8Step step = utf8_step(text.data() + at - n, text.data() + at);
    if (step.kind == Utf8::character && step.length == n) return at - n;
  }
  return at;
}

}  // namespace

bool is_surely_nfc(std::string_view text) { return find_unstable(text, 0) == text.size(); }

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> points;
  const char* const end = text.data() + text.size();
  size_t done = 0;  // bytes of text that are in out
  for (size_t at; (at = find_unstable(text, done)) < text.size();) {
    // From the stable character before the unstable one up to the next stable one (or invalid byte).
    const size_t begin = previous_character(text, at, done);
    out.append(text.substr(done, begin - done));
    points.clear();
    size_t i = begin;
    while (i < text.size()) {
      const Utf8Step step = utf8_step(text.data() + i, end);
      if (step.kind != Utf8::character) break;
      const char32_t c = utf8_code_point(text.data() + i, step.length);
      if (i > at && is_stable(c)) break;
      append_decomposed(points, c);
      i += step.length;
    }
    compose(points);
    for (const utf8proc_int32_t c : points) append_utf8(out, static_cast<char32_t>(c));
    done = i;
  }
  out.append(text.substr(done));
  return out;
}

}  // namespace ellm::format
