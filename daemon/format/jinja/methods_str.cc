// Methods of str: case, padding, stripping, format; and the predicates.
#include <algorithm>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/format_spec.h"
#include "daemon/format/jinja/text.h"
#include "daemon/format/jinja/text_ops.h"

namespace ellm::format::jinja {

namespace {

template <std::string (*F)(std::string_view)>
Value mapped(Runtime& rt, const Value& self, Arguments&) {
  rt.spend_characters(self.text().size());
  return rt.text(F(self.text()), self.str()->markup);
}

template <Side S>
Value stripped(Runtime& rt, const Value& self, Arguments& args) {
  return rt.text_like(self, strip_argument(rt, self.text(), S, args));
}

std::string_view fill_argument(Runtime& rt, const Arguments& args) {
  if (!args.has(1)) return " ";
  const std::string_view fill = text_argument(rt, "fillchar", args[1]);
  if (count_points(fill) != 1) rt.fail("the fill character must be exactly one character long");
  return fill;
}

template <char Align>
Value justified(Runtime& rt, const Value& self, Arguments& args) {
  const int64_t width = integer_argument(rt, "width", args[0]);
  const std::string_view fill = fill_argument(rt, args);
  if (Align == '^') return rt.text(centered(rt, self.text(), width, fill), self.str()->markup);
  return rt.text(padded(rt, self.text(), width, Align, fill), self.str()->markup);
}

Value zero_filled(Runtime& rt, const Value& self, Arguments& args) {
  const int64_t width = std::max<int64_t>(integer_argument(rt, "width", args[0]), 0);
  std::string_view text = self.text();
  const bool sign = text.starts_with('-') || text.starts_with('+');
  const std::string head(text.substr(0, sign ? 1 : 0));
  text.remove_prefix(head.size());
  return rt.text(head + padded(rt, text, width - static_cast<int64_t>(head.size()), '>', "0"), self.str()->markup);
}

Value expand_tabs(Runtime& rt, const Value& self, Arguments& args) {
  const int64_t size = args.has(0) ? integer_argument(rt, "tabsize", args[0]) : 8;
  std::string out;
  int64_t column = 0;
  const std::string_view text = self.text();
  rt.spend_text(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_point(text, at);
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      rt.check_text(out.size());
      rt.check_text(static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
      continue;
    }
    out += text.substr(begin, at - begin);
    column = c == '\n' || c == '\r' ? 0 : column + 1;
  }
  return rt.text(std::move(out), self.str()->markup);
}

Value format_map(Runtime& rt, const Value& self, Arguments& args) {
  const Dict* dict = as_dict(args[0]);
  if (dict == nullptr) rt.fail("format_map needs a mapping");
  Arguments named;
  for (const auto& [key, value] : dict->entries()) {
    if (key.is_string()) named.named.emplace_back(key, value);
  }
  return str_format(rt, self, named);
}

constexpr Builtin kMethods[] = {
    {"upper", "", mapped<upper>},
    {"lower", "", mapped<lower>},
    {"title", "", mapped<title>},
    {"capitalize", "", mapped<capitalize>},
    {"swapcase", "", mapped<swapcase>},
    {"casefold", "", mapped<casefold>},
    {"strip", "chars?", stripped<Side::both>},
    {"lstrip", "chars?", stripped<Side::left>},
    {"rstrip", "chars?", stripped<Side::right>},
    {"center", "width fillchar?", justified<'^'>},
    {"ljust", "width fillchar?", justified<'<'>},
    {"rjust", "width fillchar?", justified<'>'>},
    {"zfill", "width", zero_filled},
    {"expandtabs", "tabsize?", expand_tabs},
    {"format", "*", [](Runtime& rt, const Value& self, Arguments& args) { return str_format(rt, self, args); }},
    {"format_map", "mapping", format_map},
};

/// Whether there are characters and all of them pass.
template <bool (*F)(char32_t)>
Value all(Runtime& rt, const Value& self, Arguments&) {
  const std::string_view text = self.text();
  rt.spend_characters(text.size());
  bool pass = !text.empty();
  for (size_t at = 0; pass && at < text.size();) pass = F(next_point(text, at));
  return Value::boolean(pass);
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c); }

/// Something cased, and nothing of the other case.
template <bool Upper>
Value cased(Runtime& rt, const Value& self, Arguments&) {
  const std::string_view text = self.text();
  rt.spend_characters(text.size());
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_point(text, at);
    if (is_title(c) || (Upper ? is_lower(c) : is_upper(c))) return Value::boolean(false);
    any = any || (Upper ? is_upper(c) : is_lower(c));
  }
  return Value::boolean(any);
}

Value title_cased(Runtime& rt, const Value& self, Arguments&) {
  const std::string_view text = self.text();
  rt.spend_characters(text.size());
  bool any = false;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_point(text, at);
    const bool capital = is_upper(c) || is_title(c);
    if (capital ? in_word : is_lower(c) && !in_word) return Value::boolean(false);
    in_word = capital || is_lower(c);
    any = any || in_word;
  }
  return Value::boolean(any);
}

Value ascii_only(Runtime&, const Value& self, Arguments&) { return Value::boolean(self.str()->ascii()); }

Value printable(Runtime& rt, const Value& self, Arguments&) {
  const std::string_view text = self.text();
  rt.spend_characters(text.size());
  for (size_t at = 0; at < text.size();) {
    if (!is_printable(next_point(text, at))) return Value::boolean(false);
  }
  return Value::boolean(true);
}

Value identifier(Runtime& rt, const Value& self, Arguments&) {
  const std::string_view text = self.text();
  rt.spend_characters(text.size());
  for (size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const char32_t c = next_point(text, at);
    if (first ? !(is_alpha(c) || c == '_') : !is_word(c)) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

constexpr Builtin kPredicates[] = {
    {"isdigit", "", all<is_digit>}, {"isdecimal", "", all<is_decimal>}, {"isnumeric", "", all<is_numeric>},
    {"isalpha", "", all<is_alpha>}, {"isalnum", "", all<is_alnum>},     {"isspace", "", all<is_space>},
    {"isupper", "", cased<true>},   {"islower", "", cased<false>},      {"istitle", "", title_cased},
    {"isascii", "", ascii_only},    {"isprintable", "", printable},     {"isidentifier", "", identifier},
};

}  // namespace

BuiltinTable str_methods() { return kMethods; }
BuiltinTable str_predicates() { return kPredicates; }

}  // namespace ellm::format::jinja
