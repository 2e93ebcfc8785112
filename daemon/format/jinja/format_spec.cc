// The mini-language of format specifications and str.format.
#include "daemon/format/jinja/format_spec.h"

#include <cmath>
#include <cstdio>
#include <optional>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

constexpr int64_t kMaxPrecision = 10'000;

struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char group = '\0';
  int64_t precision = -1;
  char type = '\0';
};

int64_t read_number(Runtime& rt, std::string_view text, size_t& at) {
  int64_t value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    value = value * 10 + (text[at++] - '0');
    if (value > INT32_MAX) rt.fail("too many digits in a format specification");
  }
  return value;
}

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

Spec read_spec(Runtime& rt, std::string_view text) {
  Spec spec;
  size_t at = 0;
  bool filled = false;
  if (!text.empty()) {
    size_t second = 0;
    next_point(text, second);
    if (second < text.size() && is_align(text[second])) {
      spec.fill = std::string(text.substr(0, second));
      spec.align = text[second];
      filled = true;
      at = second + 1;
    } else if (is_align(text[0])) {
      spec.align = text[at++];
    }
  }
  const auto is = [&](char c) { return at < text.size() && text[at] == c; };
  if (is('+') || is('-') || is(' ')) spec.sign = text[at++];
  if (is('z')) ++at;
  if (is('#')) {
    spec.alternate = true;
    ++at;
  }
  if (is('0') && !filled) {
    spec.fill = "0";
    if (spec.align == '\0') spec.align = '=';
  }
  spec.width = read_number(rt, text, at);
  if (is(',') || is('_')) spec.group = text[at++];
  if (is('.')) {
    const size_t digits = ++at;
    spec.precision = read_number(rt, text, at);
    if (at == digits) rt.fail("format specifier missing precision");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) rt.fail("invalid format specifier '" + std::string(text) + "'");
  return spec;
}

/// Separators between the digits in front of a point.
std::string grouped(std::string_view digits, char group, size_t every) {
  size_t whole = 0;
  while (whole < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[whole])) != 0) ++whole;
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i != 0 && (whole - i) % every == 0) out += group;
    out += digits[i];
  }
  return out.append(digits.substr(whole));
}

std::string finish_number(Runtime& rt, const Spec& spec, bool negative, const std::string& prefix, std::string digits,
                          size_t every) {
  if (spec.group != '\0') digits = grouped(digits, spec.group, every);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const std::string head = sign + prefix;
  if (spec.align == '=') {
    if (spec.group != '\0' && spec.fill == "0") {
      // Zeros are grouped, too.
      std::string zeros = digits;
      while (static_cast<int64_t>(head.size() + zeros.size()) < spec.width &&
             static_cast<int64_t>(zeros.size()) < kMaxPrecision) {
        std::erase(zeros, spec.group);
        zeros = grouped("0" + zeros, spec.group, every);
      }
      return head + zeros;
    }
    return head + padded(rt, digits, spec.width - static_cast<int64_t>(head.size()), '>', spec.fill);
  }
  return padded(rt, head + digits, spec.width, spec.align == '\0' ? '>' : spec.align, spec.fill);
}

std::string radix(uint64_t value, unsigned base, bool upper) {
  const char* digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out.insert(out.begin(), digits[value % base]);
    value /= base;
  } while (value != 0);
  return out;
}

std::string format_real(Runtime& rt, double value, Spec spec) {
  std::string digits;
  const double magnitude = std::fabs(value);
  const char type = spec.type == 'n' ? 'g' : spec.type;
  if (!std::isfinite(value)) {
    digits = std::isnan(value) ? "nan" : "inf";
    if (type == 'E' || type == 'F' || type == 'G') digits = upper(digits);
    if (type == '%') digits += '%';
    spec.group = '\0';
    if (spec.fill == "0" && spec.align == '=') spec.fill = "0";
  } else if (type == '\0') {
    if (spec.precision < 0) {
      digits = repr_real(magnitude);
    } else {
      // As 'g', but a number without exponent keeps a digit behind the point.
      const int64_t precision = std::max<int64_t>(spec.precision, 1);
      digits = print_real(rt, magnitude, 'g', precision);
      if (digits.find('e') == std::string::npos && digits.find('.') == std::string::npos) {
        if (static_cast<int64_t>(digits.size()) >= precision) {
          digits = print_real(rt, magnitude, 'e', precision - 1);
          const size_t e = digits.find('e');
          size_t keep = e;
          while (keep > 1 && digits[keep - 1] == '0' && digits.find('.') < keep) --keep;
          if (digits[keep - 1] == '.') --keep;
          digits.erase(keep, e - keep);
        } else {
          digits += ".0";
        }
      }
    }
  } else if (type == '%') {
    digits = print_real(rt, magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.alternate) + "%";
  } else {
    digits = print_real(rt, magnitude, type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
  }
  return finish_number(rt, spec, std::signbit(value) && !std::isnan(value), "", std::move(digits), 3);
}

std::string format_integer(Runtime& rt, int64_t value, const Spec& spec) {
  if (spec.precision >= 0) rt.fail("precision not allowed in integer format specifier");
  const uint64_t magnitude = value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  const auto prefix = [&](const char* text) { return std::string(spec.alternate ? text : ""); };
  switch (spec.type) {
    case 'b': return finish_number(rt, spec, value < 0, prefix("0b"), radix(magnitude, 2, false), 4);
    case 'o': return finish_number(rt, spec, value < 0, prefix("0o"), radix(magnitude, 8, false), 4);
    case 'x': return finish_number(rt, spec, value < 0, prefix("0x"), radix(magnitude, 16, false), 4);
    case 'X': return finish_number(rt, spec, value < 0, prefix("0X"), radix(magnitude, 16, true), 4);
    case 'c': {
      if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) rt.fail("%c argument is no character");
      std::string out;
      append_point(out, static_cast<char32_t>(value));
      return padded(rt, out, spec.width, spec.align == '\0' ? '<' : spec.align, spec.fill);
    }
    default: return finish_number(rt, spec, value < 0, "", std::to_string(magnitude), 3);
  }
}

[[noreturn]] void fail_type(Runtime& rt, char type, const Value& value) {
  rt.fail(std::string("unknown format code '") + type + "' for object of type '" + type_name(value) + "'");
}

/// One call of str.format.
class Formatter {
 public:
  Formatter(Runtime& rt, const Arguments& args) : rt_(rt), args_(args) {}

  std::string run(std::string_view format, int depth) {
    if (depth > 2) rt_.fail("max string recursion exceeded in a format");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (at < format.size() && format[at] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        rt_.fail("single '}' encountered in a format string");
      } else {
        out += field(format, at, depth);
        rt_.check_text(out.size());
      }
      if (out.size() % 64 == 0) rt_.spend(1);
    }
    return out;
  }

 private:
  /// A field whose '{' ends in front of `at`, which moves behind its '}'.
  std::string field(std::string_view format, size_t& at, int depth) {
    const size_t begin = at;
    int open = 1;
    size_t bracket = 0;
    size_t name_end = std::string_view::npos;  // where '!' or ':' stands
    for (; at < format.size(); ++at) {
      const char c = format[at];
      if (name_end == std::string_view::npos && c == '[') bracket = 1;
      if (c == ']') bracket = 0;
      if (bracket != 0) continue;
      if (c == '{') ++open;
      if (c == '}' && --open == 0) break;
      if ((c == '!' || c == ':') && name_end == std::string_view::npos && open == 1) name_end = at;
    }
    if (at >= format.size()) rt_.fail("expected '}' before end of a format string");
    const std::string_view whole = format.substr(begin, at++ - begin);
    const std::string_view name = whole.substr(0, name_end == std::string_view::npos ? whole.size() : name_end - begin);
    std::string_view rest = whole.substr(name.size());
    Value value = lookup(name);
    if (rest.starts_with('!')) {
      if (rest.size() < 2) rt_.fail("end of a format string while looking for a conversion specifier");
      const char conversion = rest[1];
      rest.remove_prefix(2);
      if (conversion == 'r' || conversion == 'a') {
        value = rt_.text(repr_of(rt_, value));
      } else if (conversion == 's') {
        value = rt_.text(str_of(rt_, value));
      } else {
        rt_.fail(std::string("unknown conversion specifier ") + conversion);
      }
      if (!rest.empty() && !rest.starts_with(':')) rt_.fail("expected ':' after a conversion specifier");
    }
    if (rest.starts_with(':')) rest.remove_prefix(1);
    return format_value(rt_, value, run(rest, depth + 1));
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      if (name[at] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", at + 1), name.size());
        value = get_attribute(rt_, value, rt_.text(name.substr(at + 1, stop - at - 1)));
        at = stop;
      } else {
        const size_t close = name.find(']', at);
        if (name[at] != '[' || close == name.npos)
          rt_.fail("invalid field '" + std::string(name) + "' in a format string");
        const std::string_view key = name.substr(at + 1, close - at - 1);
        value = get_item(rt_, value, number(key) ? Value::integer(*number(key)) : rt_.text(key));
        at = close + 1;
      }
    }
    return value;
  }

  static std::optional<int64_t> number(std::string_view text) {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
    return std::stoll(std::string(text));
  }

  Value argument(std::string_view name) {
    if (name.empty() || number(name)) {
      const size_t index = name.empty() ? next_++ : static_cast<size_t>(*number(name));
      if (index >= args_.positional.size()) {
        rt_.fail("replacement index " + std::to_string(index) + " out of range for positional arguments");
      }
      return args_.positional[index];
    }
    for (const auto& [key, value] : args_.named) {
      if (key.text() == name) return value;
    }
    rt_.fail("a format string names the argument '" + std::string(name) + "', which is not given");
  }

  Runtime& rt_;
  const Arguments& args_;
  size_t next_ = 0;
};

}  // namespace

std::string padded(Runtime& rt, std::string_view text, int64_t width, char align, std::string_view fill) {
  const auto length = static_cast<int64_t>(count_points(text));
  if (width <= length) return std::string(text);
  const auto pad = static_cast<size_t>(width - length);
  rt.check_text(text.size());
  rt.check_text(pad, fill.size());
  const size_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
  std::string out;
  for (size_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (size_t i = left; i < pad; ++i) out += fill;
  return out;
}

std::string print_real(Runtime& rt, double value, char type, int64_t precision, bool alternate) {
  if (precision > kMaxPrecision) rt.fail("precision too big in a format");
  if (type == 'F') type = 'f';
  const char format[] = {'%', alternate ? '#' : '-', '.', '*', type, '\0'};
  std::string out(static_cast<size_t>(precision) + 340, '\0');
  const int size = std::snprintf(out.data(), out.size(), format, static_cast<int>(precision), value);
  out.resize(static_cast<size_t>(std::max(size, 0)));
  return out;
}

std::string format_value(Runtime& rt, const Value& value, std::string_view text) {
  if (text.empty()) return str_of(rt, value);
  const Spec spec = read_spec(rt, text);
  if (value.is_string()) {
    if (spec.type != '\0' && spec.type != 's') fail_type(rt, spec.type, value);
    if (spec.align == '=' && spec.fill != "0") rt.fail("'=' alignment not allowed in string format specifier");
    const std::string_view whole = value.text();
    const std::string_view cut =
        spec.precision < 0 ? whole : whole.substr(0, byte_of_point(whole, static_cast<size_t>(spec.precision)));
    return padded(rt, cut, spec.width, spec.align == '\0' || spec.align == '=' ? '<' : spec.align, spec.fill);
  }
  const bool real_type = spec.type != '\0' && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (value.kind() == Kind::real || (value.is_integral() && real_type)) {
    if (spec.type != '\0' && spec.type != 'n' && !real_type) fail_type(rt, spec.type, value);
    return format_real(rt, value.as_real(), spec);
  }
  if (value.is_integral()) {
    if (spec.type != '\0' && std::string_view("bcdnoxX").find(spec.type) == std::string_view::npos) {
      fail_type(rt, spec.type, value);
    }
    return format_integer(rt, value.as_integer(), spec);
  }
  if (value.is_undefined()) rt.fail_undefined(value);
  rt.fail(std::string("unsupported format string passed to ") + type_name(value) + ".__format__");
}

Value str_format(Runtime& rt, const Value& format, const Arguments& args) {
  rt.spend_text(format.text().size());
  return rt.text(Formatter(rt, args).run(format.text(), 0), format.str()->markup);
}

}  // namespace ellm::format::jinja
