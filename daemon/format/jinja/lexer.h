// Template source to tokens, with Jinja's whitespace control (trim_blocks, lstrip_blocks, no trailing newline).
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ellm::format::jinja {

enum class TokenType : unsigned char {
  data,
  block_begin,
  block_end,
  variable_begin,
  variable_end,
  name,
  string,
  integer,
  real,
  sign,  // a sign is an operator or bracket
  end
};

struct Token {
  TokenType type;
  int line;
  std::string text;  // of data, name and string (escapes resolved), number (without '_') or sign

  bool is_name(std::string_view name) const { return type == TokenType::name && text == name; }
  bool is_sign(std::string_view sign) const { return type == TokenType::sign && text == sign; }
};

/// The tokens of valid UTF-8, the last of type end. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source);
/// A token for messages: 'end of template', the text of others.
std::string describe(const Token& token);

}  // namespace ellm::format::jinja
