// Statements, scopes and assignment.
#include "daemon/format/jinja/interpreter.h"

#include <boost/json/serialize.hpp>

#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

Interpreter::~Interpreter() = default;

std::string Interpreter::render(const boost::json::object& variables) {
  set_now(variables);
  variables_.resize(source_.names.size());
  for (const auto& [name, value] : variables) {
    const NameId* id = name != "now" ? source_.find(std::string_view(name.data(), name.size())) : nullptr;
    if (id != nullptr) variables_[*id] = from_json(value, 0);
  }
  std::string out;
  out_ = &out;
  const ScopeGuard scope(*this, nullptr);
  run(source_.body);
  return out;
}

Value Interpreter::from_json(const boost::json::value& json, int depth) {
  if (depth > limits().depth) fail("a variable is nested too deeply");
  spend(1);
  switch (json.kind()) {
    case boost::json::kind::null: return Value::none();
    case boost::json::kind::bool_: return Value::boolean(json.get_bool());
    case boost::json::kind::int64: return Value::integer(json.get_int64());
    case boost::json::kind::uint64:
      if (json.get_uint64() > INT64_MAX) {
        fail("a variable holds the integer " + std::to_string(json.get_uint64()) + ", which does not fit into 64 bits");
      }
      return Value::integer(static_cast<int64_t>(json.get_uint64()));
    case boost::json::kind::double_: return Value::real(json.get_double());
    case boost::json::kind::string: {
      const auto& string = json.get_string();
      if (!valid_utf8(std::string_view(string.data(), string.size())))
        fail("a variable holds text that is not valid UTF-8");
      return text(std::string_view(string.data(), string.size()));
    }
    case boost::json::kind::array: {
      std::vector<Value> items;
      items.reserve(json.get_array().size());
      for (const auto& item : json.get_array()) items.push_back(from_json(item, depth + 1));
      return list(std::move(items));
    }
    case boost::json::kind::object: break;
  }
  Dict* result = dict();
  for (const auto& [name, value] : json.get_object()) {
    if (!valid_utf8(std::string_view(name.data(), name.size()))) fail("a variable has a name that is not valid UTF-8");
    result->set(*this, text(std::string_view(name.data(), name.size())), from_json(value, depth + 1));
  }
  return Value::object(result);
}

void Interpreter::set_now(const boost::json::object& variables) {
  const std::time_t time = std::time(nullptr);
  localtime_r(&time, &now_);
  const auto* given = variables.if_contains("now");
  if (given == nullptr || given->is_null()) return;
  std::tm parsed{};
  const std::string wanted = given->is_string() ? std::string(given->get_string()) : std::string();
  const char* rest = strptime(wanted.c_str(), "%Y-%m-%d", &parsed);
  if (rest != nullptr && (*rest == 'T' || *rest == ' ')) rest = strptime(rest + 1, "%H:%M:%S", &parsed);
  if (rest == nullptr || *rest != '\0') {
    fail("'now' is no date such as 2024-07-26 or 2024-07-26T12:30:00: " + boost::json::serialize(*given));
  }
  parsed.tm_isdst = -1;
  std::mktime(&parsed);  // fills the day of the week and of the year
  now_ = parsed;
}

Scope* Interpreter::new_scope(Scope* parent) {
  Scope* scope = nullptr;
  if (!free_scopes_.empty()) {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  } else {
    keep_bytes(sizeof(Scope) + 4 * sizeof(std::pair<NameId, Value>));
    scopes_.push_back(std::make_unique<Scope>());
    free_scopes_.reserve(scopes_.size());  // so that giving it back cannot fail
    scope = scopes_.back().get();
  }
  scope->parent = parent;
  scope->captured = false;
  return scope;
}

void Interpreter::write(const Value& value) { append_str(*this, *out_, value); }

Interpreter::Flow Interpreter::run(const Body& body) {
  const Level level(*this);
  for (const Stmt* stmt : body) {
    if (const Flow flow = run(*stmt); flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run(const Stmt& stmt) {
  spend(1);
  set_line(stmt.line);
  switch (stmt.kind) {
    case StmtKind::text: {
      const auto& text = static_cast<const TextStmt&>(stmt).text;
      spend_text(text.size());
      check_text(out_->size() + text.size());
      out_->append(text);
      return Flow::on;
    }
    case StmtKind::output: write(eval(*static_cast<const OutputStmt&>(stmt).value)); return Flow::on;
    case StmtKind::branch: return run_if(static_cast<const IfStmt&>(stmt));
    case StmtKind::loop: return run_for(static_cast<const ForStmt&>(stmt));
    case StmtKind::set: {
      const auto& set = static_cast<const SetStmt&>(stmt);
      assign(set.target, eval(*set.value));
      return Flow::on;
    }
    case StmtKind::set_block: return run_set_block(static_cast<const SetBlockStmt&>(stmt));
    case StmtKind::scope: return run_scope(static_cast<const ScopeStmt&>(stmt));
    case StmtKind::macro: {
      const auto& macro = static_cast<const MacroStmt&>(stmt);
      capture_scope();
      scope_->set(macro.name, Value::object(make<Macro>(&macro, scope_)));
      return Flow::on;
    }
    case StmtKind::call_block: run_call_block(static_cast<const CallBlockStmt&>(stmt)); return Flow::on;
    case StmtKind::filter_block: return run_filter_block(static_cast<const FilterBlockStmt&>(stmt));
    case StmtKind::evaluate: eval(*static_cast<const EvaluateStmt&>(stmt).value); return Flow::on;
    case StmtKind::leave: return Flow::leave;
    case StmtKind::next: return Flow::next;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_if(const IfStmt& stmt) {
  for (const auto& [condition, body] : stmt.branches) {
    if (truth(eval(*condition))) return run(body);
  }
  return run(stmt.otherwise);
}

Interpreter::Flow Interpreter::run_for(const ForStmt& stmt) { return loop_over(stmt, eval(*stmt.iterable), 0); }

Interpreter::Flow Interpreter::loop_over(const ForStmt& stmt, const Value& iterable, int depth) {
  set_line(stmt.line);
  Cursor cursor(*this, iterable);
  Scope* const outer = scope_;
  Loop::Pull pull = [this, &cursor, &stmt, outer](Value& item) {
    while (cursor.next(item)) {
      if (stmt.condition == nullptr) return true;
      const ScopeGuard scope(*this, outer);
      assign(stmt.target, item);
      if (truth(eval(*stmt.condition))) return true;
    }
    return false;
  };
  Loop* loop = nullptr;
  if (stmt.recursive) capture_scope();  // loop() may be called after the scope has ended
  if (stmt.uses_loop) {
    loop = make<Loop>(&stmt, outer, depth, stmt.condition == nullptr ? cursor.length() : std::nullopt, std::move(pull));
  }
  // The cursor goes with this function, the loop object may outlive it.
  struct Finish {
    Loop* loop;
    ~Finish() {
      if (loop != nullptr) loop->finish();
    }
  } const finish{loop};
  bool any = false;  // as in Jinja, an iteration that a break or continue cut short does not count
  {
    const ScopeGuard scope(*this, outer);
    for (Value item; loop != nullptr ? loop->advance(item) : pull(item);) {
      scope.scope()->variables.clear();
      if (loop != nullptr) scope.scope()->set(source_.loop_name, Value::object(loop));
      assign(stmt.target, item);
      const Flow flow = run(stmt.body);
      any = any || flow == Flow::on;
      if (flow == Flow::leave) break;
    }
  }
  if (any || stmt.otherwise.empty()) return Flow::on;
  const ScopeGuard scope(*this, outer);
  return run(stmt.otherwise);
}

Interpreter::Flow Interpreter::run_scope(const ScopeStmt& stmt) {
  std::vector<Value> values;  // all of them are evaluated outside of the new scope
  for (const auto& [target, value] : stmt.variables) values.push_back(eval(*value));
  const ScopeGuard scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(stmt.variables[i].first, values[i]);
  return run(stmt.body);
}

Interpreter::Flow Interpreter::run_set_block(const SetBlockStmt& stmt) {
  Value result;
  {
    Capture capture(*this);
    const ScopeGuard scope(*this, scope_);
    if (const Flow flow = run(stmt.body); flow != Flow::on) return flow;
    result = text(std::move(capture.text));
  }
  assign(stmt.target, filtered(stmt.filters, std::move(result)));
  return Flow::on;
}

Interpreter::Flow Interpreter::run_filter_block(const FilterBlockStmt& stmt) {
  Value result;
  {
    Capture capture(*this);
    const ScopeGuard scope(*this, scope_);
    if (const Flow flow = run(stmt.body); flow != Flow::on) return flow;
    result = text(std::move(capture.text));
  }
  write(filtered(stmt.filters, std::move(result)));
  return Flow::on;
}

Value Interpreter::filtered(const std::vector<const FilterExpr*>& filters, Value text) {
  for (const FilterExpr* filter : filters) text = apply_filter(*filter, text);
  return text;
}

void Interpreter::assign(const Target& target, const Value& value) {
  switch (target.form) {
    case Target::Form::name: scope_->set(target.name, value); break;
    case Target::Form::tuple: unpack(target, value); break;
    case Target::Form::attribute: {
      const Value space = eval_name(target.name);
      if (!has_shape(space, Shape::space)) fail("cannot assign an attribute of what is no namespace object");
      static_cast<Dict*>(space.object())->set(*this, target.attribute, value);
    }
  }
}

void Interpreter::unpack(const Target& target, const Value& value) {
  const Level level(*this);
  if (!is_iterable(value)) fail(std::string("cannot unpack non-iterable ") + type_name(value) + " object");
  const std::vector<Value> values = to_vector(*this, value);
  const size_t wanted = target.items.size();
  if (values.size() < wanted) {
    fail("not enough values to unpack (expected " + std::to_string(wanted) + ", got " + std::to_string(values.size()) +
         ")");
  }
  if (values.size() > wanted) fail("too many values to unpack (expected " + std::to_string(wanted) + ")");
  for (size_t i = 0; i < wanted; ++i) assign(target.items[i], values[i]);
}

}  // namespace ellm::format::jinja
