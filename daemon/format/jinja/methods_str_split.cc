// Methods of str that search, split and join.
#include <algorithm>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/text.h"
#include "daemon/format/jinja/text_ops.h"

namespace ellm::format::jinja {

namespace {

constexpr auto kNone = std::string_view::npos;

/// The part of a text between the optional arguments `at` and `at + 1`, as slices count.
struct Part {
  std::string_view text;
  size_t first_point = 0;
  bool outside = false;  // the start lies behind the end: nothing is found there, not even the empty text
};

Part part_of(Runtime& rt, const Value& self, const Arguments& args, size_t at) {
  const auto length = static_cast<int64_t>(self.str()->points);
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!args.has(i) || args[i].is_none()) return otherwise;
    const int64_t value = integer_argument(rt, "index", args[i]);
    return value < 0 ? std::max<int64_t>(value < -length ? 0 : value + length, 0) : value;
  };
  const int64_t start = bound(at, 0);
  const int64_t stop = std::min(bound(at + 1, length), length);
  rt.spend_text(self.text().size());
  if (start > stop) return {{}, 0, true};
  if (start == 0 && stop == length) return {self.text(), 0, false};
  const size_t from = byte_of_point(self.text(), static_cast<size_t>(start));
  const size_t to = byte_of_point(self.text(), static_cast<size_t>(stop));
  return {self.text().substr(from, to - from), static_cast<size_t>(start), false};
}

/// The code point where argument 0 is found, -1 where it is not.
int64_t find_point(Runtime& rt, const Value& self, const Arguments& args, bool last) {
  const std::string_view wanted = text_argument(rt, "find", args[0]);
  const Part part = part_of(rt, self, args, 1);
  if (part.outside) return -1;
  const size_t at = last ? find_last_text(part.text, wanted) : find_text(part.text, wanted);
  if (at == kNone) return -1;
  return static_cast<int64_t>(part.first_point + count_points(part.text.substr(0, at)));
}

template <bool Last>
Value find(Runtime& rt, const Value& self, Arguments& args) {
  return Value::integer(find_point(rt, self, args, Last));
}

template <bool Last>
Value index(Runtime& rt, const Value& self, Arguments& args) {
  const int64_t at = find_point(rt, self, args, Last);
  if (at < 0) rt.fail("substring not found");
  return Value::integer(at);
}

Value count(Runtime& rt, const Value& self, Arguments& args) {
  const std::string_view wanted = text_argument(rt, "count", args[0]);
  const Part part = part_of(rt, self, args, 1);
  if (part.outside) return Value::integer(0);
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(count_points(part.text)) + 1);
  int64_t found = 0;
  for (size_t at = 0; (at = find_text(part.text, wanted, at)) != kNone; at += wanted.size()) ++found;
  return Value::integer(found);
}

/// startswith, endswith: one text or a tuple of them.
template <bool End>
Value affixed(Runtime& rt, const Value& self, Arguments& args) {
  const Part part = part_of(rt, self, args, 1);
  const auto holds = [&](const Value& affix) {
    const std::string_view text = text_argument(rt, End ? "endswith" : "startswith", affix);
    return !part.outside && (End ? part.text.ends_with(text) : part.text.starts_with(text));
  };
  if (!has_shape(args[0], Shape::tuple)) return Value::boolean(holds(args[0]));
  const auto& all = as_seq(args[0])->items;
  rt.spend(all.size());
  return Value::boolean(std::any_of(all.begin(), all.end(), holds));
}

template <bool End>
Value remove_affix(Runtime& rt, const Value& self, Arguments& args) {
  const std::string_view affix = text_argument(rt, End ? "removesuffix" : "removeprefix", args[0]);
  std::string_view text = self.text();
  if (End ? text.ends_with(affix) : text.starts_with(affix)) {
    text = End ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  }
  return rt.text_like(self, text);
}

Value parts_list(Runtime& rt, const Value& self, const std::vector<std::string_view>& parts) {
  rt.spend(parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(rt.text_like(self, part));
  return rt.list(std::move(items));
}

template <bool Right>
Value split(Runtime& rt, const Value& self, Arguments& args) {
  const int64_t limit = args.has(1) ? integer_argument(rt, "split", args[1]) : -1;
  rt.spend_text(self.text().size());
  if (!args.has(0) || args[0].is_none()) return parts_list(rt, self, split_space(rt, self.text(), limit, Right));
  const std::string_view separator = text_argument(rt, "split", args[0]);
  if (separator.empty()) rt.fail("empty separator");
  return parts_list(
      rt, self,
      Right ? split_at_right(rt, self.text(), separator, limit) : split_at(rt, self.text(), separator, limit));
}

template <bool Right>
Value partition(Runtime& rt, const Value& self, Arguments& args) {
  const std::string_view separator = text_argument(rt, "partition", args[0]);
  if (separator.empty()) rt.fail("empty separator");
  const std::string_view text = self.text();
  rt.spend_text(text.size());
  const size_t at = Right ? find_last_text(text, separator) : find_text(text, separator);
  if (at == kNone) {
    const Value empty = rt.text_like(self, "");
    return rt.tuple(Right ? std::vector<Value>{empty, empty, self} : std::vector<Value>{self, empty, empty});
  }
  return rt.tuple({rt.text_like(self, text.substr(0, at)), rt.text_like(self, separator),
                   rt.text_like(self, text.substr(at + separator.size()))});
}

Value split_lines_method(Runtime& rt, const Value& self, Arguments& args) {
  return parts_list(rt, self, lines_of(rt, self.text(), args.has(0) && truth(args[0])));
}

Value join(Runtime& rt, const Value& self, Arguments& args) {
  std::string out;
  int64_t i = 0;
  Cursor cursor(rt, args[0]);
  for (Value item; cursor.next(item); ++i) {
    if (!item.is_string()) {
      rt.fail("sequence item " + std::to_string(i) + ": expected str instance, " + type_name(item) + " found");
    }
    if (i != 0) out += self.text();
    out += item.text();
    rt.check_text(out.size());
  }
  return rt.text(std::move(out), self.str()->markup);
}

Value replace(Runtime& rt, const Value& self, Arguments& args) {
  const std::string_view old = text_argument(rt, "replace", args[0]);
  const std::string_view with = text_argument(rt, "replace", args[1]);
  const int64_t limit = args.has(2) ? integer_argument(rt, "replace", args[2]) : -1;
  return rt.text(replace_text(rt, self.text(), old, with, limit), self.str()->markup);
}

constexpr Builtin kMethods[] = {
    {"find", "sub start? end?", find<false>},
    {"rfind", "sub start? end?", find<true>},
    {"index", "sub start? end?", index<false>},
    {"rindex", "sub start? end?", index<true>},
    {"count", "sub start? end?", count},
    {"startswith", "prefix start? end?", affixed<false>},
    {"endswith", "suffix start? end?", affixed<true>},
    {"removeprefix", "prefix", remove_affix<false>},
    {"removesuffix", "suffix", remove_affix<true>},
    {"split", "sep? maxsplit?", split<false>},
    {"rsplit", "sep? maxsplit?", split<true>},
    {"partition", "sep", partition<false>},
    {"rpartition", "sep", partition<true>},
    {"splitlines", "keepends?", split_lines_method},
    {"join", "iterable", join},
    {"replace", "old new count?", replace},
};

}  // namespace

BuiltinTable str_split_methods() { return kMethods; }

}  // namespace ellm::format::jinja
