// The % operator of strings.
#include <cmath>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/format_spec.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

class Printf {
 public:
  Printf(Runtime& rt, const Value& format, const Value& values)
      : rt_(rt), text_(format.text()), markup_(format.str()->markup), values_(values), tuple_(as_seq(values)) {
    if (tuple_ != nullptr && tuple_->shape != Shape::tuple) tuple_ = nullptr;
    // What has [] counts as a mapping, which need not be used up.
    mapping_ = values.is_undefined() || as_dict(values) != nullptr || has_shape(values, Shape::list) ||
               has_shape(values, Shape::range);
  }

  std::string run() {
    rt_.spend_text(text_.size());
    std::string out;
    while (at_ < text_.size()) {
      const size_t percent = std::min(text_.find('%', at_), text_.size());
      out += text_.substr(at_, percent - at_);
      at_ = percent + 1;
      if (percent < text_.size()) out += field();
      rt_.check_text(out.size());
      rt_.spend(1);
    }
    const size_t given = tuple_ != nullptr ? tuple_->items.size() : 1;
    if (used_ < given && !mapping_) rt_.fail("not all arguments converted during string formatting");
    return out;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  Value next_value() {
    if (tuple_ != nullptr) {
      if (used_ < tuple_->items.size()) return tuple_->items[used_++];
    } else if (used_ == 0) {
      ++used_;
      return values_;
    }
    rt_.fail("not enough arguments for format string");
  }

  int64_t count() {
    if (peek() == '*') {
      ++at_;
      return integer_argument(rt_, "* in a format", next_value());
    }
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > INT32_MAX) rt_.fail("a width or precision in a format is too big");
    }
    return value;
  }

  std::string field() {
    std::optional<Value> named;
    if (peek() == '(') {
      const size_t close = text_.find(')', at_);
      if (close == text_.npos) rt_.fail("incomplete format key");
      const Dict* dict = as_dict(values_);
      if (dict == nullptr) rt_.fail("format requires a mapping");
      const std::string key(text_.substr(at_ + 1, close - at_ - 1));
      const Value* found = dict->find(key);
      if (found == nullptr) rt_.fail("a format names the key '" + key + "', which is not there");
      named = *found;
      at_ = close + 1;
    }
    left_ = zero_ = alternate_ = false;
    sign_ = '\0';
    for (;; ++at_) {
      const char c = peek();
      if (c == '-') {
        left_ = true;
      } else if (c == '0') {
        zero_ = true;
      } else if (c == '#') {
        alternate_ = true;
      } else if (c == '+' || (c == ' ' && sign_ != '+')) {
        sign_ = c;
      } else if (c != ' ') {
        break;
      }
    }
    width_ = count();
    if (width_ < 0) {
      left_ = true;
      width_ = width_ < -INT32_MAX ? INT32_MAX : -width_;
    }
    precision_ = -1;
    if (peek() == '.') {
      ++at_;
      precision_ = std::max<int64_t>(count(), 0);
    }
    while (peek() == 'h' || peek() == 'l' || peek() == 'L') ++at_;
    if (at_ >= text_.size()) rt_.fail("incomplete format");
    const char type = text_[at_++];
    if (type == '%') return "%";
    return convert(type, named ? *named : next_value());
  }

  std::string convert(char type, const Value& value) {
    switch (type) {
      case 's':
        if (markup_ && !(value.is_string() && value.str()->markup)) return string(escape_html(rt_, str_of(rt_, value)));
        return string(str_of(rt_, value));
      case 'r':
      case 'a': return string(repr_of(rt_, value));
      case 'c': return character(value);
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return integer(type, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (value.is_undefined()) rt_.fail_undefined(value);
        if (!value.is_number()) rt_.fail(std::string("must be real number, not ") + type_name(value));
        const double real = value.as_real();
        std::string digits = print_real(rt_, std::fabs(real), type, precision_ < 0 ? 6 : precision_, alternate_);
        if (!std::isfinite(real) && type == 'F') digits = upper(digits);
        return number(std::signbit(real) && !std::isnan(real), "", std::move(digits));
      }
      default: rt_.fail(std::string("unsupported format character '") + type + "'");
    }
  }

  std::string string(std::string_view text) {
    if (precision_ >= 0) text = text.substr(0, byte_of_point(text, static_cast<size_t>(precision_)));
    return padded(rt_, text, width_, left_ ? '<' : '>');
  }

  std::string character(const Value& value) {
    std::string out;
    if (value.is_string() && value.str()->points == 1) {
      out = value.text();
    } else if (value.is_integral() && value.as_integer() >= 0 && value.as_integer() <= 0x10FFFF &&
               !(value.as_integer() >= 0xD800 && value.as_integer() < 0xE000)) {
      append_point(out, static_cast<char32_t>(value.as_integer()));
    } else {
      rt_.fail("%c requires int or char");
    }
    return padded(rt_, out, width_, left_ ? '<' : '>');
  }

  std::string integer(char type, const Value& value) {
    if (value.is_undefined()) rt_.fail_undefined(value);
    int64_t whole = value.as_integer();
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (decimal && value.kind() == Kind::real) {
      const double real = std::trunc(value.as_real());
      if (!(std::fabs(real) < 9.2e18)) rt_.fail("a float does not fit into an integer");
      whole = static_cast<int64_t>(real);
    } else if (!value.is_integral()) {
      rt_.fail(std::string("%") + type + " format: " + (decimal ? "a real number" : "an integer") +
               " is required, not " + type_name(value));
    }
    const uint64_t magnitude = whole < 0 ? ~static_cast<uint64_t>(whole) + 1 : static_cast<uint64_t>(whole);
    char buffer[32];
    const char format[] = {'%', 'l', 'l', decimal ? 'u' : type, '\0'};
    std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned long long>(magnitude));
    std::string digits = buffer;
    if (precision_ > static_cast<int64_t>(digits.size())) digits = padded(rt_, digits, precision_, '>', "0");
    const char* prefix = !alternate_ || decimal ? "" : type == 'o' ? "0o" : type == 'x' ? "0x" : "0X";
    return number(whole < 0, prefix, std::move(digits));
  }

  std::string number(bool negative, const char* prefix, std::string digits) {
    const std::string head = (negative ? "-" : sign_ != '\0' ? std::string(1, sign_) : std::string()) + prefix;
    if (left_) return padded(rt_, head + digits, width_, '<');
    if (zero_) return head + padded(rt_, digits, width_ - static_cast<int64_t>(head.size()), '>', "0");
    return padded(rt_, head + digits, width_, '>');
  }

  Runtime& rt_;
  const std::string_view text_;
  const bool markup_;
  const Value values_;
  const Seq* tuple_;
  bool mapping_ = false;
  size_t used_ = 0;
  size_t at_ = 0;
  bool left_ = false, zero_ = false, alternate_ = false;
  char sign_ = '\0';
  int64_t width_ = 0, precision_ = -1;
};

}  // namespace

Value printf_format(Runtime& rt, const Value& format, const Value& values) {
  return rt.text(Printf(rt, format, values).run(), format.str()->markup);
}

}  // namespace ellm::format::jinja
