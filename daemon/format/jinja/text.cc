// UTF-8 decoding, character classes, stripping and line splitting. Case mapping stands in text_case.cc.
#include "daemon/format/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace ellm::format::jinja {

namespace {

bool continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

uint64_t eight_bytes(std::string_view text, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, text.data() + at, sizeof word);
  return word;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool in_ranges(char32_t c, const std::pair<char32_t, char32_t>* first, const std::pair<char32_t, char32_t>* last) {
  return std::any_of(first, last, [c](const auto& r) { return c >= r.first && c <= r.second; });
}

// Unicode's Other_Lowercase and Other_Uppercase: cased without being of category Ll or Lu.
constexpr std::pair<char32_t, char32_t> kOtherLower[] = {
    {0xAA, 0xAA},     {0xBA, 0xBA},     {0x2B0, 0x2B8},   {0x2C0, 0x2C1},   {0x2E0, 0x2E4},
    {0x345, 0x345},   {0x37A, 0x37A},   {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78}, {0x1D9B, 0x1DBF},
    {0x2071, 0x2071}, {0x207F, 0x207F}, {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9},
    {0x2C7C, 0x2C7D}, {0xA69C, 0xA69D}, {0xA770, 0xA770}, {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}};
constexpr std::pair<char32_t, char32_t> kOtherUpper[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
// Digits (str.isdigit) that are no decimals: superscripts, subscripts, circled and other styled digits.
constexpr std::pair<char32_t, char32_t> kOtherDigits[] = {
    {0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},  {0x2070, 0x2070},
    {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},  {0x2488, 0x2490},
    {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},  {0x2780, 0x2788},
    {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x1F100, 0x1F10A}};
// Ideographs that are numerals (the common ones).
constexpr std::u32string_view kNumerals =
    U"㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌"
    U"陸零";

bool line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

bool valid_utf8(std::string_view text) {
  size_t i = 0;
  const size_t n = text.size();
  while (i < n) {
    const unsigned char c = text[i];
    if (c < 0x80) {
      const bool ascii = n - i >= 8 && (eight_bytes(text, i) & 0x8080808080808080u) == 0;
      i += ascii ? 8 : 1;
      continue;
    }
    const size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || n - i < length) return false;
    for (size_t k = 1; k < length; ++k) {
      if (!continuation(text[i + k])) return false;
    }
    const unsigned char d = text[i + 1];
    if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

size_t count_points(std::string_view text) {
  size_t continuations = 0;
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    const uint64_t word = eight_bytes(text, i);
    continuations += static_cast<size_t>(std::popcount((word >> 7) & (~word >> 6) & 0x0101010101010101u));
  }
  for (; i < text.size(); ++i) continuations += continuation(static_cast<unsigned char>(text[i]));
  return text.size() - continuations;
}

char32_t next_point(std::string_view text, size_t& at) {
  const unsigned char c = text[at++];
  if (c < 0x80) return c;
  const int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
  char32_t point = c & (0x3F >> more);
  for (int k = 0; k < more && at < text.size(); ++k)
    point = point << 6 | (static_cast<unsigned char>(text[at++]) & 0x3F);
  return point;
}

void append_point(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const int more = c >= 0x10000 ? 3 : c >= 0x800 ? 2 : 1;
  constexpr unsigned char kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[more] | (c >> (6 * more)));
  for (int k = more - 1; k >= 0; --k) out += static_cast<char>(0x80 | ((c >> (6 * k)) & 0x3F));
}

std::u32string to_points(std::string_view text) {
  std::u32string points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) points += next_point(text, at);
  return points;
}

std::string to_utf8(std::u32string_view points) {
  std::string text;
  text.reserve(points.size());
  for (const char32_t c : points) append_point(text, c);
  return text;
}

size_t byte_of_point(std::string_view text, size_t point) {
  size_t at = 0;
  while (at < text.size()) {
    if (!continuation(text[at]) && point-- == 0) return at;
    ++at;
  }
  return at;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) { return is_decimal(c) || in_ranges(c, std::begin(kOtherDigits), std::end(kOtherDigits)); }
bool is_numeric(char32_t c) {
  const auto k = category(c);
  return (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) || kNumerals.find(c) != std::u32string_view::npos;
}
bool is_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return is_alpha(c) || is_numeric(c);
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || in_ranges(c, std::begin(kOtherUpper), std::end(kOtherUpper));
}
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || in_ranges(c, std::begin(kOtherLower), std::end(kOtherLower));
}
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}

std::string_view strip(std::string_view text, Side side, const std::u32string* chars) {
  const auto goes = [chars](char32_t c) {
    return chars != nullptr ? std::binary_search(chars->begin(), chars->end(), c) : is_space(c);
  };
  if (side != Side::right) {
    size_t begin = 0;
    while (begin < text.size()) {
      size_t at = begin;
      if (!goes(next_point(text, at))) break;
      begin = at;
    }
    text.remove_prefix(begin);
  }
  if (side != Side::left) {
    while (!text.empty()) {
      size_t begin = text.size() - 1;
      while (begin > 0 && continuation(text[begin])) --begin;
      size_t at = begin;
      if (!goes(next_point(text, at))) break;
      text = text.substr(0, begin);
    }
  }
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_point(text, at);
    if (!line_break(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace ellm::format::jinja
