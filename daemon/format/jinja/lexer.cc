// The lexer: text between tags, and the tokens inside them.
#include "daemon/format/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "daemon/format/jinja/runtime.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

/// Line ends as "\n"; one at the end is dropped.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text();
    add(TokenType::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw_template_error(message, line_); }
  void add(TokenType type, std::string text) { tokens_.push_back({type, line_, std::move(text)}); }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool at(std::string_view what) const { return std::string_view(source_).substr(at_).starts_with(what); }

  /// Moves on by `bytes`, counting lines; what was read last decides whether a tag begins its line.
  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
    if (bytes != 0) line_starting_ = source_[at_ - 1] == '\n';
  }

  size_t skip_space(size_t from) const {
    while (from < source_.size()) {
      size_t next = from;
      if (!is_space(next_point(source_, next))) break;
      from = next;
    }
    return from;
  }

  /// The text in front of a tag whose sign of whitespace control is `sign` (0 for none).
  std::string_view stripped(std::string_view text, char sign, bool variable) const {
    if (sign == '-') return strip(text, Side::right);
    if (sign == '+' || variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return text;
    return strip(text.substr(line), Side::left).empty() ? text.substr(0, line) : text;
  }

  /// Data up to the next tag, and that tag.
  void text() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(TokenType::data, source_.substr(at_));
        advance(source_.size() - at_);
        return;
      }
      const char c = source_[tag + 1];
      if (c == '%' || c == '{' || c == '#') break;
      ++tag;
    }
    const char c = source_[tag + 1];
    const char next = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    const auto data = stripped(std::string_view(source_).substr(at_, tag - at_), sign, c == '{');
    if (!data.empty()) add(TokenType::data, std::string(data));
    advance(tag - at_);
    const size_t begin = sign != 0 ? 3 : 2;
    if (c == '#') {
      comment(begin);
    } else if (c == '{') {
      add(TokenType::variable_begin, "{{");
      advance(begin);
      inside("}}", TokenType::variable_end);
    } else if (const size_t body = raw_body(); body != 0) {
      raw(body);
    } else {
      add(TokenType::block_begin, "{%");
      advance(begin);
      inside("%}", TokenType::block_end);
    }
  }

  /// Bytes of the end tag that stands at `from` with its whitespace control; 0 where it does not stand there.
  size_t end_tag(size_t from, std::string_view tag, bool plus, bool trim) const {
    const auto rest = std::string_view(source_).substr(from);
    if (rest.starts_with('-') && rest.substr(1).starts_with(tag)) return skip_space(from + 3) - from;
    if (plus && rest.starts_with('+') && rest.substr(1).starts_with(tag)) return 3;
    if (!rest.starts_with(tag)) return 0;
    return trim && rest.size() > 2 && rest[2] == '\n' ? 3 : 2;
  }

  void comment(size_t begin) {
    for (size_t end = at_ + begin; end < source_.size(); ++end) {
      end = source_.find('#', end);
      if (end == std::string::npos) break;
      // A sign in front of "#}" belongs to it.
      const bool sign = end > at_ + begin && (source_[end - 1] == '-' || source_[end - 1] == '+');
      const size_t from = sign ? end - 1 : end;
      if (const size_t length = end_tag(from, "#}", true, true); length != 0) {
        advance(from + length - at_);
        return;
      }
    }
    fail("missing end of comment tag");
  }

  /// Where the text behind `{% raw %}` at the current place begins; 0 where no such tag stands there.
  size_t raw_body() const {
    size_t at = at_ + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = skip_space(at);
    if (!std::string_view(source_).substr(at).starts_with("raw")) return 0;
    at = skip_space(at + 3);
    const size_t length = end_tag(at, "%}", false, false);
    return length != 0 ? at + length : 0;
  }

  void raw(size_t body) {
    advance(body - at_);
    for (size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      size_t at = tag + 2;
      char sign = '\0';
      if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) sign = source_[at++];
      at = skip_space(at);
      if (!std::string_view(source_).substr(at).starts_with("endraw")) continue;
      at = skip_space(at + 6);
      const size_t length = end_tag(at, "%}", true, true);
      if (length == 0) continue;
      const auto data = stripped(std::string_view(source_).substr(at_, tag - at_), sign, false);
      if (!data.empty()) add(TokenType::data, std::string(data));
      advance(at + length - at_);
      return;
    }
    fail("missing end of raw directive");
  }

  /// The tokens of a tag up to its end, which counts only outside brackets.
  void inside(std::string_view end, TokenType end_type) {
    std::string open;  // the closing brackets that are due
    while (at_ < source_.size()) {
      if (open.empty()) {
        if (const size_t length = end_tag(at_, end, end == "%}", end == "%}"); length != 0) {
          add(end_type, std::string(end));
          advance(length);
          return;
        }
      }
      if (const size_t space = skip_space(at_) - at_; space != 0) {
        advance(space);
      } else if (digit(peek())) {
        number();
      } else if (peek() == '"' || peek() == '\'') {
        string();
      } else if (!name()) {
        sign(open);
      }
    }
  }

  bool name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_word(next_point(source_, next))) break;
      end = next;
    }
    if (end == at_) return false;
    add(TokenType::name, source_.substr(at_, end - at_));
    advance(end - at_);
    return true;
  }

  void sign(std::string& open) {
    static constexpr std::array<std::string_view, 6> kTwo = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOne = "+-/*%~[](){}<>=.:|,;";
    for (const auto two : kTwo) {
      if (!at(two)) continue;
      add(TokenType::sign, std::string(two));
      return advance(2);
    }
    const char c = peek();
    if (kOne.find(c) == kOne.npos) {
      size_t end = at_;
      next_point(source_, end);
      fail("unexpected character '" + source_.substr(at_, end - at_) + "'");
    }
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(std::string("unexpected '") + c + "'");
      if (open.back() != c) fail(std::string("unexpected '") + c + "', expected '" + open.back() + "'");
      open.pop_back();
    }
    add(TokenType::sign, std::string(1, c));
    advance(1);
  }

  /// Digits with single underscores between them, from `from`; returns where they end.
  template <typename Digit>
  size_t digits(size_t from, Digit is_digit) const {
    size_t at = from;
    while (at < source_.size()) {
      if (is_digit(source_[at])) {
        ++at;
      } else if (at > from && source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  void number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = digits(at_, digit);
    bool real = false;
    if (!after_dot) {
      size_t point = end;
      if (point + 1 < source_.size() && source_[point] == '.' && digit(source_[point + 1])) {
        end = digits(point + 1, digit);
        real = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t power = end + 1;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (power < source_.size() && digit(source_[power])) {
          end = digits(power, digit);
          real = true;
        }
      }
    }
    if (!real) end = integer_end();
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    add(real ? TokenType::real : TokenType::integer, std::move(text));
    advance(end - at_);
  }

  /// The end of a whole number: 0b, 0o, 0x, decimal without a leading zero, or zeros.
  size_t integer_end() const {
    if (peek() != '0') return digits(at_, digit);
    const char base = static_cast<char>(peek(1) | 0x20);
    const auto based = [base](char c) {
      if (base == 'b') return c == '0' || c == '1';
      if (base == 'o') return c >= '0' && c <= '7';
      return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    };
    if (base == 'b' || base == 'o' || base == 'x') {
      const size_t first = peek(2) == '_' ? at_ + 3 : at_ + 2;
      const size_t end = digits(first, based);
      if (end > first) return end;
    }
    return digits(at_, [](char c) { return c == '0'; });
  }

  void string() {
    const char quote = peek();
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("unterminated string");
    add(TokenType::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  std::string unescaped(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        out += text[i++];
        continue;
      }
      const char c = text[++i];
      static constexpr std::string_view kFrom = "\\'\"abfnrtv";
      static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t simple = kFrom.find(c); simple != kFrom.npos) {
        out += kTo[simple];
        ++i;
      } else if (c == '\n') {
        ++i;
      } else if (c >= '0' && c <= '7') {
        char32_t point = 0;
        for (int k = 0; k < 3 && i < text.size() && text[i] >= '0' && text[i] <= '7'; ++k)
          point = point * 8 + (text[i++] - '0');
        append_point(out, point);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_point(out, hexadecimal(text, i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8));
        i += c == 'x' ? 3 : c == 'u' ? 5 : 9;
      } else if (c == 'N') {
        fail("a string escape names a character (\\N), which is not supported");
      } else {
        out += '\\';  // an unknown escape stays as it is
      }
    }
    return out;
  }

  char32_t hexadecimal(std::string_view text, size_t from, size_t count) const {
    uint64_t point = 0;
    for (size_t i = from; i < from + count; ++i) {
      const char c = i < text.size() ? text[i] : '\0';
      const char low = static_cast<char>(c | 0x20);
      if (!digit(c) && !(low >= 'a' && low <= 'f')) fail("truncated escape in a string");
      point = point * 16 + static_cast<uint64_t>(digit(c) ? c - '0' : low - 'a' + 10);
    }
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) fail("a string escape is no character");
    return static_cast<char32_t>(point);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::end: return "end of template";
    case TokenType::data: return "template data";
    case TokenType::block_end: return "end of statement block";
    case TokenType::variable_end: return "end of print statement";
    case TokenType::string: return "a string";
    default: return "'" + token.text + "'";
  }
}

}  // namespace ellm::format::jinja
