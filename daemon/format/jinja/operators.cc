// Truth, equality, order and membership. Recursion goes through Runtime::Level, so cyclic and deep values end in an
// error.
#include "daemon/format/jinja/operators.h"

#include <cmath>
#include <cstring>

#include "daemon/format/jinja/access.h"

namespace ellm::format::jinja {

namespace {

/// -1, 0, 1; 2 where a NaN is involved. Exact, also beyond 2^53.
int compare_numbers(const Value& a, const Value& b) {
  const auto sign = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (a.is_integral() && b.is_integral()) return sign(a.as_integer(), b.as_integer());
  const double x = a.as_real();
  const double y = b.as_real();
  if (std::isnan(x) || std::isnan(y)) return 2;
  if (a.is_integral() == b.is_integral()) return sign(x, y);
  const double real = a.is_integral() ? y : x;
  const int64_t integer = a.is_integral() ? a.as_integer() : b.as_integer();
  int order = 0;  // of the integer against the real
  if (real >= 9223372036854775808.0) {
    order = -1;
  } else if (real < -9223372036854775808.0) {
    order = 1;
  } else {
    const double whole = std::floor(real);
    order = sign(integer, static_cast<int64_t>(whole));
    if (order == 0 && whole != real) order = -1;
  }
  return a.is_integral() ? order : -order;
}

bool equal_dicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(rt, key);
    if (other == nullptr || !equal(rt, value, *other)) return false;
  }
  return true;
}

bool equal_items(Runtime& rt, const Seq& a, const Seq& b) {
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(rt, a.items[i], b.items[i])) return false;
  }
  return true;
}

[[noreturn]] void fail_order(Runtime& rt, CompareOp op, const Value& a, const Value& b) {
  if (a.is_undefined()) rt.fail_undefined(a);
  if (b.is_undefined()) rt.fail_undefined(b);
  static constexpr const char* kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
  rt.fail(std::string("'") + kSigns[static_cast<int>(op)] + "' not supported between instances of '" + type_name(a) +
          "' and '" + type_name(b) + "'");
}

bool holds(CompareOp op, int order) {
  switch (op) {
    case CompareOp::lt: return order == -1;
    case CompareOp::le: return order == -1 || order == 0;
    case CompareOp::gt: return order == 1;
    default: return order == 0 || order == 1;
  }
}

bool ordered(Runtime& rt, CompareOp op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return holds(op, compare_numbers(a, b));
  if (a.is_string() && b.is_string()) {
    // UTF-8 sorts as its code points do.
    rt.spend_text(std::min(a.text().size(), b.text().size()));
    const int order = a.text().compare(b.text());
    return holds(op, order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  const Seq* x = as_seq(a);
  const Seq* y = as_seq(b);
  if (x == nullptr || y == nullptr || x->shape != y->shape || x->shape > Shape::tuple) fail_order(rt, op, a, b);
  const Runtime::Level level(rt);
  for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i) {
    if (!equal(rt, x->items[i], y->items[i])) return ordered(rt, op, x->items[i], y->items[i]);
  }
  const auto n = x->items.size();
  const auto m = y->items.size();
  return holds(op, n < m ? -1 : n > m ? 1 : 0);
}

}  // namespace

bool truth(const Value& v) {
  switch (v.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return v.as_integer() != 0;
    case Kind::real: return v.as_real() != 0;
    case Kind::string: return !v.text().empty();
    case Kind::object: break;
  }
  if (const Seq* seq = as_seq(v)) return seq->shape == Shape::generator || !seq->items.empty();
  if (const Dict* dict = as_dict(v)) return !dict->entries().empty();
  return true;
}

bool same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::none: return true;
    case Kind::boolean: return a.as_integer() == b.as_integer();
    // Python keeps one object for small integers only.
    case Kind::integer: return a.as_integer() == b.as_integer() && a.as_integer() >= -5 && a.as_integer() <= 256;
    case Kind::string: return a.str() == b.str();
    case Kind::object: return a.object() == b.object();
    default: return false;
  }
}

bool equal(Runtime& rt, const Value& a, const Value& b) {
  rt.spend(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) {
    if (a.text().size() != b.text().size()) return false;
    rt.spend_text(a.text().size());
    return a.text() == b.text();
  }
  if (!a.is_object()) return true;  // none, undefined
  if (a.object() == b.object()) return true;
  const Runtime::Level level(rt);
  if (a.object()->shape != b.object()->shape) return false;
  if (a.object()->shape == Shape::generator) return false;
  if (const Seq* seq = as_seq(a)) return equal_items(rt, *seq, *as_seq(b));
  if (const Dict* dict = as_dict(a)) return equal_dicts(rt, *dict, *as_dict(b));
  return false;
}

bool compare(Runtime& rt, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::eq: return equal(rt, a, b);
    case CompareOp::ne: return !equal(rt, a, b);
    case CompareOp::in: return contains(rt, b, a);
    case CompareOp::not_in: return !contains(rt, b, a);
    default: return ordered(rt, op, a, b);
  }
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined()) rt.fail("'in <string>' requires string as left operand, not Undefined");
    if (!item.is_string()) {
      rt.fail(std::string("'in <string>' requires string as left operand, not ") + type_name(item));
    }
    rt.spend_text(container.text().size());
    return find_text(container.text(), item.text()) != std::string_view::npos;
  }
  if (const Dict* dict = as_dict(container)) return dict->find(rt, item) != nullptr;
  const bool iterable = container.is_undefined() || as_seq(container) != nullptr;
  if (!iterable) rt.fail(std::string("argument of type '") + type_name(container) + "' is not iterable");
  Cursor cursor(rt, container);
  for (Value value; cursor.next(value);) {
    if (equal(rt, value, item)) return true;
  }
  return false;
}

void require_hashable(Runtime& rt, const Value& v) {
  if (!v.is_object()) return;
  const Runtime::Level level(rt);
  if (v.object()->shape == Shape::tuple) {
    for (const Value& item : as_seq(v)->items) require_hashable(rt, item);
  } else if (v.object()->shape == Shape::list || v.object()->shape == Shape::dict) {
    rt.fail(std::string("unhashable type: '") + type_name(v) + "'");
  }
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // glibc's memmem is linear; std::string_view::find is not.
  const void* at = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return at != nullptr ? static_cast<size_t>(static_cast<const char*>(at) - text.data()) : std::string_view::npos;
}

size_t find_last_text(std::string_view text, std::string_view needle) {
  if (needle.size() > text.size()) return std::string_view::npos;
  const std::string turned_text(text.rbegin(), text.rend());
  const std::string turned_needle(needle.rbegin(), needle.rend());
  const size_t at = find_text(turned_text, turned_needle);
  return at != std::string_view::npos ? text.size() - at - needle.size() : at;
}

}  // namespace ellm::format::jinja
