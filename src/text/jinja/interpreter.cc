// Runs statements, scopes, macros and loops.
#include "text/jinja/interpreter.h"

#include "text/jinja/loop.h"
#include "text/jinja/ops.h"

namespace sx::jinja {

// The interpreter may recurse this many levels per allowed macro call, which bounds its use of the stack.
constexpr int kLevelsPerCall = 8;

Interpreter::Nesting::Nesting(Interpreter& i) : interpreter(i) {
  if (++i.nesting_ > kLevelsPerCall * i.limits_.max_depth) {
    --i.nesting_;
    raise("the template recurses too deeply");
  }
}

Interpreter::CallDepth::CallDepth(Interpreter& i) : interpreter(i) {
  if (++i.calls_ > i.limits_.max_depth) {
    --i.calls_;
    raise("more than {} macro calls inside each other", i.limits_.max_depth);
  }
}

const Value* Scope::find(int symbol) const {
  for (const auto& [key, value] : variables)
    if (key == symbol) return &value;
  return nullptr;
}

void Scope::set(int symbol, Value value) {
  for (auto& [key, old] : variables)
    if (key == symbol) {
      old = std::move(value);
      return;
    }
  grow(sizeof(Value) + 8);
  variables.emplace_back(symbol, std::move(value));
}

Interpreter::Interpreter(const Program& program, const RenderLimits& limits, const RenderSettings& settings)
    : program_(program),
      limits_(limits),
      settings_(settings),
      heap_(Heap::current()),
      constants_(static_cast<size_t>(program.constants)),
      root_(new Scope(nullptr)) {
  for (const auto& [name, function] : global_functions()) define(name, Value(new FunctionObject(name, function)));
}

// Names the template never mentions need no variable.
void Interpreter::define(std::string_view name, Value value) {
  for (size_t i = 0; i < program_.symbols.size(); ++i)
    if (program_.symbols[i] == name) static_cast<Scope*>(root_.object())->set(static_cast<int>(i), std::move(value));
}

std::string Interpreter::run() {
  // The template's own variables shadow the caller's.
  const Value top(new Scope(static_cast<Scope*>(root_.object())));
  run_body(program_.body, *static_cast<Scope*>(top.object()));
  return std::move(result_);
}

void Interpreter::write(std::string_view text) {
  if (out_->size() + text.size() > limits_.max_output_bytes)
    raise("the output is larger than {} bytes", limits_.max_output_bytes);
  heap_.scan(text.size());
  *out_ += text;
}

void Interpreter::write(const Value& value) {
  if (value.is_string()) return write(std::string_view(value.text()));
  if (!value.is_undefined()) write(std::string_view(str(value)));
}

Interpreter::Flow Interpreter::run_body(const Body& body, Scope& scope) {
  Nesting nesting(*this);
  for (const StmtPtr& stmt : body) {
    heap_.step();
    line_ = stmt->line;
    const Flow flow = run_statement(*stmt, scope);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_in_new_scope(const Body& body, Scope& scope) {
  const Value inner(new Scope(&scope));
  return run_body(body, *static_cast<Scope*>(inner.object()));
}

Interpreter::Flow Interpreter::run_statement(const Stmt& stmt, Scope& scope) {
  switch (stmt.kind) {
    case StmtKind::kData: write(std::string_view(stmt.text)); return Flow::kNormal;
    case StmtKind::kOutput: write(evaluate(*stmt.exprs[0], scope)); return Flow::kNormal;
    case StmtKind::kIf: return run_if(stmt, scope);
    case StmtKind::kFor: {
      const Value items = evaluate(*stmt.exprs[1], scope);
      return run_for(stmt, scope, items, 0);
    }
    case StmtKind::kSet: assign(*stmt.exprs[0], evaluate(*stmt.exprs[1], scope), scope); return Flow::kNormal;
    case StmtKind::kSetBlock: return run_set_block(stmt, scope);
    case StmtKind::kMacro: scope.set(stmt.symbol, Value(new MacroObject(*stmt.macro, scope))); return Flow::kNormal;
    case StmtKind::kCallBlock: run_call_block(stmt, scope); return Flow::kNormal;
    case StmtKind::kFilterBlock: return run_filter_block(stmt, scope);
    case StmtKind::kWith: return run_with(stmt, scope);
    case StmtKind::kScoped: return run_in_new_scope(stmt.bodies[0], scope);
    case StmtKind::kBlock: {
      // A block sees the template's outermost variables only.
      Scope* top = &scope;
      while (top->up() != nullptr && top->up()->up() != nullptr) top = top->up();
      return run_in_new_scope(stmt.bodies[0], *top);
    }
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt, Scope& scope) {
  for (size_t i = 0; i < stmt.bodies.size(); ++i)
    if (i >= stmt.exprs.size() || truth(evaluate(*stmt.exprs[i], scope))) return run_body(stmt.bodies[i], scope);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt, Scope& scope, const Value& iterable, int depth) {
  std::vector<Value> items = to_vector(iterable);
  if (stmt.exprs[2] != nullptr) {
    std::vector<Value> kept;
    for (const Value& item : items) {
      const Value inner(new Scope(&scope));
      Scope& variables = *static_cast<Scope*>(inner.object());
      assign(*stmt.exprs[0], item, variables);
      if (truth(evaluate(*stmt.exprs[2], variables))) kept.push_back(item);
    }
    items = std::move(kept);
  }
  if (items.empty()) return run_in_new_scope(stmt.bodies[1], scope);
  auto* loop = new LoopObject(stmt, scope, Value::list(std::move(items)), depth);
  const Value loop_value(loop);
  for (size_t i = 0; i < loop->size(); ++i) {
    heap_.step();
    const Value inner(new Scope(&scope));
    Scope& variables = *static_cast<Scope*>(inner.object());
    loop->move_to(i);
    variables.set(kLoopSymbol, loop_value);
    assign(*stmt.exprs[0], loop->item(i), variables);
    if (run_body(stmt.bodies[0], variables) == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

Value Interpreter::call_loop(const Stmt& loop, Scope& scope, const Value& items, int depth) {
  CallDepth calls(*this);
  Capture capture(*this);
  run_for(loop, scope, items, depth);
  return Value::string(std::move(capture.text));
}

Interpreter::Flow Interpreter::run_set_block(const Stmt& stmt, Scope& scope) {
  Value value;
  {
    Capture capture(*this);
    const Flow flow = run_in_new_scope(stmt.bodies[0], scope);
    if (flow != Flow::kNormal) return flow;
    value = Value::string(std::move(capture.text));
  }
  if (stmt.exprs[1] != nullptr) value = evaluate_filter(*stmt.exprs[1], scope, &value);
  assign(*stmt.exprs[0], std::move(value), scope);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_filter_block(const Stmt& stmt, Scope& scope) {
  Value value;
  {
    Capture capture(*this);
    const Flow flow = run_in_new_scope(stmt.bodies[0], scope);
    if (flow != Flow::kNormal) return flow;
    value = Value::string(std::move(capture.text));
  }
  write(evaluate_filter(*stmt.exprs[0], scope, &value));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt, Scope& scope) {
  const Value inner(new Scope(&scope));
  Scope& variables = *static_cast<Scope*>(inner.object());
  for (size_t i = 0; i < stmt.exprs.size(); i += 2)
    assign(*stmt.exprs[i], evaluate(*stmt.exprs[i + 1], scope), variables);
  return run_body(stmt.bodies[0], variables);
}

void Interpreter::run_call_block(const Stmt& stmt, Scope& scope) {
  const Value caller(new MacroObject(*stmt.macro, scope));
  write(evaluate_call(*stmt.exprs[0], scope, &caller));
}

void Interpreter::assign(const Expr& target, Value value, Scope& scope) {
  if (target.kind == ExprKind::kName) {
    scope.set(target.symbol, std::move(value));
  } else if (target.kind == ExprKind::kAttribute) {
    const Value object = evaluate(*target.items[0], scope);
    if (!object.is(Type::kNamespace)) raise("cannot assign attribute '{}' on a non-namespace object", target.name);
    object.namespace_object().set(target.name, std::move(value));
  } else {
    const std::vector<Value> parts = to_vector(value.is_undefined() ? (fail_undefined(value), value) : value);
    if (parts.size() != target.items.size())
      raise("{} values to unpack, expected {}", parts.size(), target.items.size());
    for (size_t i = 0; i < parts.size(); ++i) assign(*target.items[i], parts[i], scope);
  }
}

// Binds the arguments in a fresh scope inside the macro's home and returns what its body writes.
Value Interpreter::call_macro(const MacroCode& code, Scope& home, Args& args) {
  CallDepth calls(*this);
  const Value inner(new Scope(&home));
  Scope& variables = *static_cast<Scope*>(inner.object());
  const size_t count = code.parameters.size();
  std::vector<bool> given(count, false);
  for (size_t i = 0; i < count && i < args.positional.size(); ++i) {
    variables.set(code.parameters[i].symbol, args.positional[i]);
    given[i] = true;
  }
  const Value kwargs = Value::dict();
  Value caller;
  for (auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < count && code.parameters[i].name != name) ++i;
    if (i < count) {
      if (given[i]) raise("macro '{}' got two values for its argument '{}'", code.name, name);
      variables.set(code.parameters[i].symbol, value);
      given[i] = true;
    } else if (name == "caller" && code.uses_caller) {
      caller = value;
    } else if (code.uses_kwargs) {
      kwargs.dict_object().set(name, value);
    } else {
      raise("macro '{}' takes no keyword argument '{}'", code.name, name);
    }
  }
  if (code.uses_caller)
    variables.set(kCallerSymbol, caller.is_undefined() ? Value::undefined("No caller defined") : caller);
  if (code.uses_kwargs) variables.set(kKwargsSymbol, kwargs);
  const size_t extra = args.positional.size() > count ? args.positional.size() - count : 0;
  if (extra > 0 && !code.uses_varargs) raise("macro '{}' takes not more than {} arguments", code.name, count);
  if (code.uses_varargs) {
    std::vector<Value> rest(args.positional.end() - static_cast<std::ptrdiff_t>(extra), args.positional.end());
    variables.set(kVarargsSymbol, Value::tuple(std::move(rest)));
  }
  Capture capture(*this);
  for (size_t i = 0; i < count; ++i) {
    const Parameter& p = code.parameters[i];
    if (given[i]) continue;
    variables.set(p.symbol, p.fallback ? evaluate(*p.fallback, variables)
                                       : Value::undefined(fmt::format("parameter '{}' was not provided", p.name)));
  }
  const int line = line_;
  run_body(code.body, variables);
  line_ = line;
  return Value::string(std::move(capture.text));
}

Value Interpreter::call(const Value& callee, Args& args) {
  need(callee);
  if (!callee.is(Type::kNative) || !callee.native().callable()) raise("'{}' object is not callable", type_name(callee));
  Nesting nesting(*this);
  return callee.native().call(*this, args);
}

Value Interpreter::apply_filter(std::string_view name, const Value& input, Args& args) {
  const FilterPointer filter = find_filter(name);
  const bool hidden = name == "from_json" && settings_.read_only;  // Transformers does not have it.
  if (filter == nullptr || hidden) raise("no filter named '{}' is supported", name);
  Nesting nesting(*this);
  return filter(*this, input, args);
}

bool Interpreter::apply_test(std::string_view name, const Value& input, Args& args) {
  const TestPointer test = find_test(name);
  if (test == nullptr) raise("no test named '{}' is supported", name);
  return test(*this, input, args);
}

}  // namespace sx::jinja
