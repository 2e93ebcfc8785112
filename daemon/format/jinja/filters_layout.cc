// Filters that lay text out: indent, truncate, wordwrap, center, format, xmlattr, pprint.
#include <algorithm>
#include <utility>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/format_spec.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/pprint.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"
#include "daemon/format/jinja/text_ops.h"

namespace ellm::format::jinja {

namespace {

Value indent(Runtime& rt, const Value& v, Arguments& args) {
  text_argument(rt, "indent", v);
  std::string by(4, ' ');
  if (args.has(0)) {
    if (args[0].is_string()) {
      by = args[0].text();
    } else {
      const int64_t width = std::max<int64_t>(integer_argument(rt, "indent", args[0]), 0);
      rt.check_text(static_cast<size_t>(width));
      by.assign(static_cast<size_t>(width), ' ');
    }
  }
  const bool first = args.has(1) && truth(args[1]);
  const bool blank = args.has(2) && truth(args[2]);
  const std::string text = std::string(v.text()) + "\n";
  const auto lines = lines_of(rt, text, false);
  rt.check_text(text.size());
  rt.check_text(lines.size(), by.size());
  rt.spend(lines.size());
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out += '\n';
    if (i == 0 ? first : blank || !lines[i].empty()) out += by;
    out += lines[i];
  }
  return rt.text(std::move(out), v.str()->markup);
}

Value truncate(Runtime& rt, const Value& v, Arguments& args) {
  const int64_t length = args.has(0) ? integer_argument(rt, "truncate", args[0]) : 255;
  const bool kill_words = args.has(1) && truth(args[1]);
  const std::string_view end = args.has(2) ? text_argument(rt, "truncate", args[2]) : std::string_view("...");
  const int64_t leeway = args.has(3) && !args[3].is_none() ? integer_argument(rt, "truncate", args[3]) : 5;
  const auto end_length = static_cast<int64_t>(count_points(end));
  if (length < end_length) rt.fail("truncate: the length is shorter than the end mark");
  if (leeway < 0) rt.fail("truncate: the leeway is negative");
  if (static_cast<int64_t>(length_of(rt, v)) <= length + std::min(leeway, INT64_MAX - length)) return v;
  const std::string_view text = text_argument(rt, "truncate", v);
  std::string_view kept = text.substr(0, byte_of_point(text, static_cast<size_t>(length - end_length)));
  if (!kill_words) kept = split_at_right(rt, kept, " ", 1)[0];
  return rt.text(std::string(kept).append(end), v.str()->markup);
}

/// The chunks of a line between which it may be broken: words, spaces, and parts of words behind hyphens.
std::vector<std::u32string_view> wrap_chunks(std::u32string_view line, bool hyphens) {
  std::vector<std::u32string_view> chunks;
  size_t at = 0;
  const auto letter = [&](size_t i) {
    return i < line.size() && is_word(line[i]) && !is_digit(line[i]) && line[i] != '_';
  };
  while (at < line.size()) {
    size_t end = at;
    const bool space = is_space(line[at]);
    while (end < line.size() && is_space(line[end]) == space) {
      ++end;
      // Behind a hyphen between letters a word may be broken.
      if (!space && hyphens && line[end - 1] == '-' && end >= at + 3 && letter(end - 2) && letter(end - 3) &&
          letter(end))
        break;
    }
    chunks.push_back(line.substr(at, end - at));
    at = end;
  }
  return chunks;
}

/// Gives the lines that `line` becomes to `put`, one after the other.
template <typename Put>
void wrap_line(std::u32string_view line, size_t width, bool break_words, bool hyphens, const Put& put) {
  auto chunks = wrap_chunks(line, hyphens);
  std::reverse(chunks.begin(), chunks.end());
  const auto blank = [](std::u32string_view s) { return std::all_of(s.begin(), s.end(), is_space); };
  bool first = true;
  while (!chunks.empty()) {
    std::u32string current;
    size_t last_chunk = 0;
    if (!first && blank(chunks.back())) chunks.pop_back();
    while (!chunks.empty() && current.size() + chunks.back().size() <= width) {
      last_chunk = current.size();
      current += chunks.back();
      chunks.pop_back();
    }
    if (!chunks.empty() && chunks.back().size() > width) {
      std::u32string_view& chunk = chunks.back();
      if (break_words) {
        const size_t space = width > current.size() ? width - current.size() : 0;
        last_chunk = current.size();
        current += chunk.substr(0, space);
        chunk.remove_prefix(space);
      } else if (current.empty()) {
        last_chunk = 0;
        current = chunk;
        chunks.pop_back();
      }
    }
    if (!current.empty() && blank(current.substr(last_chunk))) current.resize(last_chunk);
    if (current.empty()) continue;
    put(current);
    first = false;
  }
}

Value wordwrap(Runtime& rt, const Value& v, Arguments& args) {
  const std::string_view text = text_argument(rt, "wordwrap", v);
  const int64_t width = args.has(0) ? integer_argument(rt, "wordwrap", args[0]) : 79;
  const bool break_words = !args.has(1) || truth(args[1]);
  const std::string with = args.has(2) && !args[2].is_none() ? str_of(rt, args[2]) : "\n";
  const bool hyphens = !args.has(3) || truth(args[3]);
  if (width <= 0) rt.fail("wordwrap: the width must be positive");
  rt.spend(text.size());
  std::string out;
  bool first_line = true;
  for (const std::string_view line : lines_of(rt, text, false)) {
    if (!first_line) out += with;
    first_line = false;
    bool first_part = true;
    wrap_line(to_points(line), static_cast<size_t>(width), break_words, hyphens, [&](const std::u32string& part) {
      if (!std::exchange(first_part, false)) out += with;
      out += to_utf8(part);
      rt.check_text(out.size());
    });
  }
  return rt.text(std::move(out));
}

Value format_filter(Runtime& rt, const Value& v, Arguments& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    rt.fail("format takes either positional or keyword arguments");
  }
  if (args.named.empty()) return printf_format(rt, to_text(rt, v), rt.tuple(args.positional));
  Dict* named = rt.dict();
  for (const auto& [key, value] : args.named) named->set(rt, key, value);
  return printf_format(rt, to_text(rt, v), Value::object(named));
}

Value xml_attributes(Runtime& rt, const Value& v, Arguments& args) {
  const Dict* dict = as_dict(v);
  if (dict == nullptr) rt.fail("xmlattr needs a mapping");
  std::string out;
  for (const auto& [key, value] : dict->entries()) {
    if (value.is_none() || value.is_undefined()) continue;
    const std::string_view name = text_argument(rt, "xmlattr", key);
    if (name.find_first_of(" \t\n\r\f\v/>=") != name.npos) {
      rt.fail("invalid character in the attribute name '" + std::string(name) + "'");
    }
    const bool markup = value.is_string() && value.str()->markup;
    const std::string text = markup ? value.str()->text : escape_html(rt, str_of(rt, value));
    out += (out.empty() ? "" : " ") + escape_html(rt, name) + "=\"" + text + "\"";
    rt.check_text(out.size());
  }
  const bool space = !args.has(0) || truth(args[0]);
  return rt.text((space && !out.empty() ? " " : "") + out);
}

constexpr Builtin kFilters[] = {
    {"indent", "width? first? blank?", indent},
    {"truncate", "length? killwords? end? leeway?", truncate},
    {"wordwrap", "width? break_long_words? wrapstring? break_on_hyphens?", wordwrap},
    {"center", "width?",
     [](Runtime& rt, const Value& v, Arguments& args) {
       const Value text = to_text(rt, v);
       return rt.text(centered(rt, text.text(), args.has(0) ? integer_argument(rt, "center", args[0]) : 80, " "),
                      text.str()->markup);
     }},
    {"format", "*", format_filter},
    {"xmlattr", "autospace?", xml_attributes},
    {"pprint", "", [](Runtime& rt, const Value& v, Arguments&) { return rt.text(pretty(rt, v)); }},
};

}  // namespace

BuiltinTable layout_filters() { return kFilters; }

}  // namespace ellm::format::jinja
