// The tests behind `is`.
#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

bool divisible(Runtime& rt, const Value& v, const Value& by) {
  return equal(rt, arithmetic(rt, ArithmeticOp::modulo, v, by), Value::integer(0));
}

/// str.isupper, str.islower: something cased, and nothing of the other case.
bool all_cased(Runtime& rt, const std::string& text, bool want_upper) {
  rt.spend_characters(text.size());
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_point(text, at);
    if (is_title(c) || (want_upper ? is_lower(c) : is_upper(c))) return false;
    any = any || (want_upper ? is_upper(c) : is_lower(c));
  }
  return any;
}

bool callable(const Value& v) {
  if (v.is_undefined()) return true;  // calling it is what fails
  return v.is_object() && v.object()->shape >= Shape::function && v.object()->shape != Shape::cycler;
}

bool sequence(const Value& v) {
  if (v.is_undefined() || v.is_string() || as_dict(v) != nullptr) return true;
  const Seq* seq = as_seq(v);
  return seq != nullptr && (seq->shape <= Shape::tuple || seq->shape == Shape::range);
}

template <bool (*F)(const Value&)>
Value simple(Runtime&, const Value& v, Arguments&) {
  return Value::boolean(F(v));
}

template <CompareOp Op>
Value compared(Runtime& rt, const Value& v, Arguments& args) {
  return Value::boolean(compare(rt, Op, v, args[0]));
}

bool defined(const Value& v) { return !v.is_undefined(); }
bool undefined(const Value& v) { return v.is_undefined(); }
bool none(const Value& v) { return v.is_none(); }
bool boolean(const Value& v) { return v.is(Kind::boolean); }
bool is_true(const Value& v) { return v.is(Kind::boolean) && v.as_integer() != 0; }
bool is_false(const Value& v) { return v.is(Kind::boolean) && v.as_integer() == 0; }
bool integer(const Value& v) { return v.is(Kind::integer); }
bool real(const Value& v) { return v.is(Kind::real); }
bool number(const Value& v) { return v.is_number(); }
bool string(const Value& v) { return v.is_string(); }
bool mapping(const Value& v) { return as_dict(v) != nullptr; }
bool escaped(const Value& v) { return v.is_string() && v.str()->markup; }

constexpr Builtin kTests[] = {
    {"defined", "", simple<defined>},
    {"undefined", "", simple<undefined>},
    {"none", "", simple<none>},
    {"boolean", "", simple<boolean>},
    {"true", "", simple<is_true>},
    {"false", "", simple<is_false>},
    {"integer", "", simple<integer>},
    {"float", "", simple<real>},
    {"number", "", simple<number>},
    {"string", "", simple<string>},
    {"mapping", "", simple<mapping>},
    {"sequence", "", simple<sequence>},
    {"iterable", "", simple<is_iterable>},
    {"callable", "", simple<callable>},
    {"escaped", "", simple<escaped>},
    {"odd", "",
     [](Runtime& rt, const Value& v, Arguments&) {
       return Value::boolean(equal(rt, arithmetic(rt, ArithmeticOp::modulo, v, Value::integer(2)), Value::integer(1)));
     }},
    {"even", "",
     [](Runtime& rt, const Value& v, Arguments&) { return Value::boolean(divisible(rt, v, Value::integer(2))); }},
    {"divisibleby", "num",
     [](Runtime& rt, const Value& v, Arguments& args) { return Value::boolean(divisible(rt, v, args[0])); }},
    {"upper", "",
     [](Runtime& rt, const Value& v, Arguments&) { return Value::boolean(all_cased(rt, str_of(rt, v), true)); }},
    {"lower", "",
     [](Runtime& rt, const Value& v, Arguments&) { return Value::boolean(all_cased(rt, str_of(rt, v), false)); }},
    {"sameas", "other", [](Runtime&, const Value& v, Arguments& args) { return Value::boolean(same(v, args[0])); }},
    {"in", "seq", compared<CompareOp::in>},
    {"filter", "",
     [](Runtime&, const Value& v, Arguments&) {
       return Value::boolean(v.is_string() && find_filter(v.text()) != nullptr);
     }},
    {"test", "",
     [](Runtime&, const Value& v, Arguments&) {
       return Value::boolean(v.is_string() && find_test(v.text()) != nullptr);
     }},
    {"==", "other", compared<CompareOp::eq>},
    {"eq", "other", compared<CompareOp::eq>},
    {"equalto", "other", compared<CompareOp::eq>},
    {"!=", "other", compared<CompareOp::ne>},
    {"ne", "other", compared<CompareOp::ne>},
    {">", "other", compared<CompareOp::gt>},
    {"gt", "other", compared<CompareOp::gt>},
    {"greaterthan", "other", compared<CompareOp::gt>},
    {">=", "other", compared<CompareOp::ge>},
    {"ge", "other", compared<CompareOp::ge>},
    {"<", "other", compared<CompareOp::lt>},
    {"lt", "other", compared<CompareOp::lt>},
    {"lessthan", "other", compared<CompareOp::lt>},
    {"<=", "other", compared<CompareOp::le>},
    {"le", "other", compared<CompareOp::le>},
};

}  // namespace

BuiltinTable tests() { return kTests; }

}  // namespace ellm::format::jinja
