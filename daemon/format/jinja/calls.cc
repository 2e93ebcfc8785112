// Macros, call blocks and the loop object.
#include <algorithm>

#include "daemon/format/jinja/interpreter.h"
#include "daemon/format/jinja/operators.h"

namespace ellm::format::jinja {

std::string_view macro_name(const Object& macro) { return static_cast<const Macro&>(macro).stmt->label; }

Value macro_attribute(Runtime& rt, const Object& macro, std::string_view name) {
  const MacroStmt& stmt = *static_cast<const Macro&>(macro).stmt;
  if (name == "name") return stmt.label.empty() ? Value::none() : rt.text(stmt.label);
  if (name == "caller") return Value::boolean(stmt.uses_caller);
  if (name == "catch_varargs") return Value::boolean(stmt.uses_varargs);
  if (name == "catch_kwargs") return Value::boolean(stmt.uses_kwargs);
  return Value();
}

Value Interpreter::call(const Value& callee, Arguments& args) {
  const Level level(*this);
  if (callee.is_undefined()) fail_undefined(callee);
  if (callee.is_object()) {
    switch (callee.object()->shape) {
      case Shape::function:
      case Shape::method: {
        const auto& function = *static_cast<const Function*>(callee.object());
        return call_builtin(*function.builtin, function.self, args);
      }
      case Shape::macro: return call_macro(*static_cast<const Macro*>(callee.object()), args);
      case Shape::loop: return call_loop(*static_cast<const Loop*>(callee.object()), args);
      case Shape::joiner: {
        auto& joiner = *static_cast<Joiner*>(callee.object());
        bind("joiner", "", args);
        return std::exchange(joiner.used, true) ? joiner.separator : text("");
      }
      default: break;
    }
  }
  fail(std::string("'") + type_name(callee) + "' object is not callable");
}

void Interpreter::capture_scope() {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) scope->captured = true;
}

Value Interpreter::call_macro(const Macro& macro, Arguments& args) {
  const MacroStmt& stmt = *macro.stmt;
  const int line = this->line();
  const std::string name = stmt.label.empty() ? "caller" : "'" + stmt.label + "'";
  const size_t count = stmt.parameters.size();
  if (args.positional.size() > count && !stmt.uses_varargs) {
    fail("macro " + name + " takes not more than " + std::to_string(count) + " argument(s)");
  }
  const ScopeGuard scope(*this, macro.scope);
  std::vector<bool> used(args.named.size());
  const auto take_named = [&](const Value& wanted) -> const Value* {
    for (size_t i = 0; i < args.named.size(); ++i) {
      if (args.named[i].first.text() != wanted.text() || used[i]) continue;
      used[i] = true;
      return &args.named[i].second;
    }
    return nullptr;
  };
  bool caller_parameter = false;
  for (size_t i = 0; i < count; ++i) {
    const auto& [id, fallback] = stmt.parameters[i];
    caller_parameter = caller_parameter || id == source_.caller_name;
    if (i < args.positional.size()) {
      scope.scope()->set(id, args.positional[i]);
    } else if (const Value* given = take_named(source_.names[id])) {
      scope.scope()->set(id, *given);
    } else if (fallback != nullptr) {
      scope.scope()->set(id, eval(*fallback));
    } else {
      scope.scope()->set(id, Value::undefined(Absence::parameter, source_.names[id].str()));
    }
  }
  if (stmt.uses_caller && !caller_parameter) {
    const Value* caller = take_named(source_.names[source_.caller_name]);
    scope.scope()->set(source_.caller_name, caller != nullptr ? *caller : undefined_hint("No caller defined"));
  }
  Dict* rest = stmt.uses_kwargs ? dict() : nullptr;
  for (size_t i = 0; i < args.named.size(); ++i) {
    if (used[i]) continue;
    if (rest == nullptr)
      fail("macro " + name + " takes no keyword argument '" + std::string(args.named[i].first.text()) + "'");
    rest->set(*this, args.named[i].first, args.named[i].second);
  }
  if (rest != nullptr) scope.scope()->set(source_.kwargs_name, Value::object(rest));
  if (stmt.uses_varargs) {
    const size_t from = std::min(count, args.positional.size());
    scope.scope()->set(
        source_.varargs_name,
        tuple(std::vector<Value>(args.positional.begin() + static_cast<ptrdiff_t>(from), args.positional.end())));
  }
  Capture capture(*this);
  run(stmt.body);
  set_line(line);
  return text(std::move(capture.text));
}

void Interpreter::run_call_block(const CallBlockStmt& stmt) {
  capture_scope();
  const Value caller = Value::object(make<Macro>(stmt.caller, scope_));
  const Value callee = eval(*stmt.call->callee);
  Arguments args;
  eval_arguments(stmt.call->args, args);
  args.named.emplace_back(source_.names[source_.caller_name], caller);
  set_line(stmt.line);
  write(call(callee, args));
}

Value Interpreter::call_loop(const Loop& loop, Arguments& args) {
  if (!loop.stmt->recursive) fail("the loop must have the 'recursive' marker to be called recursively");
  bind("loop", "iterable", args);
  const int line = this->line();
  Capture capture(*this);
  Scope* const outer = std::exchange(scope_, loop.outer);
  struct Restore {
    Scope*& scope;
    Scope* const outer;
    ~Restore() { scope = outer; }
  } const restore{scope_, outer};
  loop_over(*loop.stmt, args[0], loop.depth0 + 1);
  set_line(line);
  return text(std::move(capture.text));
}

bool Loop::advance(Value& item) {
  if (ahead_at_ < ahead_.size()) {
    item = std::move(ahead_[ahead_at_++]);
    if (ahead_at_ == ahead_.size()) {
      ahead_.clear();
      ahead_at_ = 0;
    }
  } else if (!pull(item)) {
    return false;
  }
  ++index0_;
  before_ = std::move(current_);
  current_ = item;
  return true;
}

bool Loop::peek() {
  if (ahead_at_ < ahead_.size()) return true;
  Value item;
  if (!pull(item)) return false;
  ahead_.push_back(std::move(item));
  return true;
}

int64_t Loop::length(Runtime& rt) {
  if (!length_) {
    for (Value item; pull(item);) ahead_.push_back(std::move(item));
    rt.spend(ahead_.size());
    length_ = static_cast<size_t>(index0_ + 1) + ahead_.size() - ahead_at_;
  }
  return static_cast<int64_t>(*length_);
}

Value Loop::attribute(Runtime& rt, std::string_view name) {
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return Value::integer(length(rt));
  if (name == "revindex") return Value::integer(length(rt) - index0_);
  if (name == "revindex0") return Value::integer(length(rt) - index0_ - 1);
  if (name == "depth") return Value::integer(depth0 + 1);
  if (name == "depth0") return Value::integer(depth0);
  if (name == "previtem") return index0_ > 0 ? before_ : rt.undefined_hint("there is no previous item");
  if (name == "nextitem") return peek() ? ahead_[ahead_at_] : rt.undefined_hint("there is no next item");
  return Value();
}

bool Loop::changed(Runtime& rt, std::vector<Value> values) {
  bool same = last_changed_ && last_changed_->size() == values.size();
  for (size_t i = 0; same && i < values.size(); ++i) same = equal(rt, (*last_changed_)[i], values[i]);
  if (!same) last_changed_ = std::move(values);
  return !same;
}

}  // namespace ellm::format::jinja
