// Reaching into values: attributes, items, slices, iteration, lengths, by the rules of Jinja's sandbox.
#pragma once
#include <cstdint>

#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

/// `target.name`: the attribute first (methods of str, list, dict), then the item.
Value get_attribute(Runtime& rt, const Value& target, const Value& name);
/// `target|attr(name)`: the attribute only.
Value get_attribute_only(Runtime& rt, const Value& target, const Value& name);
/// `target[index]`: the item first, then the attribute.
Value get_item(Runtime& rt, const Value& target, const Value& index);
/// `target[start:stop:step]`, each None where left out.
Value get_slice(Runtime& rt, const Value& target, const Value& start, const Value& stop, const Value& step);

/// The method `name` of the type of `target`; null where it has none.
const Builtin* find_method(const Value& target, std::string_view name);

/// Walks over what a `for` may walk over; fails for others. Items appended to a list on the way are seen.
class Cursor {
 public:
  Cursor(Runtime& rt, const Value& over);
  bool next(Value& item);
  /// Items in all; nullopt for a generator.
  std::optional<size_t> length() const;

 private:
  Runtime& rt_;
  Value over_;
  size_t at_ = 0;  // bytes in a string, items elsewhere
};

bool is_iterable(const Value& v);
/// len(); fails where Python's would.
size_t length_of(Runtime& rt, const Value& v);
std::vector<Value> to_vector(Runtime& rt, const Value& v);

/// An int argument; fails with the function's name.
int64_t integer_argument(Runtime& rt, std::string_view what, const Value& v);
/// A str argument.
std::string_view text_argument(Runtime& rt, std::string_view what, const Value& v);

/// The attribute argument of map, sort, groupby …: "a.b.0", an int, or none for the item itself.
class AttributePath {
 public:
  AttributePath(Runtime& rt, const Value& attribute);
  /// `fallback` (may be missing) stands for what is undefined on the way.
  Value of(const Value& item, const Value& fallback = Value()) const;

 private:
  Runtime& rt_;
  std::vector<Value> parts_;
};

}  // namespace ellm::format::jinja
