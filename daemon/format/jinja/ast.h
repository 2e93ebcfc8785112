// The syntax tree of a template. Nodes are owned in a row by the Template and point to each other, so that no depth of
// nesting makes its destruction recurse. Immutable once parsed.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/value.h"

namespace ellm::format::jinja {

using NameId = uint32_t;  // a place in Template::names

struct Node {
  virtual ~Node() = default;
  int line = 0;
};

enum class ExprKind : uint8_t {
  constant,
  name,
  sequence,
  dict,
  negative,
  positive,
  negation,
  arithmetic,
  logical,
  concat,
  compare,
  conditional,
  attribute,
  item,
  slice,
  call,
  filter,
  test
};

struct Expr : Node {
  explicit Expr(ExprKind k) : kind(k) {}
  const ExprKind kind;
};

template <ExprKind K>
struct ExprOf : Expr {
  static constexpr ExprKind kKind = K;
  ExprOf() : Expr(K) {}
};

struct CallArgs {
  std::vector<const Expr*> positional;
  std::vector<std::pair<Value, const Expr*>> named;
  const Expr* star = nullptr;       // *args
  const Expr* star_star = nullptr;  // **kwargs
};

struct ConstantExpr : ExprOf<ExprKind::constant> {
  Value value;
};
struct NameExpr : ExprOf<ExprKind::name> {
  NameId name = 0;
};
struct SequenceExpr : ExprOf<ExprKind::sequence> {
  bool tuple = false;
  std::vector<const Expr*> items;
};
struct DictExpr : ExprOf<ExprKind::dict> {
  std::vector<std::pair<const Expr*, const Expr*>> items;
};
struct NegativeExpr : ExprOf<ExprKind::negative> {
  const Expr* operand = nullptr;
};
struct PositiveExpr : ExprOf<ExprKind::positive> {
  const Expr* operand = nullptr;
};
struct NotExpr : ExprOf<ExprKind::negation> {
  const Expr* operand = nullptr;
};
struct ArithmeticExpr : ExprOf<ExprKind::arithmetic> {
  ArithmeticOp op = ArithmeticOp::add;
  const Expr* left = nullptr;
  const Expr* right = nullptr;
};
struct LogicalExpr : ExprOf<ExprKind::logical> {
  bool conjunction = false;  // and, else or
  const Expr* left = nullptr;
  const Expr* right = nullptr;
};
struct ConcatExpr : ExprOf<ExprKind::concat> {
  std::vector<const Expr*> items;
};
struct CompareExpr : ExprOf<ExprKind::compare> {
  const Expr* first = nullptr;
  std::vector<std::pair<CompareOp, const Expr*>> rest;
};
struct ConditionalExpr : ExprOf<ExprKind::conditional> {
  const Expr* condition = nullptr;
  const Expr* then = nullptr;
  const Expr* otherwise = nullptr;  // may be null
};
struct AttributeExpr : ExprOf<ExprKind::attribute> {
  const Expr* target = nullptr;
  Value name;
};
struct ItemExpr : ExprOf<ExprKind::item> {
  const Expr* target = nullptr;
  const Expr* index = nullptr;
};
struct SliceExpr : ExprOf<ExprKind::slice> {  // only as the index of an ItemExpr; each bound may be null
  const Expr* start = nullptr;
  const Expr* stop = nullptr;
  const Expr* step = nullptr;
};
struct CallExpr : ExprOf<ExprKind::call> {
  const Expr* callee = nullptr;
  CallArgs args;
};
struct FilterExpr : ExprOf<ExprKind::filter> {
  const Expr* target = nullptr;  // null: the body of a filter block
  std::string name;
  const Builtin* filter = nullptr;  // null: unknown, an error when it is reached
  CallArgs args;
};
struct TestExpr : ExprOf<ExprKind::test> {
  const Expr* target = nullptr;
  std::string name;
  const Builtin* test = nullptr;
  CallArgs args;
};

/// What `set`, `for` and `with` assign to.
struct Target {
  enum class Form : uint8_t { name, attribute, tuple };
  Form form = Form::name;
  int line = 0;
  NameId name = 0;  // also the namespace of an attribute
  Value attribute;
  std::vector<Target> items;
};

enum class StmtKind : uint8_t {
  text,
  output,
  branch,
  loop,
  set,
  set_block,
  scope,
  macro,
  call_block,
  filter_block,
  evaluate,
  leave,
  next
};

struct Stmt : Node {
  explicit Stmt(StmtKind k) : kind(k) {}
  const StmtKind kind;
};

template <StmtKind K>
struct StmtOf : Stmt {
  StmtOf() : Stmt(K) {}
};

using Body = std::vector<const Stmt*>;

struct TextStmt : StmtOf<StmtKind::text> {
  std::string text;
};
struct OutputStmt : StmtOf<StmtKind::output> {
  const Expr* value = nullptr;
};
struct IfStmt : StmtOf<StmtKind::branch> {
  std::vector<std::pair<const Expr*, Body>> branches;
  Body otherwise;
};
struct ForStmt : StmtOf<StmtKind::loop> {
  Target target;
  const Expr* iterable = nullptr;
  const Expr* condition = nullptr;  // may be null
  bool recursive = false;
  bool uses_loop = false;  // whether the body names `loop`
  Body body;
  Body otherwise;
};
struct SetStmt : StmtOf<StmtKind::set> {
  Target target;
  const Expr* value = nullptr;
};
struct SetBlockStmt : StmtOf<StmtKind::set_block> {
  Target target;
  std::vector<const FilterExpr*> filters;
  Body body;
};
/// `with`, and blocks that only open a scope.
struct ScopeStmt : StmtOf<StmtKind::scope> {
  std::vector<std::pair<Target, const Expr*>> variables;
  Body body;
};
struct MacroStmt : StmtOf<StmtKind::macro> {
  std::string label;  // empty: the body of a call block
  NameId name = 0;
  std::vector<std::pair<NameId, const Expr*>> parameters;  // with their default, or null
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  Body body;
};
struct CallBlockStmt : StmtOf<StmtKind::call_block> {
  const CallExpr* call = nullptr;
  const MacroStmt* caller = nullptr;
};
struct FilterBlockStmt : StmtOf<StmtKind::filter_block> {
  std::vector<const FilterExpr*> filters;
  Body body;
};
struct EvaluateStmt : StmtOf<StmtKind::evaluate> {
  const Expr* value = nullptr;
};  // do
struct BreakStmt : StmtOf<StmtKind::leave> {};
struct ContinueStmt : StmtOf<StmtKind::next> {};

/// A parsed template.
class Template {
  std::vector<std::unique_ptr<Str>> strings_;  // first, so that it dies last: names and nodes look into it to the end

 public:
  Body body;
  std::vector<Value> names;             // NameId to its text
  std::vector<const Builtin*> globals;  // NameId to the global function of that name, or null
  NameId loop_name = 0, caller_name = 0, varargs_name = 0, kwargs_name = 0;

  template <typename T>
  T* make(int line) {
    auto owned = std::make_unique<T>();
    T* raw = owned.get();
    raw->line = line;
    nodes_.push_back(std::move(owned));
    return raw;
  }
  /// A string constant, shared by all renders.
  Value constant(std::string text);
  NameId intern(const std::string& name);
  /// The id of a name that the template mentions.
  const NameId* find(std::string_view name) const;

 private:
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unordered_map<std::string, NameId> ids_;
};

}  // namespace ellm::format::jinja
