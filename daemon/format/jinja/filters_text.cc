// Filters on text.
#include <algorithm>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"
#include "daemon/format/jinja/text_ops.h"

namespace ellm::format::jinja {

namespace {

/// The value as text (Markup stays Markup) through `change`.
template <typename Change>
Value changed(Runtime& rt, const Value& v, Change change) {
  const Value text = to_text(rt, v);
  rt.spend_characters(text.text().size());
  return rt.text(change(text.text()), text.str()->markup);
}

/// Jinja's title: words begin behind spaces, hyphens and opening brackets; the rest of a word is lower case.
std::string title_words(std::string_view text) {
  const auto separates = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const bool gap = separates(next_point(text, at));
    const size_t second = at;
    for (size_t next = at; next < text.size(); at = next) {
      if (separates(next_point(text, next)) != gap) break;
    }
    if (gap) {
      out += text.substr(begin, at - begin);
    } else {
      out += upper(text.substr(begin, second - begin)) + lower(text.substr(second, at - second));
    }
  }
  return out;
}

size_t count_words(std::string_view text) {
  size_t words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const bool word = is_word(next_point(text, at));
    words += word && !in_word;
    in_word = word;
  }
  return words;
}

std::string quote_url(Runtime& rt, std::string_view text, bool query) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  rt.check_text(text.size(), 3);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80 && (is_word(byte) || c == '.' || c == '-' || c == '~' || (c == '/' && !query));
    if (plain) {
      out += c;
    } else if (query && c == ' ') {
      out += '+';
    } else {
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

Value url_encode(Runtime& rt, const Value& v, Arguments&) {
  if (v.is_string() || !is_iterable(v)) return rt.text(quote_url(rt, str_of(rt, v), false));
  std::string out;
  const auto add = [&](const Value& key, const Value& value) {
    if (!out.empty()) out += '&';
    out += quote_url(rt, str_of(rt, key), true) + '=' + quote_url(rt, str_of(rt, value), true);
    rt.check_text(out.size());
  };
  if (const Dict* dict = as_dict(v)) {
    for (const auto& [key, value] : dict->entries()) add(key, value);
    return rt.text(std::move(out));
  }
  for (const Value& item : to_vector(rt, v)) {
    const std::vector<Value> pair = to_vector(rt, item);
    if (pair.size() != 2) rt.fail("urlencode needs pairs of key and value");
    add(pair[0], pair[1]);
  }
  return rt.text(std::move(out));
}

std::string without_tags(Runtime& rt, std::string_view text) {
  rt.spend_characters(text.size());
  std::string plain;
  // Behind the last end there is no other: searching for it from every '<' would take forever.
  const size_t last_tag = text.rfind('>'), last_comment = text.rfind("-->");
  const auto ends_behind = [](size_t last, size_t at) { return last != std::string_view::npos && last >= at; };
  for (size_t at = 0; at < text.size();) {
    const bool comment = text.substr(at).starts_with("<!--");
    const bool ends = text[at] == '<' && ends_behind(comment ? last_comment : last_tag, at);
    const size_t end = ends ? find_text(text, comment ? "-->" : ">", at) : std::string_view::npos;
    if (end == std::string_view::npos) {
      plain += text[at++];
    } else {
      at = end + (comment ? 3 : 1);
    }
  }
  std::string out;
  for (const std::string_view word : split_space(rt, plain, -1, false)) out.append(out.empty() ? "" : " ").append(word);
  static constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
  std::string result;
  for (size_t at = 0; at < out.size();) {
    const auto rest = std::string_view(out).substr(at);
    const auto* entity = std::find_if(std::begin(kEntities), std::end(kEntities),
                                      [rest](const auto& e) { return rest.starts_with(e.first); });
    if (entity != std::end(kEntities)) {
      result += entity->second;
      at += entity->first.size();
    } else {
      result += out[at++];
    }
  }
  return result;
}

Value replace_filter(Runtime& rt, const Value& v, Arguments& args) {
  const int64_t count = args.has(2) && !args[2].is_none() ? integer_argument(rt, "replace", args[2]) : -1;
  return rt.text(replace_text(rt, str_of(rt, v), str_of(rt, args[0]), str_of(rt, args[1]), count));
}

Value trim_filter(Runtime& rt, const Value& v, Arguments& args) {
  const Value text = to_text(rt, v);
  return rt.text_like(text, strip_argument(rt, text.text(), Side::both, args));
}

Value escape_filter(Runtime& rt, const Value& v, Arguments&) {
  if (v.is_string() && v.str()->markup) return v;
  return rt.text(escape_html(rt, str_of(rt, v)), true);
}

constexpr Builtin kFilters[] = {
    {"upper", "", [](Runtime& rt, const Value& v, Arguments&) { return changed(rt, v, upper); }},
    {"lower", "", [](Runtime& rt, const Value& v, Arguments&) { return changed(rt, v, lower); }},
    {"title", "", [](Runtime& rt, const Value& v, Arguments&) { return changed(rt, v, title_words); }},
    {"capitalize", "", [](Runtime& rt, const Value& v, Arguments&) { return changed(rt, v, capitalize); }},
    {"string", "", [](Runtime& rt, const Value& v, Arguments&) { return to_text(rt, v); }},
    {"trim", "chars?", trim_filter},
    {"replace", "old new count?", replace_filter},
    {"escape", "", escape_filter},
    {"e", "", escape_filter},
    {"forceescape", "",
     [](Runtime& rt, const Value& v, Arguments&) { return rt.text(escape_html(rt, str_of(rt, v)), true); }},
    {"safe", "", [](Runtime& rt, const Value& v, Arguments&) { return rt.text(str_of(rt, v), true); }},
    {"striptags", "", [](Runtime& rt, const Value& v, Arguments&) { return rt.text(without_tags(rt, str_of(rt, v))); }},
    {"wordcount", "",
     [](Runtime& rt, const Value& v, Arguments&) {
       const std::string text = str_of(rt, v);
       rt.spend_characters(text.size());
       return Value::integer(static_cast<int64_t>(count_words(text)));
     }},
    {"urlencode", "", url_encode},
};

}  // namespace

BuiltinTable text_filters() { return kFilters; }

}  // namespace ellm::format::jinja
