// The values of a template, as Python has them. Strings are counted and immutable; containers and functions ("objects")
// live as long as the render that made them and die with it, so cycles and deep nesting need no care.
// A render belongs to one thread. Constants of a template are shared by all renders: strings without owner, never
// counted.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ellm::format::jinja {

class Runtime;
struct Builtin;
struct Object;

struct Str {
  std::string text;
  size_t points = 0;         // code points
  Runtime* owner = nullptr;  // the render that is charged for it
  uint32_t refs = 0;
  bool markup = false;  // markupsafe's Markup: what is joined to it gets escaped

  bool ascii() const { return points == text.size(); }
};

/// Drops the last reference of a string that has an owner.
void destroy_str(Str* str) noexcept;

enum class Kind : uint8_t { missing, undefined, none, boolean, integer, real, string, object };

/// Why a value is undefined; decides the message of the error that its use makes.
enum class Absence : uint8_t { variable, attribute, element, parameter, hint };

/// The names that Python has for the types, for messages.
enum class TypeCode : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  markup,
  list,
  tuple,
  generator,
  dict_items,
  dict_keys,
  dict_values,
  range,
  dict,
  space,
  function,
  method,
  macro,
  loop,
  cycler,
  joiner
};
const char* type_name(TypeCode code);

class Value {
 public:
  Value() noexcept : integer_(0) {}
  Value(const Value& other) noexcept { copy(other); }
  Value(Value&& other) noexcept { move(other); }
  Value& operator=(const Value& other) noexcept {
    if (this != &other) {
      Value old(std::move(*this));
      copy(other);
    }
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    if (this != &other) {
      release();
      move(other);
    }
    return *this;
  }
  ~Value() { release(); }

  static Value none() { return Value(Kind::none); }
  static Value boolean(bool value) {
    Value v(Kind::boolean);
    v.integer_ = value;
    return v;
  }
  static Value integer(int64_t value) {
    Value v(Kind::integer);
    v.integer_ = value;
    return v;
  }
  static Value real(double value) {
    Value v(Kind::real);
    v.real_ = value;
    return v;
  }
  static Value string(Str* str) {
    Value v(Kind::string);
    v.str_ = str;
    v.retain();
    return v;
  }
  static Value object(Object* object) {
    Value v(Kind::object);
    v.object_ = object;
    return v;
  }
  /// `name` may be null (Absence::hint: the whole message); `of`: the type whose attribute or element is absent.
  static Value undefined(Absence why, Str* name, TypeCode of = TypeCode::undefined) {
    Value v(Kind::undefined);
    v.str_ = name;
    v.why_ = why;
    v.of_ = of;
    v.retain();
    return v;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::missing; }
  bool is_undefined() const { return kind_ == Kind::undefined; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_object() const { return kind_ == Kind::object; }
  bool is_integral() const { return kind_ == Kind::boolean || kind_ == Kind::integer; }  // Python's int, bool included
  bool is_number() const { return is_integral() || kind_ == Kind::real; }

  int64_t as_integer() const { return integer_; }  // of boolean and integer
  double as_real() const { return kind_ == Kind::real ? real_ : static_cast<double>(integer_); }
  Str* str() const { return str_; }
  std::string_view text() const { return str_->text; }
  Object* object() const { return object_; }
  Absence absence() const { return why_; }
  TypeCode absent_of() const { return of_; }

 private:
  explicit Value(Kind kind) noexcept : integer_(0), kind_(kind) {}

  void copy(const Value& other) noexcept {
    integer_ = other.integer_;
    kind_ = other.kind_;
    why_ = other.why_;
    of_ = other.of_;
    if (kind_ == Kind::real) real_ = other.real_;
    retain();
  }
  void move(Value& other) noexcept {
    integer_ = other.integer_;
    kind_ = other.kind_;
    why_ = other.why_;
    of_ = other.of_;
    other.kind_ = Kind::missing;
    other.integer_ = 0;
  }
  bool counted() const { return (kind_ == Kind::string || kind_ == Kind::undefined) && str_ != nullptr && str_->owner; }
  void retain() noexcept {
    if (counted()) ++str_->refs;
  }
  void release() noexcept {
    if (counted() && --str_->refs == 0) destroy_str(str_);
  }

  union {
    int64_t integer_;
    double real_;
    Str* str_;
    Object* object_;
  };
  Kind kind_ = Kind::missing;
  Absence why_ = Absence::variable;
  TypeCode of_ = TypeCode::undefined;
};

enum class Shape : uint8_t {
  list,
  tuple,
  generator,
  dict_items,
  dict_keys,
  dict_values,
  range,
  dict,
  space,
  function,
  method,
  macro,
  loop,
  cycler,
  joiner
};

struct Object {
  explicit Object(Shape s) : shape(s) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  const Shape shape;
};

/// Everything with items in a row; a generator gives each item once.
struct Seq : Object {
  Seq(Shape s, std::vector<Value> values) : Object(s), items(std::move(values)) {}
  std::vector<Value> items;
  size_t consumed = 0;  // of a generator
  bool group = false;   // a tuple of groupby: has .grouper and .list
};

struct Range : Seq {
  Range(std::vector<Value> values, int64_t first, int64_t end, int64_t by)
      : Seq(Shape::range, std::move(values)), start(first), stop(end), step(by) {}
  int64_t start, stop, step;
};

/// A dict in insertion order, or the attributes of a namespace. Lookups of strings are logarithmic (no hash to
/// collide); other keys are compared one by one, and charged.
class Dict : public Object {
 public:
  explicit Dict(Shape s = Shape::dict) : Object(s) {}
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  const Value* find(Runtime& rt, const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Runtime& rt, const Value& key, Value value);
  std::optional<Value> take(Runtime& rt, const Value& key);
  void clear();

 private:
  static constexpr size_t kScan = 8;  // up to here entries are compared one by one
  std::optional<size_t> position(std::string_view key) const;
  std::optional<size_t> position(Runtime& rt, const Value& key) const;
  void rebuild_index();

  std::vector<std::pair<Value, Value>> entries_;
  std::map<std::string_view, size_t> index_;  // of the string keys, where there are more than kScan entries
};

/// A function of the sandbox; `self` is what a method is bound to.
struct Function : Object {
  explicit Function(const Builtin* f) : Object(Shape::function), builtin(f) {}
  Function(const Builtin* f, Value bound) : Object(Shape::method), builtin(f), self(std::move(bound)) {}
  const Builtin* builtin;
  Value self;
};

struct Cycler : Object {
  explicit Cycler(std::vector<Value> values) : Object(Shape::cycler), items(std::move(values)) {}
  std::vector<Value> items;
  size_t at = 0;
};

struct Joiner : Object {
  explicit Joiner(Value s) : Object(Shape::joiner), separator(std::move(s)) {}
  Value separator;
  bool used = false;
};

inline bool has_shape(const Value& v, Shape shape) { return v.is_object() && v.object()->shape == shape; }
/// The items of a value that is a Seq of any shape; null for others.
inline Seq* as_seq(const Value& v) {
  return v.is_object() && v.object()->shape <= Shape::range ? static_cast<Seq*>(v.object()) : nullptr;
}
inline Dict* as_dict(const Value& v) { return has_shape(v, Shape::dict) ? static_cast<Dict*>(v.object()) : nullptr; }

TypeCode type_code(const Value& v);
inline const char* type_name(const Value& v) { return type_name(type_code(v)); }

}  // namespace ellm::format::jinja
