// Filters on numbers: abs, round, int, float, filesizeformat.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/format_spec.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

/// Digits with underscores only between them, without those; nullopt where that does not hold.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0 ||
               std::isalnum(static_cast<unsigned char>(text[i + 1])) == 0) {
      return std::nullopt;
    }
  }
  return out;
}

/// Python's int(text, base); nullopt where it raises ValueError.
std::optional<int64_t> parse_integer(Runtime& rt, std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) rt.fail("int() base must be >= 2 and <= 36, or 0");
  text = strip(text, Side::both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 1 && text[0] == '0') {
    const char c = static_cast<char>(text[1] | 0x20);
    const int64_t prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
      base = prefix;
      text.remove_prefix(2);
      if (text.starts_with('_')) text.remove_prefix(1);
    } else if (base == 0 && text.find_first_not_of("0_") != text.npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  const auto digits = without_underscores(text);
  if (!digits || digits->empty() || *digits->begin() == '-') return std::nullopt;
  const std::string number = (negative ? "-" : "") + *digits;
  int64_t value = 0;
  const char* end = number.data() + number.size();
  const auto result = std::from_chars(number.data(), end, value, static_cast<int>(base));
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) rt.fail("int: '" + number + "' does not fit into 64 bits");
  return result.ec == std::errc() ? std::optional(value) : std::nullopt;
}

/// Python's float(text); nullopt where it raises ValueError.
std::optional<double> parse_real(std::string_view text) {
  text = strip(text, Side::both);
  const auto plain = without_underscores(text);
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const std::string word = lower(digits);
  const double sign = negative ? -1 : 1;
  if (word == "inf" || word == "infinity") return sign * HUGE_VAL;
  if (word == "nan") return std::nan("");
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  if (digits.find_first_not_of("0123456789.eE+-") != digits.npos) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ptr != digits.data() + digits.size() || result.ec == std::errc::invalid_argument) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) value = std::strtod(std::string(digits).c_str(), nullptr);
  return sign * value;
}

/// The integer part; fails where it does not fit.
Value truncated(Runtime& rt, double value) {
  if (std::isnan(value)) rt.fail("cannot convert float NaN to integer");
  if (!(std::fabs(value) < 9223372036854775808.0)) rt.fail("a float is too large for an integer of 64 bits");
  return Value::integer(static_cast<int64_t>(value));
}

Value int_filter(Runtime& rt, const Value& v, Arguments& args) {
  const Value otherwise = args.has(0) ? args[0] : Value::integer(0);
  if (v.is_undefined()) rt.fail_undefined(v);
  if (v.is_integral()) return Value::integer(v.as_integer());
  if (v.kind() == Kind::real) return std::isnan(v.as_real()) ? otherwise : truncated(rt, v.as_real());
  if (!v.is_string()) return otherwise;
  rt.spend_characters(v.text().size());
  const auto integer = parse_integer(rt, v.text(), args.has(1) ? integer_argument(rt, "int", args[1]) : 10);
  if (integer) return Value::integer(*integer);
  const auto real = parse_real(v.text());
  return real && std::isfinite(*real) ? truncated(rt, *real) : otherwise;
}

Value float_filter(Runtime& rt, const Value& v, Arguments& args) {
  const Value otherwise = args.has(0) ? args[0] : Value::real(0);
  if (v.is_undefined()) rt.fail_undefined(v);
  if (v.is_number()) return Value::real(v.as_real());
  if (!v.is_string()) return otherwise;
  rt.spend_characters(v.text().size());
  const auto real = parse_real(v.text());
  return real ? Value::real(*real) : otherwise;
}

/// Python's round(x, digits), correctly rounded, halves to even.
double round_real(Runtime& rt, double x, int64_t digits) {
  if (!std::isfinite(x) || digits > 330) return x;
  if (digits < -310) return std::copysign(0.0, x);
  if (digits >= 0) return std::strtod(print_real(rt, x, 'f', digits).c_str(), nullptr);
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(x / unit) * unit;
}

int64_t round_integer(Runtime& rt, int64_t x, int64_t digits) {
  if (digits >= 0) return x;
  if (digits == -19 && (x >= 5'000'000'000'000'000'000 || x <= -5'000'000'000'000'000'000)) {
    rt.fail("integer overflow in round");
  }
  if (digits < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < -digits; ++i) unit *= 10;
  int64_t rest = x % unit;
  if (rest < 0) rest += unit;
  const int64_t half = unit / 2;
  int64_t down = 0;
  if (__builtin_sub_overflow(x, rest, &down)) rt.fail("integer overflow in round");
  const bool up = rest > half || (rest == half && (down / unit) % 2 != 0);
  int64_t result = down;
  if (up && __builtin_add_overflow(down, unit, &result)) rt.fail("integer overflow in round");
  return result;
}

Value round_filter(Runtime& rt, const Value& v, Arguments& args) {
  const int64_t digits = args.has(0) ? integer_argument(rt, "round", args[0]) : 0;
  const std::string_view method = args.has(1) ? text_argument(rt, "round", args[1]) : std::string_view("common");
  if (v.is_undefined()) rt.fail_undefined(v);
  if (!v.is_number()) rt.fail(std::string("round: '") + type_name(v) + "' is no number");
  if (method == "common") {
    if (v.is_integral()) return Value::integer(round_integer(rt, v.as_integer(), digits));
    return Value::real(round_real(rt, v.as_real(), digits));
  }
  if (method != "ceil" && method != "floor") rt.fail("round: the method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = v.as_real() * scale;
  if (!std::isfinite(scaled) || scale == 0) rt.fail("round: the value is too large");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value abs_filter(Runtime& rt, const Value& v, Arguments&) {
  if (v.is_undefined()) rt.fail_undefined(v);
  if (v.kind() == Kind::real) return Value::real(std::fabs(v.as_real()));
  if (!v.is_integral()) rt.fail(std::string("bad operand type for abs(): '") + type_name(v) + "'");
  if (v.as_integer() == INT64_MIN) rt.fail("integer overflow in abs");
  return Value::integer(std::abs(v.as_integer()));
}

Value file_size(Runtime& rt, const Value& v, Arguments& args) {
  if (v.is_undefined()) rt.fail_undefined(v);
  const auto given = v.is_number() ? std::optional(v.as_real()) : v.is_string() ? parse_real(v.text()) : std::nullopt;
  if (!given || !std::isfinite(*given)) rt.fail("filesizeformat needs a number");
  const bool binary = args.has(0) && truth(args[0]);
  const double base = binary ? 1024 : 1000;
  const double bytes = *given;
  if (bytes == 1) return rt.text("1 Byte");
  if (bytes < base) return rt.text(print_real(rt, std::trunc(bytes), 'f', 0) + " Bytes");
  static constexpr std::array<char, 8> kPrefixes = {'k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'};
  double unit = base;
  size_t i = 0;
  do {
    unit *= base;
  } while (bytes >= unit && ++i < kPrefixes.size());
  i = std::min(i, kPrefixes.size() - 1);
  const std::string prefix =
      binary ? std::string(1, i == 0 ? 'K' : kPrefixes[i]) + "iB" : std::string(1, kPrefixes[i]) + "B";
  return rt.text(print_real(rt, base * bytes / unit, 'f', 1) + " " + prefix);
}

constexpr Builtin kFilters[] = {
    {"abs", "", abs_filter},
    {"int", "default? base?", int_filter},
    {"float", "default?", float_filter},
    {"round", "precision? method?", round_filter},
    {"filesizeformat", "binary?", file_size},
};

}  // namespace

BuiltinTable number_filters() { return kFilters; }

}  // namespace ellm::format::jinja
