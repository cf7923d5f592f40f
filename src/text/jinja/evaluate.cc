// Evaluates expressions.
#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"

namespace sx::jinja {

Value Interpreter::evaluate(const Expr& expr, Scope& scope) {
  Nesting nesting(*this);
  heap_.step();
  line_ = expr.line;
  return evaluate_node(expr, scope);
}

// String literals become values once per rendering.
const Value& Interpreter::constant(const Expr& expr) {
  Value& slot = constants_[static_cast<size_t>(expr.symbol)];
  if (slot.is_undefined()) slot = Value::string(expr.name);
  return slot;
}

Value Interpreter::evaluate_node(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::kNone: return Value::none();
    case ExprKind::kBool: return Value::boolean(expr.flag);
    case ExprKind::kInt: return Value::integer(expr.integer);
    case ExprKind::kFloat: return Value::real(expr.real);
    case ExprKind::kString: return constant(expr);
    case ExprKind::kName: return evaluate_name(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict: return evaluate_items(expr, scope);
    case ExprKind::kAttribute: return attribute(*this, evaluate(*expr.items[0], scope), expr.name);
    case ExprKind::kItem: {
      const Value object = evaluate(*expr.items[0], scope);
      return item(*this, object, evaluate(*expr.items[1], scope));
    }
    case ExprKind::kSlice: return evaluate_slice(expr, scope);
    case ExprKind::kCall: return evaluate_call(expr, scope);
    case ExprKind::kFilter: return evaluate_filter(expr, scope);
    case ExprKind::kTest: return evaluate_test(expr, scope);
    case ExprKind::kChain: {
      Value left = evaluate(*expr.items[0], scope);
      for (size_t i = 0; i < expr.ops.size(); ++i)
        left = arithmetic(expr.ops[i], left, evaluate(*expr.items[i + 1], scope));
      return left;
    }
    case ExprKind::kCompare: return evaluate_compare(expr, scope);
    case ExprKind::kConcat: {
      std::string text;
      for (const ExprPtr& part : expr.items) {
        append_str(evaluate(*part, scope), text);
        heap_.check_text(text.size());
      }
      return Value::string(std::move(text));
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value v;
      for (const ExprPtr& part : expr.items) {
        v = evaluate(*part, scope);
        if (truth(v) == (expr.kind == ExprKind::kOr)) break;
      }
      return v;
    }
    case ExprKind::kNot: return Value::boolean(!truth(evaluate(*expr.items[0], scope)));
    case ExprKind::kNegative: return negative(evaluate(*expr.items[0], scope));
    case ExprKind::kPositive: {
      const Value v = evaluate(*expr.items[0], scope);
      need(v);
      if (!v.is_number()) raise("bad operand type for unary +: '{}'", type_name(v));
      return v.is(Type::kBool) ? Value::integer(v.as_int()) : v;
    }
    case ExprKind::kCondition: return evaluate_condition(expr, scope);
  }
  return Value();
}

Value Interpreter::evaluate_name(const Expr& expr, Scope& scope) {
  for (const Scope* s = &scope; s != nullptr; s = s->up())
    if (const Value* found = s->find(expr.symbol)) return *found;
  return Value::undefined(fmt::format("'{}' is undefined", expr.name));
}

Value Interpreter::evaluate_items(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::kDict) {
    const Value dict = Value::dict();
    for (size_t i = 0; i < expr.items.size(); i += 2) {
      const Value key = evaluate(*expr.items[i], scope);
      dict.dict_object().set(key, evaluate(*expr.items[i + 1], scope));
    }
    return dict;
  }
  std::vector<Value> items;
  items.reserve(expr.items.size());
  for (const ExprPtr& part : expr.items) items.push_back(evaluate(*part, scope));
  return expr.kind == ExprKind::kList ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value Interpreter::evaluate_compare(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.items[0], scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.items[i + 1], scope);
    if (!compare(expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_condition(const Expr& expr, Scope& scope) {
  if (truth(evaluate(*expr.items[1], scope))) return evaluate(*expr.items[0], scope);
  if (expr.items[2] != nullptr) return evaluate(*expr.items[2], scope);
  return Value::undefined("the inline if-expression was false and has no else");
}

Value Interpreter::evaluate_slice(const Expr& expr, Scope& scope) {
  const Value object = evaluate(*expr.items[0], scope);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) bounds[i] = expr.items[i + 1] ? evaluate(*expr.items[i + 1], scope) : Value::none();
  return slice(object, bounds[0], bounds[1], bounds[2]);
}

void Interpreter::evaluate_arguments(const Arguments& arguments, Scope& scope, Args& out) {
  out.positional.reserve(arguments.positional.size());
  for (const ExprPtr& part : arguments.positional) out.positional.push_back(evaluate(*part, scope));
  for (const auto& [name, part] : arguments.named) out.named.emplace_back(name, evaluate(*part, scope));
  if (arguments.star)
    for (Value& v : to_vector(evaluate(*arguments.star, scope))) out.positional.push_back(std::move(v));
  if (!arguments.double_star) return;
  const Value more = evaluate(*arguments.double_star, scope);
  if (!more.is(Type::kDict)) raise("the argument after ** must be a mapping, not {}", type_name(more));
  heap_.step(more.dict_object().entries.size());
  for (const auto& [key, value] : more.dict_object().entries) {
    if (!key.is_string()) raise("keywords must be strings");
    out.named.emplace_back(key.text(), value);
  }
}

Value Interpreter::evaluate_call(const Expr& expr, Scope& scope, const Value* caller) {
  const Expr& callee = *expr.items[0];
  Args args;
  const auto add_caller = [&] {
    if (caller != nullptr) args.named.emplace_back("caller", *caller);
  };
  // A method is called directly, without making a bound method.
  if (callee.kind == ExprKind::kAttribute) {
    const Value self = evaluate(*callee.items[0], scope);
    const Method* method = self.is_undefined() || self.is(Type::kNamespace) ? nullptr : find_method(self, callee.name);
    if (method != nullptr && !(method->changes && settings_.read_only)) {
      evaluate_arguments(*expr.arguments, scope, args);
      add_caller();
      line_ = expr.line;
      return method->function(*this, self, args);
    }
    const Value function = attribute(*this, self, callee.name);
    evaluate_arguments(*expr.arguments, scope, args);
    add_caller();
    line_ = expr.line;
    return call(function, args);
  }
  const Value function = evaluate(callee, scope);
  evaluate_arguments(*expr.arguments, scope, args);
  add_caller();
  line_ = expr.line;
  return call(function, args);
}

Value Interpreter::evaluate_filter(const Expr& expr, Scope& scope, const Value* input) {
  Nesting nesting(*this);
  Value v;
  if (expr.items[0] == nullptr) v = *input;                                      // the text of a filter block
  else if (input != nullptr) v = evaluate_filter(*expr.items[0], scope, input);  // the filter before this one
  else v = evaluate(*expr.items[0], scope);
  Args args;
  evaluate_arguments(*expr.arguments, scope, args);
  line_ = expr.line;
  return apply_filter(expr.name, v, args);
}

Value Interpreter::evaluate_test(const Expr& expr, Scope& scope) {
  const Value v = evaluate(*expr.items[0], scope);
  Args args;
  evaluate_arguments(*expr.arguments, scope, args);
  line_ = expr.line;
  return Value::boolean(apply_test(expr.name, v, args) != expr.flag);
}

}  // namespace sx::jinja
