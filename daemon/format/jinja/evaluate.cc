// Expressions. Each kind has a function of its own, which keeps the frames of the recursion small.
#include "daemon/format/jinja/interpreter.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"

namespace ellm::format::jinja {

Value Interpreter::eval(const Expr& expr) {
  const Level level(*this);
  spend(1);
  switch (expr.kind) {
    case ExprKind::constant: return static_cast<const ConstantExpr&>(expr).value;
    case ExprKind::name: return eval_name(static_cast<const NameExpr&>(expr).name);
    case ExprKind::sequence: return eval_sequence(static_cast<const SequenceExpr&>(expr));
    case ExprKind::dict: return eval_dict(static_cast<const DictExpr&>(expr));
    case ExprKind::negative: return negate(*this, eval(*static_cast<const NegativeExpr&>(expr).operand));
    case ExprKind::positive: return positive(*this, eval(*static_cast<const PositiveExpr&>(expr).operand));
    case ExprKind::negation: return Value::boolean(!truth(eval(*static_cast<const NotExpr&>(expr).operand)));
    case ExprKind::arithmetic: return eval_arithmetic(static_cast<const ArithmeticExpr&>(expr));
    case ExprKind::logical: return eval_logical(static_cast<const LogicalExpr&>(expr));
    case ExprKind::concat: return eval_concat(static_cast<const ConcatExpr&>(expr));
    case ExprKind::compare: return eval_compare(static_cast<const CompareExpr&>(expr));
    case ExprKind::conditional: return eval_conditional(static_cast<const ConditionalExpr&>(expr));
    case ExprKind::attribute: return eval_attribute(static_cast<const AttributeExpr&>(expr));
    case ExprKind::item: return eval_item(static_cast<const ItemExpr&>(expr));
    case ExprKind::slice: set_line(expr.line); fail("a slice stands for no value of its own");
    case ExprKind::call: return eval_call(static_cast<const CallExpr&>(expr));
    case ExprKind::filter: return eval_filter(static_cast<const FilterExpr&>(expr));
    case ExprKind::test: return eval_test(static_cast<const TestExpr&>(expr));
  }
  return Value::none();
}

const Value* Interpreter::find_variable(NameId name) const {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* found = scope->find(name)) return found;
  }
  const Value& given = variables_[name];
  return given.is_missing() ? nullptr : &given;
}

Value Interpreter::eval_name(NameId name) {
  if (const Value* found = find_variable(name)) return *found;
  if (const Builtin* global = source_.globals[name]) return Value::object(make<Function>(global));
  return Value::undefined(Absence::variable, source_.names[name].str());
}

Value Interpreter::eval_sequence(const SequenceExpr& expr) {
  std::vector<Value> items;
  items.reserve(expr.items.size());
  for (const Expr* item : expr.items) items.push_back(eval(*item));
  return seq(expr.tuple ? Shape::tuple : Shape::list, std::move(items));
}

Value Interpreter::eval_dict(const DictExpr& expr) {
  Dict* result = dict();
  for (const auto& [key, value] : expr.items) {
    const Value name = eval(*key);
    result->set(*this, name, eval(*value));
  }
  return Value::object(result);
}

Value Interpreter::eval_logical(const LogicalExpr& expr) {
  Value left = eval(*expr.left);
  return truth(left) == expr.conjunction ? eval(*expr.right) : left;
}

Value Interpreter::eval_arithmetic(const ArithmeticExpr& expr) {
  const Value left = eval(*expr.left);
  const Value right = eval(*expr.right);
  set_line(expr.line);
  return arithmetic(*this, expr.op, left, right);
}

Value Interpreter::eval_concat(const ConcatExpr& expr) {
  std::string out;
  for (const Expr* item : expr.items) append_str(*this, out, eval(*item));
  return text(std::move(out));
}

Value Interpreter::eval_compare(const CompareExpr& expr) {
  Value left = eval(*expr.first);
  for (const auto& [op, operand] : expr.rest) {
    Value right = eval(*operand);
    set_line(expr.line);
    if (!compare(*this, op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_conditional(const ConditionalExpr& expr) {
  if (truth(eval(*expr.condition))) return eval(*expr.then);
  if (expr.otherwise != nullptr) return eval(*expr.otherwise);
  return undefined_hint("the inline if-expression on line " + std::to_string(expr.line) +
                        " evaluated to false and no else section was defined");
}

Value Interpreter::eval_attribute(const AttributeExpr& expr) {
  const Value target = eval(*expr.target);
  set_line(expr.line);
  return get_attribute(*this, target, expr.name);
}

Value Interpreter::eval_item(const ItemExpr& expr) {
  const Value target = eval(*expr.target);
  if (expr.index->kind != ExprKind::slice) {
    const Value index = eval(*expr.index);
    set_line(expr.line);
    return get_item(*this, target, index);
  }
  const auto& slice = static_cast<const SliceExpr&>(*expr.index);
  const auto bound = [this](const Expr* e) { return e != nullptr ? eval(*e) : Value::none(); };
  const Value start = bound(slice.start);
  const Value stop = bound(slice.stop);
  const Value step = bound(slice.step);
  set_line(expr.line);
  return get_slice(*this, target, start, stop, step);
}

void Interpreter::eval_arguments(const CallArgs& from, Arguments& to) {
  to.positional.reserve(from.positional.size());
  for (const Expr* expr : from.positional) to.positional.push_back(eval(*expr));
  for (const auto& [name, expr] : from.named) {
    for (const auto& [other, value] : to.named) {
      if (other.text() == name.text()) fail("keyword argument repeated: " + std::string(name.text()));
    }
    to.named.emplace_back(name, eval(*expr));
  }
  if (from.star != nullptr) {
    const std::vector<Value> more = to_vector(*this, eval(*from.star));
    to.positional.insert(to.positional.end(), more.begin(), more.end());
  }
  if (from.star_star != nullptr) {
    const Value more = eval(*from.star_star);
    const Dict* dict = as_dict(more);
    if (dict == nullptr) fail("the argument behind ** must be a mapping");
    for (const auto& [name, value] : dict->entries()) {
      if (!name.is_string()) fail("keywords must be strings");
      for (const auto& [other, given] : to.named) {
        if (other.text() == name.text())
          fail("got multiple values for keyword argument '" + std::string(name.text()) + "'");
      }
      spend(to.named.size());
      to.named.emplace_back(name, value);
    }
  }
}

Value Interpreter::eval_call(const CallExpr& expr) {
  Arguments args;
  // Methods and global functions are called without making an object of them first.
  if (expr.callee->kind == ExprKind::attribute) {
    const auto& attribute = static_cast<const AttributeExpr&>(*expr.callee);
    const Value self = eval(*attribute.target);
    set_line(expr.line);
    const bool space = has_shape(self, Shape::space);
    if (const Builtin* method = space ? nullptr : find_method(self, attribute.name.text())) {
      eval_arguments(expr.args, args);
      set_line(expr.line);
      return call_builtin(*method, self, args);
    }
    const Value callee = get_attribute(*this, self, attribute.name);
    eval_arguments(expr.args, args);
    set_line(expr.line);
    return call(callee, args);
  }
  if (expr.callee->kind == ExprKind::name) {
    const NameId name = static_cast<const NameExpr&>(*expr.callee).name;
    if (const Builtin* global = source_.globals[name]; global != nullptr && find_variable(name) == nullptr) {
      eval_arguments(expr.args, args);
      set_line(expr.line);
      return call_builtin(*global, Value(), args);
    }
  }
  const Value callee = eval(*expr.callee);
  eval_arguments(expr.args, args);
  set_line(expr.line);
  return call(callee, args);
}

Value Interpreter::eval_filter(const FilterExpr& expr) { return apply_filter(expr, eval(*expr.target)); }

Value Interpreter::apply_filter(const FilterExpr& expr, const Value& input) {
  set_line(expr.line);
  if (expr.filter == nullptr) fail("no filter named '" + expr.name + "'");
  Arguments args;
  eval_arguments(expr.args, args);
  set_line(expr.line);
  return call_builtin(*expr.filter, input, args);
}

Value Interpreter::eval_test(const TestExpr& expr) {
  const Value target = eval(*expr.target);
  set_line(expr.line);
  if (expr.test == nullptr) fail("no test named '" + expr.name + "'");
  Arguments args;
  eval_arguments(expr.args, args);
  set_line(expr.line);
  return call_builtin(*expr.test, target, args);
}

}  // namespace ellm::format::jinja
