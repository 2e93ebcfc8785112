// Case mapping with Unicode's unconditional special cases (SpecialCasing.txt), which utf8proc leaves out, and the final
// sigma.
#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

struct SpecialCase {
  char32_t point;
  const char32_t* upper;
  const char32_t* title;
};

// clang-format off
// Sorted by code point.
constexpr SpecialCase kSpecial[] = {
    {0x00DF, U"SS", U"Ss"}, {0x0149, U"\u02BCN", U"\u02BCN"}, {0x01F0, U"J\u030C", U"J\u030C"},
    {0x0390, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"}, {0x03B0, U"\u03A5\u0308\u0301", U"\u03A5\u0308\u0301"},
    {0x0587, U"\u0535\u0552", U"\u0535\u0582"}, {0x1E96, U"H\u0331", U"H\u0331"}, {0x1E97, U"T\u0308", U"T\u0308"},
    {0x1E98, U"W\u030A", U"W\u030A"}, {0x1E99, U"Y\u030A", U"Y\u030A"}, {0x1E9A, U"A\u02BE", U"A\u02BE"},
    {0x1F50, U"\u03A5\u0313", U"\u03A5\u0313"}, {0x1F52, U"\u03A5\u0313\u0300", U"\u03A5\u0313\u0300"},
    {0x1F54, U"\u03A5\u0313\u0301", U"\u03A5\u0313\u0301"}, {0x1F56, U"\u03A5\u0313\u0342", U"\u03A5\u0313\u0342"},
    {0x1F80, U"\u1F08\u0399", U"\u1F88"}, {0x1F81, U"\u1F09\u0399", U"\u1F89"}, {0x1F82, U"\u1F0A\u0399", U"\u1F8A"},
    {0x1F83, U"\u1F0B\u0399", U"\u1F8B"}, {0x1F84, U"\u1F0C\u0399", U"\u1F8C"}, {0x1F85, U"\u1F0D\u0399", U"\u1F8D"},
    {0x1F86, U"\u1F0E\u0399", U"\u1F8E"}, {0x1F87, U"\u1F0F\u0399", U"\u1F8F"}, {0x1F88, U"\u1F08\u0399", U"\u1F88"},
    {0x1F89, U"\u1F09\u0399", U"\u1F89"}, {0x1F8A, U"\u1F0A\u0399", U"\u1F8A"}, {0x1F8B, U"\u1F0B\u0399", U"\u1F8B"},
    {0x1F8C, U"\u1F0C\u0399", U"\u1F8C"}, {0x1F8D, U"\u1F0D\u0399", U"\u1F8D"}, {0x1F8E, U"\u1F0E\u0399", U"\u1F8E"},
    {0x1F8F, U"\u1F0F\u0399", U"\u1F8F"}, {0x1F90, U"\u1F28\u0399", U"\u1F98"}, {0x1F91, U"\u1F29\u0399", U"\u1F99"},
    {0x1F92, U"\u1F2A\u0399", U"\u1F9A"}, {0x1F93, U"\u1F2B\u0399", U"\u1F9B"}, {0x1F94, U"\u1F2C\u0399", U"\u1F9C"},
    {0x1F95, U"\u1F2D\u0399", U"\u1F9D"}, {0x1F96, U"\u1F2E\u0399", U"\u1F9E"}, {0x1F97, U"\u1F2F\u0399", U"\u1F9F"},
    {0x1F98, U"\u1F28\u0399", U"\u1F98"}, {0x1F99, U"\u1F29\u0399", U"\u1F99"}, {0x1F9A, U"\u1F2A\u0399", U"\u1F9A"},
    {0x1F9B, U"\u1F2B\u0399", U"\u1F9B"}, {0x1F9C, U"\u1F2C\u0399", U"\u1F9C"}, {0x1F9D, U"\u1F2D\u0399", U"\u1F9D"},
    {0x1F9E, U"\u1F2E\u0399", U"\u1F9E"}, {0x1F9F, U"\u1F2F\u0399", U"\u1F9F"}, {0x1FA0, U"\u1F68\u0399", U"\u1FA8"},
    {0x1FA1, U"\u1F69\u0399", U"\u1FA9"}, {0x1FA2, U"\u1F6A\u0399", U"\u1FAA"}, {0x1FA3, U"\u1F6B\u0399", U"\u1FAB"},
    {0x1FA4, U"\u1F6C\u0399", U"\u1FAC"}, {0x1FA5, U"\u1F6D\u0399", U"\u1FAD"}, {0x1FA6, U"\u1F6E\u0399", U"\u1FAE"},
    {0x1FA7, U"\u1F6F\u0399", U"\u1FAF"}, {0x1FA8, U"\u1F68\u0399", U"\u1FA8"}, {0x1FA9, U"\u1F69\u0399", U"\u1FA9"},
    {0x1FAA, U"\u1F6A\u0399", U"\u1FAA"}, {0x1FAB, U"\u1F6B\u0399", U"\u1FAB"}, {0x1FAC, U"\u1F6C\u0399", U"\u1FAC"},
    {0x1FAD, U"\u1F6D\u0399", U"\u1FAD"}, {0x1FAE, U"\u1F6E\u0399", U"\u1FAE"}, {0x1FAF, U"\u1F6F\u0399", U"\u1FAF"},
    {0x1FB2, U"\u1FBA\u0399", U"\u1FBA\u0345"}, {0x1FB3, U"\u0391\u0399", U"\u1FBC"},
    {0x1FB4, U"\u0386\u0399", U"\u0386\u0345"}, {0x1FB6, U"\u0391\u0342", U"\u0391\u0342"},
    {0x1FB7, U"\u0391\u0342\u0399", U"\u0391\u0342\u0345"}, {0x1FBC, U"\u0391\u0399", U"\u1FBC"},
    {0x1FC2, U"\u1FCA\u0399", U"\u1FCA\u0345"}, {0x1FC3, U"\u0397\u0399", U"\u1FCC"},
    {0x1FC4, U"\u0389\u0399", U"\u0389\u0345"}, {0x1FC6, U"\u0397\u0342", U"\u0397\u0342"},
    {0x1FC7, U"\u0397\u0342\u0399", U"\u0397\u0342\u0345"}, {0x1FCC, U"\u0397\u0399", U"\u1FCC"},
    {0x1FD2, U"\u0399\u0308\u0300", U"\u0399\u0308\u0300"}, {0x1FD3, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
    {0x1FD6, U"\u0399\u0342", U"\u0399\u0342"}, {0x1FD7, U"\u0399\u0308\u0342", U"\u0399\u0308\u0342"},
    {0x1FE2, U"\u03A5\u0308\u0300", U"\u03A5\u0308\u0300"}, {0x1FE3, U"\u03A5\u0308\u0301", U"\u03A5\u0308\u0301"},
    {0x1FE4, U"\u03A1\u0313", U"\u03A1\u0313"}, {0x1FE6, U"\u03A5\u0342", U"\u03A5\u0342"},
    {0x1FE7, U"\u03A5\u0308\u0342", U"\u03A5\u0308\u0342"}, {0x1FF2, U"\u1FFA\u0399", U"\u1FFA\u0345"},
    {0x1FF3, U"\u03A9\u0399", U"\u1FFC"}, {0x1FF4, U"\u038F\u0399", U"\u038F\u0345"},
    {0x1FF6, U"\u03A9\u0342", U"\u03A9\u0342"}, {0x1FF7, U"\u03A9\u0342\u0399", U"\u03A9\u0342\u0345"},
    {0x1FFC, U"\u03A9\u0399", U"\u1FFC"}, {0xFB00, U"FF", U"Ff"}, {0xFB01, U"FI", U"Fi"}, {0xFB02, U"FL", U"Fl"},
    {0xFB03, U"FFI", U"Ffi"}, {0xFB04, U"FFL", U"Ffl"}, {0xFB05, U"ST", U"St"}, {0xFB06, U"ST", U"St"},
    {0xFB13, U"\u0544\u0546", U"\u0544\u0576"}, {0xFB14, U"\u0544\u0535", U"\u0544\u0565"},
    {0xFB15, U"\u0544\u053B", U"\u0544\u056B"}, {0xFB16, U"\u054E\u0546", U"\u054E\u0576"},
    {0xFB17, U"\u0544\u053D", U"\u0544\u056D"},
};
// clang-format on

const SpecialCase* find_special(char32_t c) {
  if (c < 0xDF) return nullptr;
  const auto* at = std::lower_bound(std::begin(kSpecial), std::end(kSpecial), c,
                                    [](const SpecialCase& s, char32_t value) { return s.point < value; });
  return at != std::end(kSpecial) && at->point == c ? at : nullptr;
}

bool ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

void append_points(std::string& out, const char32_t* points) {
  for (; *points != 0; ++points) append_point(out, *points);
}

void append_upper(std::string& out, char32_t c) {
  if (const auto* special = find_special(c)) return append_points(out, special->upper);
  append_point(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (const auto* special = find_special(c)) return append_points(out, special->title);
  append_point(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

bool cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

// Unicode's Case_Ignorable, as far as Python asks for it around a sigma.
bool case_ignorable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019;
  }
}

// A capital sigma ends a word: a cased letter before it, none behind it.
bool final_sigma(const std::u32string& text, size_t at) {
  size_t i = at;
  while (i > 0 && case_ignorable(text[i - 1])) --i;
  if (i == 0 || !cased(text[i - 1])) return false;
  size_t j = at + 1;
  while (j < text.size() && case_ignorable(text[j])) ++j;
  return j == text.size() || !cased(text[j]);
}

void append_lower(std::string& out, const std::u32string& text, size_t at) {
  const char32_t c = text[at];
  if (c == 0x130) return append_points(out, U"i\u0307");
  if (c == 0x3A3) return append_point(out, final_sigma(text, at) ? 0x3C2 : 0x3C3);
  append_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

std::string upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (ascii(text)) {
    std::transform(text.begin(), text.end(), std::back_inserter(out), ascii_upper);
    return out;
  }
  for (size_t at = 0; at < text.size();) append_upper(out, next_point(text, at));
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (ascii(text)) {
    std::transform(text.begin(), text.end(), std::back_inserter(out), ascii_lower);
    return out;
  }
  const std::u32string points = to_points(text);
  for (size_t i = 0; i < points.size(); ++i) append_lower(out, points, i);
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  const std::u32string points = to_points(text);
  bool in_word = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (in_word) {
      append_lower(out, points, i);
    } else {
      append_title(out, points[i]);
    }
    in_word = cased(points[i]);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  const std::u32string points = to_points(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      append_title(out, points[i]);
    } else {
      append_lower(out, points, i);
    }
  }
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  const std::u32string points = to_points(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (is_upper(points[i])) {
      append_lower(out, points, i);
    } else if (is_lower(points[i])) {
      append_upper(out, points[i]);
    } else {
      append_point(out, points[i]);
    }
  }
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_point(text, at);
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8, UTF8PROC_CASEFOLD, &boundary);
    if (n < 0 || n > 8) {
      append_point(out, c);
      continue;
    }
    for (utf8proc_ssize_t i = 0; i < n; ++i) append_point(out, static_cast<char32_t>(folded[i]));
  }
  return out;
}

}  // namespace ellm::format::jinja
