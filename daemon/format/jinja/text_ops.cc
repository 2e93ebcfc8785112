// Replacing, splitting and stripping.
#include "daemon/format/jinja/text_ops.h"

#include <algorithm>
#include <limits>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/format_spec.h"
#include "daemon/format/jinja/operators.h"

namespace ellm::format::jinja {

namespace {

constexpr auto kNone = std::string_view::npos;

uint64_t limit_of(int64_t limit) {
  return limit < 0 ? std::numeric_limits<uint64_t>::max() : static_cast<uint64_t>(limit);
}

/// One more part, as long as there is memory for all of them as strings.
void add_part(Runtime& rt, std::vector<std::string_view>& parts, std::string_view part) {
  parts.push_back(part);
  rt.spend(1);
  if (parts.size() % 1024 == 0) rt.check_memory(parts.size() * sizeof(Str));
}

/// The empty text stands between all characters.
std::string interleave(Runtime& rt, std::string_view text, std::string_view with, uint64_t limit) {
  const uint64_t places = std::min<uint64_t>(limit, count_points(text) + 1);
  rt.check_text(text.size());
  rt.check_text(places, with.size());
  rt.spend_text(text.size() + places * with.size());
  std::string out;
  uint64_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (done++ < places) out += with;
    const size_t begin = at;
    next_point(text, at);
    out += text.substr(begin, at - begin);
  }
  if (done < places) out += with;
  return out;
}

}  // namespace

std::string replace_text(Runtime& rt, std::string_view text, std::string_view old, std::string_view with,
                         int64_t count) {
  const uint64_t limit = limit_of(count);
  if (old.empty()) return interleave(rt, text, with, limit);
  rt.spend_text(text.size());
  uint64_t found = 0;
  for (size_t at = 0; found < limit && (at = find_text(text, old, at)) != kNone; at += old.size()) ++found;
  rt.spend(found / 4);
  rt.check_text(text.size());
  rt.check_text(found, with.size());
  std::string out;
  out.reserve(text.size() + found * with.size() - found * old.size());
  size_t begin = 0;
  for (uint64_t i = 0; i < found; ++i) {
    const size_t at = find_text(text, old, begin);
    out.append(text.substr(begin, at - begin)).append(with);
    begin = at + old.size();
  }
  return out.append(text.substr(begin));
}

std::vector<std::string_view> split_space(Runtime& rt, std::string_view text, int64_t limit, bool right) {
  std::vector<std::string_view> parts;
  uint64_t splits = limit_of(limit);
  const auto space_at = [](std::string_view t, size_t& at) { return is_space(next_point(t, at)); };
  if (right) {
    text = strip(text, Side::right);
    while (!text.empty()) {
      if (splits-- == 0) {
        parts.push_back(text);
        break;
      }
      size_t begin = text.size();
      while (begin > 0) {
        size_t previous = begin - 1;
        while (previous > 0 && (static_cast<unsigned char>(text[previous]) & 0xC0) == 0x80) --previous;
        size_t at = previous;
        if (space_at(text, at)) break;
        begin = previous;
      }
      add_part(rt, parts, text.substr(begin));
      text = strip(text.substr(0, begin), Side::right);
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  text = strip(text, Side::left);
  while (!text.empty()) {
    if (splits-- == 0) {
      // Python leaves the spaces at the end of the rest where it stopped before them.
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t at = end;
      if (space_at(text, at)) break;
      end = at;
    }
    add_part(rt, parts, text.substr(0, end));
    text = strip(text.substr(end), Side::left);
  }
  return parts;
}

std::vector<std::string_view> split_at(Runtime& rt, std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (uint64_t splits = limit_of(limit); splits != 0; --splits) {
    const size_t at = find_text(text, separator, begin);
    if (at == kNone) break;
    add_part(rt, parts, text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> split_at_right(Runtime& rt, std::string_view text, std::string_view separator,
                                             int64_t limit) {
  const std::string turned(text.rbegin(), text.rend());
  const std::string turned_separator(separator.rbegin(), separator.rend());
  std::vector<std::string_view> parts;
  for (const std::string_view part : split_at(rt, turned, turned_separator, limit)) {
    const auto from = static_cast<size_t>(part.data() - turned.data());
    parts.push_back(text.substr(text.size() - from - part.size(), part.size()));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> lines_of(Runtime& rt, std::string_view text, bool keep_ends) {
  rt.spend_text(text.size());
  // At most this many: the last bytes of all line breaks.
  const auto breaks = [](char c) { return std::string_view("\n\r\v\f\x1c\x1d\x1e\x85\xa8\xa9").find(c) != kNone; };
  rt.check_memory(static_cast<size_t>(std::count_if(text.begin(), text.end(), breaks)) * sizeof(Str));
  return split_lines(text, keep_ends);
}

std::string centered(Runtime& rt, std::string_view text, int64_t width, std::string_view fill) {
  const auto length = static_cast<int64_t>(count_points(text));
  if (width <= length) return std::string(text);
  const int64_t pad = width - length;
  const int64_t left = pad / 2 + (pad & width & 1);
  return padded(rt, padded(rt, text, length + left, '>', fill), width, '<', fill);
}

std::string_view strip_argument(Runtime& rt, std::string_view text, Side side, const Arguments& args) {
  rt.spend(text.size() / 8);
  if (!args.has(0) || args[0].is_none()) return strip(text, side);
  std::u32string chars = to_points(text_argument(rt, "strip", args[0]));
  rt.spend(chars.size());
  std::sort(chars.begin(), chars.end());
  return strip(text, side, &chars);
}

}  // namespace ellm::format::jinja
