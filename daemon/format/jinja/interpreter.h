// Runs a parsed template: scopes, statements, expressions, macros and loops. One Interpreter is one render.
#pragma once
#include <boost/json/value.hpp>
#include <functional>
#include <string>
#include <vector>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/ast.h"
#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

/// Variables of a loop body, macro or block. Names are looked up from the inside out.
struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // a macro refers to it
  std::vector<std::pair<NameId, Value>> variables;

  Value* find(NameId name) {
    for (auto& [id, value] : variables) {
      if (id == name) return &value;
    }
    return nullptr;
  }
  void set(NameId name, Value value) {
    if (Value* at = find(name)) {
      *at = std::move(value);
    } else {
      variables.emplace_back(name, std::move(value));
    }
  }
};

/// The `loop` of a for: pulls items one ahead where it is asked about the next.
class Loop : public Object {
 public:
  using Pull = std::function<bool(Value&)>;  // the next item that passes the loop's condition
  Loop(const ForStmt* loop, Scope* scope, int depth, std::optional<size_t> length, Pull pull)
      : Object(Shape::loop), stmt(loop), outer(scope), depth0(depth), length_(length), pull_(std::move(pull)) {}

  bool advance(Value& item);
  int64_t index0() const { return index0_; }
  int64_t length(Runtime& rt);
  /// index, first, nextitem …; missing for other names.
  Value attribute(Runtime& rt, std::string_view name);
  bool changed(Runtime& rt, std::vector<Value> values);
  /// The loop has ended: nothing more to pull.
  void finish() { pull_ = nullptr; }

  const ForStmt* const stmt;
  Scope* const outer;
  const int depth0;

 private:
  bool peek();
  bool pull(Value& item) { return pull_ && pull_(item); }

  std::optional<size_t> length_;
  Pull pull_;
  int64_t index0_ = -1;
  Value before_, current_;
  std::vector<Value> ahead_;  // pulled but not yet given out, in order
  size_t ahead_at_ = 0;
  std::optional<std::vector<Value>> last_changed_;
};

struct Macro : Object {
  Macro(const MacroStmt* m, Scope* s) : Object(Shape::macro), stmt(m), scope(s) {}
  const MacroStmt* const stmt;
  Scope* const scope;  // where it was defined
};

std::string_view macro_name(const Object& macro);
Value macro_attribute(Runtime& rt, const Object& macro, std::string_view name);

class Interpreter final : public Runtime {
 public:
  Interpreter(const Template& source, const TemplateLimits& limits) : Runtime(limits), source_(source) {}
  ~Interpreter() override;

  std::string render(const boost::json::object& variables);
  Value call(const Value& callee, Arguments& args) override;

 private:
  enum class Flow : uint8_t { on, leave, next };  // leave: break, next: continue

  class ScopeGuard;
  class Capture;

  // Statements.
  Flow run(const Body& body);
  Flow run(const Stmt& stmt);
  Flow run_if(const IfStmt& stmt);
  Flow run_for(const ForStmt& stmt);
  Flow run_scope(const ScopeStmt& stmt);
  Flow run_set_block(const SetBlockStmt& stmt);
  Flow run_filter_block(const FilterBlockStmt& stmt);
  void run_call_block(const CallBlockStmt& stmt);
  Flow loop_over(const ForStmt& stmt, const Value& iterable, int depth);
  Value filtered(const std::vector<const FilterExpr*>& filters, Value text);
  void assign(const Target& target, const Value& value);
  void unpack(const Target& target, const Value& value);
  void write(const Value& value);

  // Expressions.
  Value eval(const Expr& expr);
  const Value* find_variable(NameId name) const;
  Value eval_name(NameId name);
  Value eval_sequence(const SequenceExpr& expr);
  Value eval_dict(const DictExpr& expr);
  Value eval_logical(const LogicalExpr& expr);
  Value eval_arithmetic(const ArithmeticExpr& expr);
  Value eval_concat(const ConcatExpr& expr);
  Value eval_compare(const CompareExpr& expr);
  Value eval_conditional(const ConditionalExpr& expr);
  Value eval_attribute(const AttributeExpr& expr);
  Value eval_item(const ItemExpr& expr);
  Value eval_call(const CallExpr& expr);
  Value eval_filter(const FilterExpr& expr);
  Value apply_filter(const FilterExpr& expr, const Value& input);
  Value eval_test(const TestExpr& expr);
  void eval_arguments(const CallArgs& from, Arguments& to);

  // Calls.
  void capture_scope();
  Value call_macro(const Macro& macro, Arguments& args);
  Value call_loop(const Loop& loop, Arguments& args);
  Scope* new_scope(Scope* parent);

  Value from_json(const boost::json::value& json, int depth);
  void set_now(const boost::json::object& variables);

  const Template& source_;
  std::vector<Value> variables_;  // by NameId: what the render was given
  std::string* out_ = nullptr;
  Scope* scope_ = nullptr;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> free_scopes_;
};

/// A scope for as long as it lives; scopes that no macro refers to are used again.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& in, Scope* parent) : in_(in), outer_(in.scope_), scope_(in.new_scope(parent)) {
    in_.scope_ = scope_;
  }
  ~ScopeGuard() {
    in_.scope_ = outer_;
    if (scope_->captured) return;
    scope_->variables.clear();
    in_.free_scopes_.push_back(scope_);
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  Scope* scope() const { return scope_; }

 private:
  Interpreter& in_;
  Scope* const outer_;
  Scope* const scope_;
};

/// Output goes into `text` for as long as it lives.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& in) : in_(in), outer_(in.out_) { in_.out_ = &text; }
  ~Capture() { in_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::string text;

 private:
  Interpreter& in_;
  std::string* const outer_;
};

}  // namespace ellm::format::jinja
