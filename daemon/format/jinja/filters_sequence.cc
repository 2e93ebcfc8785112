// Filters on sequences and mappings.
#include <algorithm>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/sorting.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

Value length_filter(Runtime& rt, const Value& v, Arguments&) {
  return Value::integer(static_cast<int64_t>(length_of(rt, v)));
}

Value default_filter(Runtime&, const Value& v, Arguments& args) {
  const bool replaced = v.is_undefined() || (args.has(1) && truth(args[1]) && !truth(v));
  return replaced ? args[0] : v;
}

Value default_or_empty(Runtime& rt, const Value& v, Arguments& args) {
  if (!args.has(0)) args.positional[0] = rt.text("");
  return default_filter(rt, v, args);
}

Value first(Runtime& rt, const Value& v, Arguments&) {
  Cursor cursor(rt, v);
  Value item;
  return cursor.next(item) ? item : rt.undefined_hint("No first item, sequence was empty.");
}

Value last(Runtime& rt, const Value& v, Arguments&) {
  if (has_shape(v, Shape::generator)) rt.fail("'generator' object is not reversible");
  if (v.is_string() && !v.text().empty()) {
    return get_slice(rt, v, Value::integer(-1), Value::none(), Value::none());
  }
  if (const Dict* dict = as_dict(v); dict != nullptr && !dict->entries().empty()) return dict->entries().back().first;
  if (const Seq* seq = as_seq(v); seq != nullptr && !seq->items.empty()) return seq->items.back();
  Cursor check(rt, v);
  return rt.undefined_hint("No last item, sequence was empty.");
}

Value join(Runtime& rt, const Value& v, Arguments& args) {
  const std::string separator = args.has(0) ? str_of(rt, args[0]) : std::string();
  const AttributePath path(rt, args.has(1) ? args[1] : Value::none());
  std::string out;
  bool begun = false;
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) {
    if (begun) out += separator;
    begun = true;
    append_str(rt, out, path.of(item));
    rt.check_text(out.size());
  }
  return rt.text(std::move(out));
}

Value items_filter(Runtime& rt, const Value& v, Arguments&) {
  if (v.is_undefined()) return rt.seq(Shape::generator, {});
  const Dict* dict = as_dict(v);
  if (dict == nullptr) rt.fail("can only get item pairs from a mapping");
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict->entries()) pairs.push_back(rt.tuple({key, value}));
  return rt.seq(Shape::generator, std::move(pairs));
}

Value reverse(Runtime& rt, const Value& v, Arguments&) {
  if (v.is_string()) return get_slice(rt, v, Value::none(), Value::none(), Value::integer(-1));
  std::vector<Value> items = to_vector(rt, v);
  std::reverse(items.begin(), items.end());
  return rt.seq(has_shape(v, Shape::generator) ? Shape::list : Shape::generator, std::move(items));
}

Value dictsort(Runtime& rt, const Value& v, Arguments& args) {
  const Dict* dict = as_dict(v);
  if (dict == nullptr) rt.fail(std::string("dictsort needs a mapping, not '") + type_name(v) + "'");
  const bool case_sensitive = args.has(0) && truth(args[0]);
  const std::string_view by = args.has(1) ? text_argument(rt, "dictsort", args[1]) : std::string_view("key");
  if (by != "key" && by != "value") rt.fail("dictsort: you can only sort by either \"key\" or \"value\"");
  std::vector<Keyed> pairs;
  for (const auto& [key, value] : dict->entries()) {
    const Value& chosen = by == "key" ? key : value;
    pairs.push_back({case_sensitive ? chosen : ignore_case(rt, chosen), rt.tuple({key, value})});
  }
  return rt.list(sorted(rt, std::move(pairs), args.has(2) && truth(args[2])));
}

Value sort(Runtime& rt, const Value& v, Arguments& args) {
  const bool case_sensitive = args.has(1) && truth(args[1]);
  std::vector<AttributePath> paths;
  if (args.has(2) && args[2].is_string()) {
    const std::string_view names = args[2].text();
    for (size_t at = 0; at <= names.size();) {
      const size_t end = std::min(names.find(',', at), names.size());
      paths.emplace_back(rt, rt.text(names.substr(at, end - at)));
      at = end + 1;
    }
  } else {
    paths.emplace_back(rt, args.has(2) ? args[2] : Value::none());
  }
  std::vector<Keyed> items;
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) {
    std::vector<Value> key;
    for (const AttributePath& path : paths) {
      key.push_back(path.of(item));
      if (!case_sensitive) key.back() = ignore_case(rt, key.back());
    }
    items.push_back({rt.list(std::move(key)), item});
  }
  return rt.list(sorted(rt, std::move(items), args.has(0) && truth(args[0])));
}

Value unique(Runtime& rt, const Value& v, Arguments& args) {
  const bool case_sensitive = args.has(0) && truth(args[0]);
  const AttributePath path(rt, args.has(1) ? args[1] : Value::none());
  Dict* seen = rt.dict();
  std::vector<Value> kept;
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) {
    Value key = path.of(item);
    if (!case_sensitive) key = ignore_case(rt, key);
    if (seen->find(rt, key) != nullptr) continue;
    seen->set(rt, key, Value::none());
    kept.push_back(item);
  }
  return rt.seq(Shape::generator, std::move(kept));
}

Value extreme(Runtime& rt, const Value& v, const Arguments& args, CompareOp better) {
  const bool case_sensitive = args.has(0) && truth(args[0]);
  const AttributePath path(rt, args.has(1) ? args[1] : Value::none());
  Value best_key;
  Value best;
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) {
    Value key = path.of(item);
    if (!case_sensitive) key = ignore_case(rt, key);
    if (!best_key.is_missing() && !compare(rt, better, key, best_key)) continue;
    best_key = key;
    best = item;
  }
  return best_key.is_missing() ? rt.undefined_hint("No aggregated item, sequence was empty.") : best;
}

Value sum(Runtime& rt, const Value& v, Arguments& args) {
  const AttributePath path(rt, args.has(0) ? args[0] : Value::none());
  Value total = args.has(1) ? args[1] : Value::integer(0);
  if (total.is_string()) rt.fail("sum() can't sum strings (use the join filter instead)");
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) total = arithmetic(rt, ArithmeticOp::add, total, path.of(item));
  return total;
}

Value group_by(Runtime& rt, const Value& v, Arguments& args) {
  const AttributePath path(rt, args[0]);
  const Value fallback = args.has(1) ? args[1] : Value::none();
  const bool case_sensitive = args.has(2) && truth(args[2]);
  const auto key_of = [&](const Value& item) {
    const Value key = path.of(item, fallback);
    return case_sensitive ? key : ignore_case(rt, key);
  };
  std::vector<Keyed> keyed;
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) keyed.push_back({key_of(item), item});
  const std::vector<Value> items = sorted(rt, std::move(keyed), false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < items.size();) {
    const Value key = key_of(items[begin]);
    size_t end = begin + 1;
    while (end < items.size() && equal(rt, key_of(items[end]), key)) ++end;
    const auto from = items.begin() + static_cast<ptrdiff_t>(begin);
    const Value members = rt.list(std::vector<Value>(from, items.begin() + static_cast<ptrdiff_t>(end)));
    groups.push_back(rt.tuple({path.of(items[begin], fallback), members}));
    as_seq(groups.back())->group = true;
    begin = end;
  }
  return rt.list(std::move(groups));
}

Value batch(Runtime& rt, const Value& v, Arguments& args) {
  const int64_t size = integer_argument(rt, "batch", args[0]);
  const bool fill = args.has(1) && !args[1].is_none();
  std::vector<Value> rows;
  std::vector<Value> row;
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(rt.list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    while (fill && static_cast<int64_t>(row.size()) < size) {
      rt.spend(1);
      rt.keep_bytes(sizeof(Value));
      row.push_back(args[1]);
    }
    rows.push_back(rt.list(std::move(row)));
  }
  return rt.seq(Shape::generator, std::move(rows));
}

Value slice(Runtime& rt, const Value& v, Arguments& args) {
  const int64_t count = integer_argument(rt, "slice", args[0]);
  const bool fill = args.has(1) && !args[1].is_none();
  const std::vector<Value> items = to_vector(rt, v);
  if (count == 0) rt.fail("slice: into zero slices");
  std::vector<Value> slices;
  const auto n = static_cast<int64_t>(items.size());
  const int64_t each = count > 0 ? n / count : 0;
  const int64_t longer = count > 0 ? n % count : 0;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = begin + each + (i < longer ? 1 : 0);
    std::vector<Value> part(items.begin() + begin, items.begin() + end);
    if (fill && i >= longer) part.push_back(args[1]);
    slices.push_back(rt.list(std::move(part)));
    begin = end;
    rt.spend(1);
  }
  return rt.seq(Shape::generator, std::move(slices));
}

constexpr Builtin kFilters[] = {
    {"length", "", length_filter},
    {"count", "", length_filter},
    {"default", "default_value? boolean?", default_or_empty},
    {"d", "default_value? boolean?", default_or_empty},
    {"first", "", first},
    {"last", "", last},
    {"join", "d? attribute?", join},
    {"list", "", [](Runtime& rt, const Value& v, Arguments&) { return rt.list(to_vector(rt, v)); }},
    {"items", "", items_filter},
    {"reverse", "", reverse},
    {"dictsort", "case_sensitive? by? reverse?", dictsort},
    {"sort", "reverse? case_sensitive? attribute?", sort},
    {"unique", "case_sensitive? attribute?", unique},
    {"min", "case_sensitive? attribute?",
     [](Runtime& rt, const Value& v, Arguments& args) { return extreme(rt, v, args, CompareOp::lt); }},
    {"max", "case_sensitive? attribute?",
     [](Runtime& rt, const Value& v, Arguments& args) { return extreme(rt, v, args, CompareOp::gt); }},
    {"sum", "attribute? start?", sum},
    {"groupby", "attribute default? case_sensitive?", group_by},
    {"batch", "linecount fill_with?", batch},
    {"slice", "slices fill_with?", slice},
    {"attr", "name", [](Runtime& rt, const Value& v, Arguments& args) { return get_attribute_only(rt, v, args[0]); }},
};

}  // namespace

BuiltinTable sequence_filters() { return kFilters; }

Value ignore_case(Runtime& rt, const Value& v) { return v.is_string() ? rt.text(lower(v.text())) : v; }

std::vector<Value> sorted(Runtime& rt, std::vector<Keyed> items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    rt.spend(1);
    return reverse ? compare(rt, CompareOp::lt, b.key, a.key) : compare(rt, CompareOp::lt, a.key, b.key);
  });
  std::vector<Value> values;
  values.reserve(items.size());
  for (Keyed& item : items) values.push_back(std::move(item.value));
  return values;
}

}  // namespace ellm::format::jinja
