// The recursive descent behind parser.h: expressions in parse_expressions.cc, statements in parser.cc.
#pragma once
#include <initializer_list>
#include <vector>

#include "daemon/format/jinja/ast.h"
#include "daemon/format/jinja/lexer.h"
#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const TemplateLimits& limits, Template& out);
  /// Statements up to one of `ends` (the names of tags; none: the end of the template). The end tag's name is current
  /// then.
  Body parse_body(std::initializer_list<std::string_view> ends);

 private:
  /// One level of nesting, for as long as it lives.
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const Token& take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool skip_sign(std::string_view sign);
  bool skip_name(std::string_view name);
  void expect_sign(std::string_view sign);
  void expect_name(std::string_view name);
  std::string expect_any_name();
  [[noreturn]] void fail(const std::string& message) const { throw_template_error(message, current().line); }
  [[noreturn]] void fail_unexpected(const std::string& expected) const;

  // Statements.
  const Stmt* parse_statement();
  const Stmt* parse_if();
  const Stmt* parse_for();
  const Stmt* parse_set();
  const Stmt* parse_with();
  const Stmt* parse_macro();
  const Stmt* parse_call_block();
  const Stmt* parse_filter_block();
  const Stmt* parse_generation();
  const Stmt* parse_block();
  const Stmt* parse_autoescape();
  const Stmt* parse_do();
  void parse_print(Body& body);
  Body parse_block_body(std::initializer_list<std::string_view> ends);
  Body parse_block_to(std::string_view end);
  void parse_signature(MacroStmt& macro);
  void parse_macro_body(MacroStmt& macro, std::string_view end);
  std::vector<const FilterExpr*> parse_filter_chain(bool inline_first);

  // Targets of assignments.
  Target parse_target(bool with_attributes, std::string_view end_name = {});
  Target parse_single_target(bool with_attributes);
  NameId parse_target_name();

  // Expressions, from the loosest binding to the tightest.
  const Expr* parse_expression(bool with_conditional = true);
  const Expr* parse_tuple(bool with_conditional, bool parenthesized, std::string_view end_name = {});
  const Expr* parse_or();
  const Expr* parse_and();
  const Expr* parse_not();
  const Expr* parse_compare();
  const Expr* parse_sum();
  const Expr* parse_concat();
  const Expr* parse_product();
  const Expr* parse_power();
  const Expr* parse_unary(bool with_filters);
  const Expr* parse_primary();
  const Expr* parse_name();
  const Expr* parse_number();
  const Expr* parse_list();
  const Expr* parse_dict();
  const Expr* parse_postfix(const Expr* expr);
  const Expr* parse_filters(const Expr* expr);
  const Expr* parse_subscript(const Expr* expr);
  const Expr* parse_index();
  const Expr* parse_call(const Expr* callee);
  FilterExpr* parse_filter(const Expr* target);
  const Expr* parse_test(const Expr* target);
  void parse_arguments(CallArgs& args);
  const Expr* arithmetic(ArithmeticOp op, const Expr* left, const Expr* right, int line);
  ConstantExpr* constant(Value value, int line);
  NameId reference(const std::string& name);

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  Template& out_;
  const int max_depth_;
  int depth_ = 0;
  int loops_ = 0;                     // that a break would leave
  std::vector<uint32_t> references_;  // how often each name has been read so far
  NameId loop_, caller_, varargs_, kwargs_;
};

}  // namespace ellm::format::jinja
