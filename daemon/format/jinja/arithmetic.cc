// Python's arithmetic. Integers have 64 bits and overflow is an error.
#include <cmath>
#include <limits>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/format_spec.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"

namespace ellm::format::jinja {

namespace {

constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_overflow(Runtime& rt, ArithmeticOp op) {
  rt.fail(std::string("integer overflow in '") + kSigns[static_cast<int>(op)] + "'");
}

int64_t power(Runtime& rt, int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow(rt, ArithmeticOp::power);
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) fail_overflow(rt, ArithmeticOp::power);
  }
}

Value integers(Runtime& rt, ArithmeticOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case ArithmeticOp::add: overflow = __builtin_add_overflow(a, b, &result); break;
    case ArithmeticOp::subtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    case ArithmeticOp::multiply: overflow = __builtin_mul_overflow(a, b, &result); break;
    case ArithmeticOp::divide:
      if (b == 0) rt.fail("division by zero");
      // 64 bits of mantissa hold both exactly.
      return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case ArithmeticOp::floor_divide:
    case ArithmeticOp::modulo: {
      if (b == 0) rt.fail("integer division or modulo by zero");
      if (b == -1) {  // the one quotient that overflows
        if (op == ArithmeticOp::modulo) return Value::integer(0);
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const bool down = a % b != 0 && (a < 0) != (b < 0);
      result = op == ArithmeticOp::modulo ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0);
      break;
    }
    case ArithmeticOp::power:
      if (b >= 0) return Value::integer(power(rt, a, b));
      if (a == 0) rt.fail("0.0 cannot be raised to a negative power");
      return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  if (overflow) fail_overflow(rt, op);
  return Value::integer(result);
}

double real_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  if ((b < 0) != (rest < 0)) rest += b;
  return rest;
}

double real_floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value reals(Runtime& rt, ArithmeticOp op, double a, double b) {
  switch (op) {
    case ArithmeticOp::add: return Value::real(a + b);
    case ArithmeticOp::subtract: return Value::real(a - b);
    case ArithmeticOp::multiply: return Value::real(a * b);
    case ArithmeticOp::power: {
      if (a == 0 && b < 0) rt.fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(b) && b != std::floor(b)) rt.fail("a negative number has no real power of a fraction");
      const double result = std::pow(a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) rt.fail("result of '**' too large");
      return Value::real(result);
    }
    default: break;
  }
  if (b == 0) rt.fail(op == ArithmeticOp::modulo ? "float modulo by zero" : "float division by zero");
  if (op == ArithmeticOp::divide) return Value::real(a / b);
  return Value::real(op == ArithmeticOp::modulo ? real_modulo(a, b) : real_floor_divide(a, b));
}

Value concatenate(Runtime& rt, const Value& a, const Value& b) {
  const bool markup = a.str()->markup || b.str()->markup;
  if (!markup) {
    rt.check_text(a.text().size() + b.text().size());
    std::string out;
    out.reserve(a.text().size() + b.text().size());
    return rt.text(out.append(a.text()).append(b.text()));
  }
  std::string out = a.str()->markup ? a.str()->text : escape_html(rt, a.text());
  out += b.str()->markup ? b.str()->text : escape_html(rt, b.text());
  return rt.text(std::move(out), true);
}

Value repeat(Runtime& rt, const Value& what, int64_t times) {
  const size_t n = times > 0 ? static_cast<size_t>(times) : 0;
  if (what.is_string()) {
    rt.check_text(n, what.text().size());
    std::string out;
    out.reserve(n * what.text().size());
    for (size_t i = 0; i < n && !what.text().empty(); ++i) out += what.text();
    return rt.text(std::move(out), what.str()->markup);
  }
  const Seq* seq = as_seq(what);
  if (!seq->items.empty() && n > rt.limits().steps / seq->items.size()) rt.spend(rt.limits().steps + 1);
  rt.spend(n * seq->items.size());
  std::vector<Value> items;
  rt.check_text(n * seq->items.size(), sizeof(Value));
  items.reserve(n * seq->items.size());
  for (size_t i = 0; i < n && !seq->items.empty(); ++i) items.insert(items.end(), seq->items.begin(), seq->items.end());
  return rt.seq(seq->shape, std::move(items));
}

bool repeatable(const Value& v) { return v.is_string() || has_shape(v, Shape::list) || has_shape(v, Shape::tuple); }

}  // namespace

Value arithmetic(Runtime& rt, ArithmeticOp op, const Value& a, const Value& b) {
  if (op == ArithmeticOp::modulo && a.is_string()) return printf_format(rt, a, b);
  if (a.is_integral() && b.is_integral()) return integers(rt, op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return reals(rt, op, a.as_real(), b.as_real());
  if (a.is_undefined()) rt.fail_undefined(a);
  if (b.is_undefined()) rt.fail_undefined(b);
  if (op == ArithmeticOp::add) {
    if (a.is_string() && b.is_string()) return concatenate(rt, a, b);
    if ((has_shape(a, Shape::list) && has_shape(b, Shape::list)) ||
        (has_shape(a, Shape::tuple) && has_shape(b, Shape::tuple))) {
      rt.spend(as_seq(a)->items.size() + as_seq(b)->items.size());
      std::vector<Value> items = as_seq(a)->items;
      items.insert(items.end(), as_seq(b)->items.begin(), as_seq(b)->items.end());
      return rt.seq(a.object()->shape, std::move(items));
    }
    if (a.is_string() || has_shape(a, Shape::list) || has_shape(a, Shape::tuple)) {
      const std::string type = type_name(a);
      rt.fail("can only concatenate " + type + " (not \"" + type_name(b) + "\") to " + type);
    }
  }
  if (op == ArithmeticOp::multiply && repeatable(a) && b.is_integral()) return repeat(rt, a, b.as_integer());
  if (op == ArithmeticOp::multiply && repeatable(b) && a.is_integral()) return repeat(rt, b, a.as_integer());
  rt.fail(std::string("unsupported operand type(s) for ") + kSigns[static_cast<int>(op)] + ": '" + type_name(a) +
          "' and '" + type_name(b) + "'");
}

Value negate(Runtime& rt, const Value& v) {
  if (v.kind() == Kind::real) return Value::real(-v.as_real());
  if (v.is_undefined()) rt.fail_undefined(v);
  if (!v.is_integral()) rt.fail(std::string("bad operand type for unary -: '") + type_name(v) + "'");
  return integers(rt, ArithmeticOp::subtract, 0, v.as_integer());
}

Value positive(Runtime& rt, const Value& v) {
  if (v.kind() == Kind::real) return v;
  if (v.is_undefined()) rt.fail_undefined(v);
  if (!v.is_integral()) rt.fail(std::string("bad operand type for unary +: '") + type_name(v) + "'");
  return Value::integer(v.as_integer());
}

}  // namespace ellm::format::jinja
