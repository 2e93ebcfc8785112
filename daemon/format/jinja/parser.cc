// Statements, assignment targets and tokens of the parser.
#include "daemon/format/jinja/parser.h"

#include <algorithm>

#include "daemon/format/jinja/parser_impl.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

Value Template::constant(std::string text) {
  auto str = std::make_unique<Str>();
  str->points = count_points(text);
  str->text = std::move(text);
  strings_.push_back(std::move(str));
  return Value::string(strings_.back().get());
}

NameId Template::intern(const std::string& name) {
  const auto [at, added] = ids_.emplace(name, static_cast<NameId>(names.size()));
  if (added) {
    names.push_back(constant(name));
    globals.push_back(find_global(name));
  }
  return at->second;
}

const NameId* Template::find(std::string_view name) const {
  const auto at = ids_.find(std::string(name));
  return at != ids_.end() ? &at->second : nullptr;
}

Parser::Parser(std::vector<Token> tokens, const TemplateLimits& limits, Template& out)
    : tokens_(std::move(tokens)), out_(out), max_depth_(limits.depth), references_(4) {
  out_.loop_name = loop_ = out_.intern("loop");
  out_.caller_name = caller_ = out_.intern("caller");
  out_.varargs_name = varargs_ = out_.intern("varargs");
  out_.kwargs_name = kwargs_ = out_.intern("kwargs");
}

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (parser_.depth_ >= parser_.max_depth_) {
    parser_.fail("nested too deeply (more than " + std::to_string(parser_.max_depth_) + " levels)");
  }
  ++parser_.depth_;
}

bool Parser::skip_sign(std::string_view sign) {
  if (!current().is_sign(sign)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void Parser::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) fail_unexpected("'" + std::string(sign) + "'");
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_unexpected("'" + std::string(name) + "'");
}

std::string Parser::expect_any_name() {
  if (current().type != TokenType::name) fail_unexpected("a name");
  return take().text;
}

void Parser::fail_unexpected(const std::string& expected) const {
  fail("expected " + expected + ", got " + describe(current()));
}

Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Body body;
  while (current().type != TokenType::end) {
    const Token& token = take();
    if (token.type == TokenType::data) {
      auto* text = out_.make<TextStmt>(token.line);
      text->text = token.text;
      body.push_back(text);
    } else if (token.type == TokenType::variable_begin) {
      auto* output = out_.make<OutputStmt>(token.line);
      output->value = parse_tuple(true, false);
      if (current().type != TokenType::variable_end) fail_unexpected("'}}'");
      take();
      body.push_back(output);
    } else {
      const bool ended = current().type == TokenType::name &&
                         std::any_of(ends.begin(), ends.end(), [this](auto end) { return current().text == end; });
      if (ended) return body;
      if (current().is_name("print")) {
        parse_print(body);
      } else {
        body.push_back(parse_statement());
      }
      if (current().type != TokenType::block_end) fail_unexpected("'%}'");
      take();
    }
  }
  if (ends.size() != 0) {
    std::string wanted;
    for (const auto end : ends) wanted += (wanted.empty() ? "'" : " or '") + std::string(end) + "'";
    fail("unexpected end of template, " + wanted + " is missing");
  }
  return body;
}

/// The rest of a tag and what follows up to one of `ends`.
Body Parser::parse_block_body(std::initializer_list<std::string_view> ends) {
  skip_sign(":");
  if (current().type != TokenType::block_end) fail_unexpected("'%}'");
  take();
  return parse_body(ends);
}

Body Parser::parse_block_to(std::string_view end) {
  Body body = parse_block_body({end});
  take();
  return body;
}

const Stmt* Parser::parse_statement() {
  if (current().type != TokenType::name) fail_unexpected("the name of a tag");
  using Parse = const Stmt* (Parser::*)();
  static constexpr std::pair<std::string_view, Parse> kTags[] = {
      {"if", &Parser::parse_if},
      {"for", &Parser::parse_for},
      {"set", &Parser::parse_set},
      {"with", &Parser::parse_with},
      {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call_block},
      {"filter", &Parser::parse_filter_block},
      {"generation", &Parser::parse_generation},
      {"block", &Parser::parse_block},
      {"autoescape", &Parser::parse_autoescape},
      {"do", &Parser::parse_do},
  };
  for (const auto& [tag, parse] : kTags) {
    if (current().is_name(tag)) return (this->*parse)();
  }
  const Token& token = current();
  if (token.text == "break" || token.text == "continue") {
    take();
    if (loops_ == 0) fail("'" + token.text + "' outside of a loop");
    if (token.text == "break") return out_.make<BreakStmt>(token.line);
    return out_.make<ContinueStmt>(token.line);
  }
  for (const auto* tag : {"include", "import", "from", "extends"}) {
    if (token.text == tag) fail("'" + token.text + "' is not available: a chat template stands alone");
  }
  fail("unknown tag '" + token.text + "'");
}

const Stmt* Parser::parse_if() {
  auto* stmt = out_.make<IfStmt>(current().line);
  do {
    take();  // if, elif
    const Expr* condition = parse_tuple(false, false);
    stmt->branches.emplace_back(condition, parse_block_body({"elif", "else", "endif"}));
  } while (current().is_name("elif"));
  if (skip_name("else")) stmt->otherwise = parse_block_body({"endif"});
  take();
  return stmt;
}

const Stmt* Parser::parse_for() {
  auto* stmt = out_.make<ForStmt>(take().line);
  stmt->target = parse_target(false, "in");
  expect_name("in");
  stmt->iterable = parse_tuple(false, false, "recursive");
  if (skip_name("if")) stmt->condition = parse_expression();
  stmt->recursive = skip_name("recursive");
  const uint32_t before = references_[loop_];
  ++loops_;
  stmt->body = parse_block_body({"endfor", "else"});
  --loops_;
  stmt->uses_loop = stmt->recursive || references_[loop_] != before;
  if (skip_name("else")) stmt->otherwise = parse_block_body({"endfor"});
  take();
  return stmt;
}

const Stmt* Parser::parse_set() {
  const int line = take().line;
  Target target = parse_target(true);
  if (skip_sign("=")) {
    auto* stmt = out_.make<SetStmt>(line);
    stmt->target = std::move(target);
    stmt->value = parse_tuple(true, false);
    return stmt;
  }
  auto* stmt = out_.make<SetBlockStmt>(line);
  stmt->target = std::move(target);
  stmt->filters = parse_filter_chain(false);
  stmt->body = parse_block_to("endset");
  return stmt;
}

const Stmt* Parser::parse_with() {
  auto* stmt = out_.make<ScopeStmt>(take().line);
  while (current().type != TokenType::block_end && !current().is_sign(":")) {
    if (!stmt->variables.empty()) expect_sign(",");
    Target target = parse_target(false);
    expect_sign("=");
    stmt->variables.emplace_back(std::move(target), parse_expression());
  }
  stmt->body = parse_block_to("endwith");
  return stmt;
}

void Parser::parse_signature(MacroStmt& macro) {
  expect_sign("(");
  bool defaults = false;
  while (!current().is_sign(")")) {
    if (!macro.parameters.empty()) expect_sign(",");
    const NameId name = parse_target_name();
    const Expr* value = nullptr;
    if (skip_sign("=")) {
      value = parse_expression();
      defaults = true;
    } else if (defaults) {
      fail("a parameter without default follows one with a default");
    }
    macro.parameters.emplace_back(name, value);
  }
  expect_sign(")");
}

void Parser::parse_macro_body(MacroStmt& macro, std::string_view end) {
  const auto callers = references_[caller_];
  const auto varargs = references_[varargs_];
  const auto kwargs = references_[kwargs_];
  const int outer_loops = std::exchange(loops_, 0);
  macro.body = parse_block_to(end);
  loops_ = outer_loops;
  for (const auto& [name, value] : macro.parameters) {
    if (name == caller_ && value == nullptr) fail("the parameter 'caller' of a macro needs a default");
  }
  macro.uses_caller = references_[caller_] != callers;
  macro.uses_varargs = references_[varargs_] != varargs;
  macro.uses_kwargs = references_[kwargs_] != kwargs;
}

const Stmt* Parser::parse_macro() {
  auto* macro = out_.make<MacroStmt>(take().line);
  macro->label = current().text;
  macro->name = parse_target_name();
  parse_signature(*macro);
  parse_macro_body(*macro, "endmacro");
  return macro;
}

const Stmt* Parser::parse_call_block() {
  auto* stmt = out_.make<CallBlockStmt>(take().line);
  auto* caller = out_.make<MacroStmt>(stmt->line);
  if (current().is_sign("(")) parse_signature(*caller);
  const Expr* call = parse_expression();
  if (call->kind != ExprKind::call) fail("a call block needs a call");
  stmt->call = static_cast<const CallExpr*>(call);
  parse_macro_body(*caller, "endcall");
  stmt->caller = caller;
  return stmt;
}

std::vector<const FilterExpr*> Parser::parse_filter_chain(bool inline_first) {
  std::vector<const FilterExpr*> filters;
  while (inline_first || skip_sign("|")) {
    inline_first = false;
    filters.push_back(parse_filter(nullptr));
  }
  return filters;
}

const Stmt* Parser::parse_filter_block() {
  auto* stmt = out_.make<FilterBlockStmt>(take().line);
  stmt->filters = parse_filter_chain(true);
  stmt->body = parse_block_to("endfilter");
  return stmt;
}

/// transformers marks the assistant's text with it; only its scope matters for rendering.
const Stmt* Parser::parse_generation() {
  auto* stmt = out_.make<ScopeStmt>(take().line);
  stmt->body = parse_block_to("endgeneration");
  return stmt;
}

/// Without inheritance a block is rendered where it stands.
const Stmt* Parser::parse_block() {
  auto* stmt = out_.make<ScopeStmt>(take().line);
  const std::string name = expect_any_name();
  skip_name("scoped");
  skip_name("required");
  stmt->body = parse_block_to("endblock");
  skip_name(name);
  return stmt;
}

const Stmt* Parser::parse_autoescape() {
  auto* stmt = out_.make<ScopeStmt>(take().line);
  if (!skip_name("false") && !skip_name("False")) fail("automatic escaping is not available in chat templates");
  stmt->body = parse_block_to("endautoescape");
  return stmt;
}

const Stmt* Parser::parse_do() {
  auto* stmt = out_.make<EvaluateStmt>(take().line);
  stmt->value = parse_tuple(true, false);
  return stmt;
}

void Parser::parse_print(Body& body) {
  take();
  bool first = true;
  while (current().type != TokenType::block_end) {
    if (!first) expect_sign(",");
    first = false;
    auto* output = out_.make<OutputStmt>(current().line);
    output->value = parse_expression();
    body.push_back(output);
  }
}

NameId Parser::parse_target_name() {
  const std::string& name = current().text;
  static constexpr std::string_view kReserved[] = {"true", "True", "false", "False", "none", "None"};
  if (current().type == TokenType::name &&
      std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
    fail("can't assign to '" + name + "'");
  }
  return out_.intern(expect_any_name());
}

Target Parser::parse_single_target(bool with_attributes) {
  Target target;
  target.line = current().line;
  if (skip_sign("(")) {
    const Nesting nesting(*this);
    target = parse_target(with_attributes, ")");
    expect_sign(")");
    return target;
  }
  target.name = parse_target_name();
  if (with_attributes && skip_sign(".")) {
    // The namespace is read, too.
    reference(out_.names[target.name].str()->text);
    target.form = Target::Form::attribute;
    target.attribute = out_.constant(expect_any_name());
  }
  return target;
}

Target Parser::parse_target(bool with_attributes, std::string_view end_name) {
  Target tuple;
  tuple.form = Target::Form::tuple;
  tuple.line = current().line;
  bool comma = false;
  while (true) {
    const bool ended = (!end_name.empty() && current().is_name(end_name)) || current().is_sign(")") ||
                       current().is_sign("=") || current().type == TokenType::block_end;
    if (ended && comma) break;
    tuple.items.push_back(parse_single_target(with_attributes));
    if (!skip_sign(",")) break;
    comma = true;
  }
  if (comma) return tuple;
  Target single = std::move(tuple.items[0]);
  return single;
}

std::unique_ptr<const Template> parse_template(std::string_view source, const TemplateLimits& limits) {
  if (!valid_utf8(source)) throw_template_error("the template is not valid UTF-8", 1);
  auto parsed = std::make_unique<Template>();
  Parser parser(tokenize(source), limits, *parsed);
  parsed->body = parser.parse_body({});
  return parsed;
}

}  // namespace ellm::format::jinja
