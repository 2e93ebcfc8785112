// Filters that apply other filters and tests to each item: map, select, reject, selectattr, rejectattr.
#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"

namespace ellm::format::jinja {

namespace {

/// The arguments behind the first `used`.
Arguments rest_of(const Arguments& args, size_t used) {
  Arguments rest;
  rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(used), args.positional.end());
  rest.named = args.named;
  return rest;
}

Value map_filter(Runtime& rt, const Value& v, Arguments& args) {
  std::vector<Value> out;
  if (!truth(v)) return rt.seq(Shape::generator, {});
  Cursor cursor(rt, v);
  if (args.positional.empty() && !args.named.empty()) {
    rt.bind("map", "attribute default?", args);
    const AttributePath path(rt, args[0]);
    for (Value item; cursor.next(item);) out.push_back(path.of(item, args[1]));
    return rt.seq(Shape::generator, std::move(out));
  }
  if (args.positional.empty()) rt.fail("map requires a filter argument");
  const std::string_view name = text_argument(rt, "map", args[0]);
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) rt.fail("no filter named '" + std::string(name) + "'");
  const Arguments rest = rest_of(args, 1);
  for (Value item; cursor.next(item);) {
    Arguments each = rest;
    out.push_back(rt.call_builtin(*filter, item, each));
  }
  return rt.seq(Shape::generator, std::move(out));
}

Value select_items(Runtime& rt, const Value& v, const Arguments& args, bool wanted, bool by_attribute) {
  if (!truth(v)) return rt.seq(Shape::generator, {});
  Cursor cursor(rt, v);
  const size_t at = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty()) rt.fail("missing parameter for attribute name");
  const AttributePath path(rt, by_attribute ? args[0] : Value::none());
  const Builtin* test = nullptr;
  Arguments rest;
  if (args.positional.size() > at) {
    const std::string_view name = text_argument(rt, "select", args[at]);
    test = find_test(name);
    if (test == nullptr) rt.fail("no test named '" + std::string(name) + "'");
    rest = rest_of(args, at + 1);
  }
  std::vector<Value> out;
  for (Value item; cursor.next(item);) {
    const Value subject = path.of(item);
    Arguments each = rest;
    const bool passes = truth(test != nullptr ? rt.call_builtin(*test, subject, each) : subject);
    if (passes == wanted) out.push_back(item);
  }
  return rt.seq(Shape::generator, std::move(out));
}

constexpr Builtin kFilters[] = {
    {"map", "*", map_filter},
    {"select", "*",
     [](Runtime& rt, const Value& v, Arguments& args) { return select_items(rt, v, args, true, false); }},
    {"reject", "*",
     [](Runtime& rt, const Value& v, Arguments& args) { return select_items(rt, v, args, false, false); }},
    {"selectattr", "*",
     [](Runtime& rt, const Value& v, Arguments& args) { return select_items(rt, v, args, true, true); }},
    {"rejectattr", "*",
     [](Runtime& rt, const Value& v, Arguments& args) { return select_items(rt, v, args, false, true); }},
};

}  // namespace

BuiltinTable select_filters() { return kFilters; }

}  // namespace ellm::format::jinja
