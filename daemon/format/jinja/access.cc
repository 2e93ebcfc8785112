// Attributes, items, slices and iteration.
#include "daemon/format/jinja/access.h"

#include <algorithm>
#include <limits>

#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/interpreter.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

Value absent(Runtime& rt, const Value& target, const Value& name) {
  if (name.is_string()) return Value::undefined(Absence::attribute, name.str(), type_code(target));
  const Value text = rt.text(repr_of(rt, name));
  return Value::undefined(Absence::element, text.str(), type_code(target));
}

/// Attributes that are no methods; missing where there is none.
Value data_attribute(Runtime& rt, const Value& target, std::string_view name) {
  switch (target.object()->shape) {
    case Shape::space: {
      const Value* found = static_cast<Dict*>(target.object())->find(name);
      return found != nullptr ? *found : Value();
    }
    case Shape::loop: return static_cast<Loop*>(target.object())->attribute(rt, name);
    case Shape::macro: return macro_attribute(rt, *target.object(), name);
    case Shape::cycler: {
      const auto& cycler = *static_cast<Cycler*>(target.object());
      return name == "current" ? cycler.items[cycler.at] : Value();
    }
    case Shape::tuple: {
      const auto& seq = *static_cast<Seq*>(target.object());
      if (!seq.group) return Value();
      return name == "grouper" ? seq.items[0] : name == "list" ? seq.items[1] : Value();
    }
    case Shape::range: {
      const auto& range = *static_cast<Range*>(target.object());
      if (name == "start") return Value::integer(range.start);
      if (name == "stop") return Value::integer(range.stop);
      return name == "step" ? Value::integer(range.step) : Value();
    }
    default: return Value();
  }
}

/// A method or other attribute of the type; missing where there is none.
Value type_attribute(Runtime& rt, const Value& target, const Value& name) {
  if (!name.is_string()) return Value();
  if (target.is_object()) {
    if (Value data = data_attribute(rt, target, name.text()); !data.is_missing()) return data;
  }
  const Builtin* method = find_method(target, name.text());
  if (method == nullptr) return Value();
  return Value::object(rt.make<Function>(method, target));
}

Value character(Runtime& rt, const Value& text, size_t index) {
  const Str& str = *text.str();
  if (str.ascii()) return rt.text_like(text, text.text().substr(index, 1));
  rt.spend_text(str.text.size());
  const size_t begin = byte_of_point(str.text, index);
  size_t end = begin;
  next_point(str.text, end);
  return rt.text_like(text, text.text().substr(begin, end - begin));
}

bool indexable(const Seq& seq) {
  return seq.shape == Shape::list || seq.shape == Shape::tuple || seq.shape == Shape::range;
}

/// The item by Python's own `[]`; missing where that raises.
Value plain_item(Runtime& rt, const Value& target, const Value& index) {
  if (const Dict* dict = as_dict(target)) {
    if (index.is_object() && index.object()->shape != Shape::tuple) return Value();  // a TypeError in Python
    const Value* found = dict->find(rt, index);
    return found != nullptr ? *found : Value();
  }
  if (!index.is_integral()) return Value();
  int64_t at = index.as_integer();
  const Seq* seq = as_seq(target);
  const size_t count = target.is_string()                  ? target.str()->points
                       : seq != nullptr && indexable(*seq) ? seq->items.size()
                                                           : 0;
  if (at < 0) at += static_cast<int64_t>(count);
  if (at < 0 || static_cast<size_t>(at) >= count) return Value();
  return target.is_string() ? character(rt, target, static_cast<size_t>(at)) : seq->items[static_cast<size_t>(at)];
}

/// A bound of a slice, clamped as Python clamps it.
int64_t slice_bound(Runtime& rt, const Value& bound, int64_t length, int64_t step, int64_t otherwise) {
  if (bound.is_none()) return otherwise;
  if (!bound.is_integral()) {
    if (bound.is_undefined()) rt.fail_undefined(bound);
    rt.fail("slice indices must be integers or None");
  }
  int64_t at = bound.as_integer();
  if (at < 0) at = at < -length ? -1 : at + length;
  const int64_t lowest = step < 0 ? -1 : 0;
  const int64_t highest = step < 0 ? length - 1 : length;
  return std::clamp(at, lowest, std::max(lowest, highest));
}

}  // namespace

Value get_attribute(Runtime& rt, const Value& target, const Value& name) {
  if (target.is_undefined()) rt.fail_undefined(target);
  if (Value found = type_attribute(rt, target, name); !found.is_missing()) return found;
  if (const Dict* dict = as_dict(target)) {
    if (const Value* found = dict->find(name.text())) return *found;
  }
  return absent(rt, target, name);
}

Value get_attribute_only(Runtime& rt, const Value& target, const Value& name) {
  if (target.is_undefined()) rt.fail_undefined(target);
  Value found = type_attribute(rt, target, name);
  return found.is_missing() ? absent(rt, target, name) : found;
}

Value get_item(Runtime& rt, const Value& target, const Value& index) {
  if (target.is_undefined()) rt.fail_undefined(target);
  if (Value found = plain_item(rt, target, index); !found.is_missing()) return found;
  if (Value found = type_attribute(rt, target, index); !found.is_missing()) return found;
  return absent(rt, target, index);
}

Value get_slice(Runtime& rt, const Value& target, const Value& start, const Value& stop, const Value& step) {
  if (target.is_undefined()) rt.fail_undefined(target);
  const Seq* seq = as_seq(target);
  if (!target.is_string() && (seq == nullptr || !indexable(*seq))) {
    rt.fail(std::string("'") + type_name(target) + "' object cannot be sliced");
  }
  if (!step.is_none() && !step.is_integral()) rt.fail("slice indices must be integers or None");
  // A step beyond the length takes one item, whatever it is.
  constexpr int64_t kFar = int64_t{1} << 40;
  const int64_t by = step.is_none() ? 1 : std::clamp(step.as_integer(), -kFar, kFar);
  if (by == 0) rt.fail("slice step cannot be zero");
  const auto length = static_cast<int64_t>(target.is_string() ? target.str()->points : seq->items.size());
  const int64_t first = slice_bound(rt, start, length, by, by < 0 ? length - 1 : 0);
  const int64_t end = slice_bound(rt, stop, length, by, by < 0 ? -1 : length);
  if (target.is_string()) {
    const std::string_view text = target.text();
    rt.spend_text(text.size());
    if (by == 1) {
      if (end <= first) return rt.text_like(target, "");
      const bool ascii = target.str()->ascii();
      const size_t from = ascii ? static_cast<size_t>(first) : byte_of_point(text, static_cast<size_t>(first));
      const size_t to = ascii ? static_cast<size_t>(end) : byte_of_point(text, static_cast<size_t>(end));
      return rt.text_like(target, text.substr(from, to - from));
    }
    rt.spend_characters(text.size());
    const std::u32string points = to_points(text);
    std::u32string taken;
    for (int64_t i = first; by > 0 ? i < end : i > end; i += by) taken += points[static_cast<size_t>(i)];
    return rt.text_like(target, to_utf8(taken));
  }
  if (seq->shape == Shape::range) {
    const auto& range = static_cast<const Range&>(*seq);
    std::vector<Value> taken;
    for (int64_t i = first; by > 0 ? i < end : i > end; i += by) taken.push_back(seq->items[static_cast<size_t>(i)]);
    // Behind the last item the ends may overflow.
    const auto at = [&](int64_t index) {
      const Value offset = arithmetic(rt, ArithmeticOp::multiply, Value::integer(index), Value::integer(range.step));
      return arithmetic(rt, ArithmeticOp::add, Value::integer(range.start), offset).as_integer();
    };
    const Value all_by = arithmetic(rt, ArithmeticOp::multiply, Value::integer(range.step), Value::integer(by));
    return Value::object(rt.make<Range>(std::move(taken), at(first), at(end), all_by.as_integer()));
  }
  std::vector<Value> taken;
  for (int64_t i = first; by > 0 ? i < end : i > end; i += by) taken.push_back(seq->items[static_cast<size_t>(i)]);
  return rt.seq(seq->shape == Shape::tuple ? Shape::tuple : Shape::list, std::move(taken));
}

const Builtin* find_method(const Value& target, std::string_view name) {
  if (name.starts_with('_')) return nullptr;
  if (target.is_string()) return find_str_method(name);
  return target.is_object() ? find_object_method(target.object()->shape, name) : nullptr;
}

Cursor::Cursor(Runtime& rt, const Value& over) : rt_(rt), over_(over) {
  if (!is_iterable(over)) rt.fail(std::string("'") + type_name(over) + "' object is not iterable");
}

bool Cursor::next(Value& item) {
  if (over_.is_string()) {
    const std::string_view text = over_.text();
    if (at_ >= text.size()) return false;
    const size_t begin = at_;
    next_point(text, at_);
    item = rt_.text(text.substr(begin, at_ - begin));
  } else if (Seq* seq = as_seq(over_)) {
    size_t& at = seq->shape == Shape::generator ? seq->consumed : at_;
    if (at >= seq->items.size()) return false;
    item = seq->items[at++];
  } else if (const Dict* dict = as_dict(over_)) {
    if (at_ >= dict->entries().size()) return false;
    item = dict->entries()[at_++].first;
  } else if (has_shape(over_, Shape::loop)) {
    Value next;
    auto* loop = static_cast<Loop*>(over_.object());
    if (!loop->advance(next)) return false;
    item = rt_.tuple({next, over_});
  } else {
    return false;  // undefined
  }
  rt_.spend(1);
  return true;
}

std::optional<size_t> Cursor::length() const {
  if (over_.is_string()) return over_.str()->points;
  if (const Seq* seq = as_seq(over_)) {
    return seq->shape == Shape::generator ? std::nullopt : std::optional(seq->items.size());
  }
  if (const Dict* dict = as_dict(over_)) return dict->entries().size();
  return over_.is_undefined() ? std::optional<size_t>(0) : std::nullopt;
}

bool is_iterable(const Value& v) {
  return v.is_undefined() || v.is_string() || as_seq(v) != nullptr || as_dict(v) != nullptr ||
         has_shape(v, Shape::loop);
}

size_t length_of(Runtime& rt, const Value& v) {
  if (has_shape(v, Shape::loop)) return static_cast<size_t>(static_cast<Loop*>(v.object())->length(rt));
  const bool sized = is_iterable(v) && !has_shape(v, Shape::generator);
  if (!sized) rt.fail(std::string("object of type '") + type_name(v) + "' has no len()");
  return *Cursor(rt, v).length();
}

std::vector<Value> to_vector(Runtime& rt, const Value& v) {
  std::vector<Value> items;
  Cursor cursor(rt, v);
  for (Value item; cursor.next(item);) {
    items.push_back(item);
    if (items.size() % 1024 == 0) rt.check_memory(items.size() * sizeof(Value));
  }
  return items;
}

int64_t integer_argument(Runtime& rt, std::string_view what, const Value& v) {
  if (v.is_undefined()) rt.fail_undefined(v);
  if (!v.is_integral()) rt.fail(std::string(what) + ": '" + type_name(v) + "' where an integer is expected");
  return v.as_integer();
}

std::string_view text_argument(Runtime& rt, std::string_view what, const Value& v) {
  if (v.is_undefined()) rt.fail_undefined(v);
  if (!v.is_string()) rt.fail(std::string(what) + ": '" + type_name(v) + "' where a string is expected");
  return v.text();
}

AttributePath::AttributePath(Runtime& rt, const Value& attribute) : rt_(rt) {
  if (attribute.is_none() || attribute.is_missing()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  const std::string_view text = attribute.text();
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('.', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    const bool digits = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == part.npos;
    parts_.push_back(digits ? Value::integer(std::stoll(std::string(part))) : rt.text(part));
    at = end + 1;
  }
}

Value AttributePath::of(const Value& item, const Value& fallback) const {
  Value value = item;
  for (const Value& part : parts_) {
    value = get_item(rt_, value, part);
    if (value.is_undefined() && !fallback.is_missing() && !fallback.is_none()) value = fallback;
  }
  rt_.spend(1);
  return value;
}

}  // namespace ellm::format::jinja
