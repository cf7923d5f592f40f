// The tests behind `is`, and the check at parse time that filters and tests exist.
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"
#include "text/jinja/parser.h"

namespace sx::jinja {

namespace {

template <bool (*kTest)(const Value&)>
bool plain(Interpreter&, const Value& v, Args& args) {
  bind("this test", args, {});
  return kTest(v);
}

template <Op kOp>
bool comparison(Interpreter&, const Value& v, Args& args) {
  auto slots = bind("this test", args, {"other"}, 1);
  return compare(kOp, v, *slots[0]);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_integer(const Value& v) { return v.is(Type::kInt); }
bool is_float(const Value& v) { return v.is(Type::kFloat); }
bool is_boolean(const Value& v) { return v.is(Type::kBool); }
bool is_true(const Value& v) { return v.is(Type::kBool) && v.as_bool(); }
bool is_false(const Value& v) { return v.is(Type::kBool) && !v.as_bool(); }
bool is_mapping(const Value& v) { return v.is(Type::kDict); }
bool is_iterable_value(const Value& v) { return is_iterable(v) || (v.is(Type::kNative) && !v.native().callable()); }
bool is_sequence(const Value& v) { return try_length(v).has_value() && !v.is(Type::kView); }
bool is_callable(const Value& v) { return v.is_undefined() || (v.is(Type::kNative) && v.native().callable()); }

bool modulo_is(const Value& v, int64_t divisor, int64_t rest) {
  return equal(arithmetic(Op::kMod, v, Value::integer(divisor)), Value::integer(rest));
}
bool is_odd(const Value& v) { return modulo_is(v, 2, 1); }
bool is_even(const Value& v) { return modulo_is(v, 2, 0); }

bool divisible_by(Interpreter&, const Value& v, Args& args) {
  auto slots = bind("divisibleby", args, {"num"}, 1);
  return equal(arithmetic(Op::kMod, v, *slots[0]), Value::integer(0));
}

bool same_as(Interpreter&, const Value& v, Args& args) {
  auto slots = bind("sameas", args, {"other"}, 1);
  return v.identical(*slots[0]);
}

bool is_filter(Interpreter& interpreter, const Value& v, Args& args) {
  bind("filter", args, {});
  if (!v.is_string() || find_filter(v.text()) == nullptr) return false;
  return v.text() != "from_json" || !interpreter.settings().read_only;
}

// Walks a program for names of filters and tests that do not exist. With `soft` (inside a condition) Jinja2 reports a
// name only when it is used.
class NameCheck {
 public:
  explicit NameCheck(int& line) : line_(line) {}

  void body(const Body& statements, bool soft) {
    for (const StmtPtr& s : statements) statement(*s, soft);
  }

 private:
  void statement(const Stmt& s, bool soft) {
    const bool condition = s.kind == StmtKind::kIf;
    for (const ExprPtr& e : s.exprs) expression(e.get(), soft || condition);
    for (const Body& b : s.bodies) body(b, condition);
    if (!s.macro) return;
    for (const Parameter& p : s.macro->parameters) expression(p.fallback.get(), false);
    body(s.macro->body, false);
  }

  void expression(const Expr* e, bool soft) {
    if (e == nullptr) return;
    soft = soft || e->kind == ExprKind::kCondition;
    const bool missing = (e->kind == ExprKind::kFilter && find_filter(e->name) == nullptr) ||
                         (e->kind == ExprKind::kTest && find_test(e->name) == nullptr);
    if (missing && !soft) {
      line_ = e->line;
      raise("no {} named '{}' is supported", e->kind == ExprKind::kFilter ? "filter" : "test", e->name);
    }
    for (const ExprPtr& item : e->items) expression(item.get(), soft);
    if (!e->arguments) return;
    for (const ExprPtr& a : e->arguments->positional) expression(a.get(), soft);
    for (const auto& [name, a] : e->arguments->named) expression(a.get(), soft);
    expression(e->arguments->star.get(), soft);
    expression(e->arguments->double_star.get(), soft);
  }

  int& line_;
};

}  // namespace

TestPointer find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, TestPointer> all = {
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_none>},
      {"string", plain<is_string>},
      {"number", plain<is_number>},
      {"integer", plain<is_integer>},
      {"float", plain<is_float>},
      {"boolean", plain<is_boolean>},
      {"true", plain<is_true>},
      {"false", plain<is_false>},
      {"mapping", plain<is_mapping>},
      {"iterable", plain<is_iterable_value>},
      {"sequence", plain<is_sequence>},
      {"callable", plain<is_callable>},
      {"odd", plain<is_odd>},
      {"even", plain<is_even>},
      {"divisibleby", divisible_by},
      {"sameas", same_as},
      {"filter", is_filter},
      {"in", comparison<Op::kIn>},
      {"eq", comparison<Op::kEq>},
      {"equalto", comparison<Op::kEq>},
      {"==", comparison<Op::kEq>},
      {"ne", comparison<Op::kNe>},
      {"!=", comparison<Op::kNe>},
      {"lt", comparison<Op::kLt>},
      {"lessthan", comparison<Op::kLt>},
      {"<", comparison<Op::kLt>},
      {"le", comparison<Op::kLe>},
      {"<=", comparison<Op::kLe>},
      {"gt", comparison<Op::kGt>},
      {"greaterthan", comparison<Op::kGt>},
      {">", comparison<Op::kGt>},
      {"ge", comparison<Op::kGe>},
      {">=", comparison<Op::kGe>},
  };
  const auto it = all.find(name);
  return it == all.end() ? nullptr : it->second;
}

void check_names(const Program& program, int& line) { NameCheck(line).body(program.body, false); }

}  // namespace sx::jinja
