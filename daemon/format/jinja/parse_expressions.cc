// Expressions, with Jinja's precedence: or, and, not, comparisons, + -, ~, * / // %, **, unary signs, postfix, filters.
#include <charconv>

#include "daemon/format/jinja/parser_impl.h"

namespace ellm::format::jinja {

namespace {

bool ends_tuple(const Token& token, std::string_view end_name) {
  return token.type == TokenType::variable_end || token.type == TokenType::block_end || token.is_sign(")") ||
         (!end_name.empty() && token.is_name(end_name));
}

bool is_constant_name(const std::string& name) {
  return name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None";
}

}  // namespace

ConstantExpr* Parser::constant(Value value, int line) {
  auto* expr = out_.make<ConstantExpr>(line);
  expr->value = std::move(value);
  return expr;
}

NameId Parser::reference(const std::string& name) {
  const NameId id = out_.intern(name);
  if (references_.size() <= id) references_.resize(id + 1);
  ++references_[id];
  return id;
}

const Expr* Parser::arithmetic(ArithmeticOp op, const Expr* left, const Expr* right, int line) {
  auto* expr = out_.make<ArithmeticExpr>(line);
  expr->op = op;
  expr->left = left;
  expr->right = right;
  return expr;
}

const Expr* Parser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  const Expr* expr = parse_or();
  while (with_conditional && current().is_name("if")) {
    auto* conditional = out_.make<ConditionalExpr>(take().line);
    conditional->then = expr;
    conditional->condition = parse_or();
    if (skip_name("else")) conditional->otherwise = parse_expression();
    expr = conditional;
  }
  return expr;
}

const Expr* Parser::parse_tuple(bool with_conditional, bool parenthesized, std::string_view end_name) {
  const int line = current().line;
  std::vector<const Expr*> items;
  bool tuple = false;
  while (true) {
    if (!items.empty()) expect_sign(",");
    if (ends_tuple(current(), end_name)) break;
    items.push_back(parse_expression(with_conditional));
    if (!current().is_sign(",")) break;
    tuple = true;
  }
  if (!tuple && !items.empty()) return items[0];
  if (!tuple && !parenthesized) fail_unexpected("an expression");
  auto* expr = out_.make<SequenceExpr>(line);
  expr->tuple = true;
  expr->items = std::move(items);
  return expr;
}

const Expr* Parser::parse_or() {
  const Expr* left = parse_and();
  while (current().is_name("or")) {
    auto* expr = out_.make<LogicalExpr>(take().line);
    expr->left = left;
    expr->right = parse_and();
    left = expr;
  }
  return left;
}

const Expr* Parser::parse_and() {
  const Expr* left = parse_not();
  while (current().is_name("and")) {
    auto* expr = out_.make<LogicalExpr>(take().line);
    expr->conjunction = true;
    expr->left = left;
    expr->right = parse_not();
    left = expr;
  }
  return left;
}

const Expr* Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  auto* expr = out_.make<NotExpr>(take().line);
  expr->operand = parse_not();
  return expr;
}

const Expr* Parser::parse_compare() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::eq}, {"!=", CompareOp::ne},
                                                                    {"<", CompareOp::lt},  {"<=", CompareOp::le},
                                                                    {">", CompareOp::gt},  {">=", CompareOp::ge}};
  const int line = current().line;
  const Expr* first = parse_sum();
  CompareExpr* expr = nullptr;
  while (true) {
    std::optional<CompareOp> op;
    for (const auto& [sign, value] : kOps) {
      if (current().is_sign(sign)) op = value;
    }
    if (current().is_name("in")) op = CompareOp::in;
    if (current().is_name("not") && ahead().is_name("in")) {
      take();
      op = CompareOp::not_in;
    }
    if (!op) return expr != nullptr ? expr : first;
    take();
    if (expr == nullptr) {
      expr = out_.make<CompareExpr>(line);
      expr->first = first;
    }
    expr->rest.emplace_back(*op, parse_sum());
  }
}

const Expr* Parser::parse_sum() {
  const Expr* left = parse_concat();
  while (current().is_sign("+") || current().is_sign("-")) {
    const Token& sign = take();
    left = arithmetic(sign.text == "+" ? ArithmeticOp::add : ArithmeticOp::subtract, left, parse_concat(), sign.line);
  }
  return left;
}

const Expr* Parser::parse_concat() {
  const Expr* first = parse_product();
  if (!current().is_sign("~")) return first;
  auto* expr = out_.make<ConcatExpr>(current().line);
  expr->items.push_back(first);
  while (skip_sign("~")) expr->items.push_back(parse_product());
  return expr;
}

const Expr* Parser::parse_product() {
  static constexpr std::pair<std::string_view, ArithmeticOp> kOps[] = {{"*", ArithmeticOp::multiply},
                                                                       {"/", ArithmeticOp::divide},
                                                                       {"//", ArithmeticOp::floor_divide},
                                                                       {"%", ArithmeticOp::modulo}};
  const Expr* left = parse_power();
  while (true) {
    std::optional<ArithmeticOp> op;
    for (const auto& [sign, value] : kOps) {
      if (current().is_sign(sign)) op = value;
    }
    if (!op) return left;
    const int line = take().line;
    left = arithmetic(*op, left, parse_power(), line);
  }
}

// Unlike Python's, Jinja's ** binds to the left and looser than a sign in front of its left side.
const Expr* Parser::parse_power() {
  const Expr* left = parse_unary(true);
  while (current().is_sign("**")) {
    const int line = take().line;
    left = arithmetic(ArithmeticOp::power, left, parse_unary(true), line);
  }
  return left;
}

const Expr* Parser::parse_unary(bool with_filters) {
  const Expr* expr = nullptr;
  if (current().is_sign("-")) {
    const Nesting nesting(*this);
    auto* negative = out_.make<NegativeExpr>(take().line);
    negative->operand = parse_unary(false);
    expr = negative;
  } else if (current().is_sign("+")) {
    const Nesting nesting(*this);
    auto* positive = out_.make<PositiveExpr>(take().line);
    positive->operand = parse_unary(false);
    expr = positive;
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(expr);
  return with_filters ? parse_filters(expr) : expr;
}

const Expr* Parser::parse_primary() {
  const Token& token = current();
  switch (token.type) {
    case TokenType::name: return parse_name();
    case TokenType::integer:
    case TokenType::real: return parse_number();
    case TokenType::string: {
      const int line = token.line;
      std::string text;
      while (current().type == TokenType::string) text += take().text;
      return constant(out_.constant(std::move(text)), line);
    }
    default: break;
  }
  if (token.is_sign("[")) return parse_list();
  if (token.is_sign("{")) return parse_dict();
  if (!skip_sign("(")) fail("unexpected " + describe(token));
  const Expr* inner = parse_tuple(true, true);
  expect_sign(")");
  return inner;
}

const Expr* Parser::parse_name() {
  const Token& token = take();
  if (is_constant_name(token.text)) {
    const char c = token.text[0];
    return constant(c == 'n' || c == 'N' ? Value::none() : Value::boolean(c == 't' || c == 'T'), token.line);
  }
  auto* expr = out_.make<NameExpr>(token.line);
  expr->name = reference(token.text);
  return expr;
}

const Expr* Parser::parse_number() {
  const Token& token = current();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.type == TokenType::real) {
    double value = 0;
    const auto result = std::from_chars(begin, end, value);
    // Python reads what is too large as infinity, what is too small as zero.
    if (result.ec == std::errc::result_out_of_range) value = std::strtod(token.text.c_str(), nullptr);
    take();
    return constant(Value::real(value), token.line);
  }
  int base = 10;
  if (token.text.size() > 2 && token.text[0] == '0') {
    const char c = static_cast<char>(token.text[1] | 0x20);
    base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
  }
  int64_t value = 0;
  const auto result = std::from_chars(base == 10 ? begin : begin + 2, end, value, base);
  if (result.ec != std::errc()) fail("the integer " + token.text + " does not fit into 64 bits");
  take();
  return constant(Value::integer(value), token.line);
}

const Expr* Parser::parse_list() {
  auto* expr = out_.make<SequenceExpr>(take().line);
  while (!current().is_sign("]")) {
    if (!expr->items.empty()) expect_sign(",");
    if (current().is_sign("]")) break;
    expr->items.push_back(parse_expression());
  }
  expect_sign("]");
  return expr;
}

const Expr* Parser::parse_dict() {
  auto* expr = out_.make<DictExpr>(take().line);
  while (!current().is_sign("}")) {
    if (!expr->items.empty()) expect_sign(",");
    if (current().is_sign("}")) break;
    const Expr* key = parse_expression();
    expect_sign(":");
    expr->items.emplace_back(key, parse_expression());
  }
  expect_sign("}");
  return expr;
}

const Expr* Parser::parse_postfix(const Expr* expr) {
  while (true) {
    if (current().is_sign(".") || current().is_sign("[")) {
      expr = parse_subscript(expr);
    } else if (current().is_sign("(")) {
      expr = parse_call(expr);
    } else {
      return expr;
    }
  }
}

const Expr* Parser::parse_filters(const Expr* expr) {
  while (true) {
    if (skip_sign("|")) {
      expr = parse_filter(expr);
    } else if (current().is_name("is")) {
      expr = parse_test(expr);
    } else if (current().is_sign("(")) {
      expr = parse_call(expr);
    } else {
      return expr;
    }
  }
}

const Expr* Parser::parse_subscript(const Expr* target) {
  const int line = current().line;
  if (skip_sign(".")) {
    if (current().type == TokenType::name) {
      auto* expr = out_.make<AttributeExpr>(line);
      expr->target = target;
      expr->name = out_.constant(take().text);
      return expr;
    }
    if (current().type != TokenType::integer) fail_unexpected("a name or number behind '.'");
    auto* expr = out_.make<ItemExpr>(line);
    expr->target = target;
    expr->index = parse_number();
    return expr;
  }
  expect_sign("[");
  auto* expr = out_.make<ItemExpr>(line);
  expr->target = target;
  auto* tuple = out_.make<SequenceExpr>(line);
  tuple->tuple = true;
  while (!current().is_sign("]")) {
    if (!tuple->items.empty()) expect_sign(",");
    tuple->items.push_back(parse_index());
  }
  expect_sign("]");
  expr->index = tuple->items.size() == 1 ? tuple->items[0] : tuple;
  return expr;
}

const Expr* Parser::parse_index() {
  const int line = current().line;
  const Expr* start = nullptr;
  if (!current().is_sign(":")) {
    start = parse_expression();
    if (!current().is_sign(":")) return start;
  }
  take();
  auto* slice = out_.make<SliceExpr>(line);
  slice->start = start;
  const auto bound_follows = [this] { return !current().is_sign("]") && !current().is_sign(","); };
  if (!current().is_sign(":") && bound_follows()) slice->stop = parse_expression();
  if (skip_sign(":") && bound_follows()) slice->step = parse_expression();
  return slice;
}

const Expr* Parser::parse_call(const Expr* callee) {
  auto* expr = out_.make<CallExpr>(current().line);
  expr->callee = callee;
  parse_arguments(expr->args);
  return expr;
}

void Parser::parse_arguments(CallArgs& args) {
  expect_sign("(");
  const auto ensure = [this](bool holds) {
    if (!holds) fail("invalid syntax for a function call");
  };
  bool first = true;
  while (!current().is_sign(")")) {
    if (!first) {
      expect_sign(",");
      if (current().is_sign(")")) break;
    }
    first = false;
    if (skip_sign("*")) {
      ensure(args.star == nullptr && args.star_star == nullptr);
      args.star = parse_expression();
    } else if (skip_sign("**")) {
      ensure(args.star_star == nullptr);
      args.star_star = parse_expression();
    } else if (current().type == TokenType::name && ahead().is_sign("=")) {
      ensure(args.star_star == nullptr);
      Value name = out_.constant(take().text);
      take();
      args.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(args.star == nullptr && args.star_star == nullptr && args.named.empty());
      args.positional.push_back(parse_expression());
    }
  }
  expect_sign(")");
}

FilterExpr* Parser::parse_filter(const Expr* target) {
  auto* expr = out_.make<FilterExpr>(current().line);
  expr->target = target;
  expr->name = expect_any_name();
  while (skip_sign(".")) expr->name += "." + expect_any_name();
  expr->filter = find_filter(expr->name);
  if (current().is_sign("(")) parse_arguments(expr->args);
  return expr;
}

const Expr* Parser::parse_test(const Expr* target) {
  auto* expr = out_.make<TestExpr>(take().line);
  const bool negated = skip_name("not");
  expr->target = target;
  expr->name = expect_any_name();
  while (skip_sign(".")) expr->name += "." + expect_any_name();
  expr->test = find_test(expr->name);
  const Token& token = current();
  const bool operand = token.type == TokenType::name || token.type == TokenType::string ||
                       token.type == TokenType::integer || token.type == TokenType::real || token.is_sign("[") ||
                       token.is_sign("{");
  if (token.is_sign("(")) {
    parse_arguments(expr->args);
  } else if (operand && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
    if (token.is_name("is")) fail("tests cannot be chained with 'is'");
    expr->args.positional.push_back(parse_postfix(parse_primary()));
  }
  if (!negated) return expr;
  auto* negation = out_.make<NotExpr>(expr->line);
  negation->operand = expr;
  return negation;
}

}  // namespace ellm::format::jinja
