// Walks the syntax tree of a template and writes its output. One interpreter serves one rendering; filters, tests and
// methods get a reference to it to look up attributes, call macros and apply other filters.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace sx::jinja {

// Variables of one block; a variable not found here is looked up in the parent.
struct Scope final : Object {
  explicit Scope(Scope* p) : Object(Type::kScope, 96), parent(p == nullptr ? Value() : Value(p)) {}
  void clear() override {
    variables.clear();
    parent = Value();
  }
  Scope* up() const { return static_cast<Scope*>(parent.object()); }
  const Value* find(int symbol) const;
  void set(int symbol, Value value);
  std::vector<std::pair<int, Value>> variables;
  Value parent;
};

class LoopObject;

class Interpreter {
 public:
  Interpreter(const Program& program, const RenderLimits& limits, const RenderSettings& settings);
  // Sets a variable of the outermost scope.
  void define(std::string_view name, Value value);
  std::string run();
  int line() const { return line_; }
  const RenderSettings& settings() const { return settings_; }

  // Filters, tests, methods and functions call these.
  Value call(const Value& callee, Args& args);
  Value apply_filter(std::string_view name, const Value& input, Args& args);
  bool apply_test(std::string_view name, const Value& input, Args& args);
  Value call_macro(const MacroCode& code, Scope& scope, Args& args);
  Value call_loop(const Stmt& loop, Scope& scope, const Value& items, int depth);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  // Counts one level of the interpreter's own recursion.
  struct Nesting {
    explicit Nesting(Interpreter& i);
    ~Nesting() { --interpreter.nesting_; }
    Interpreter& interpreter;
  };
  // Counts one level of macro calls and recursive loops.
  struct CallDepth {
    explicit CallDepth(Interpreter& i);
    ~CallDepth() { --interpreter.calls_; }
    Interpreter& interpreter;
  };
  // Redirects the output into a text of its own.
  struct Capture {
    explicit Capture(Interpreter& i) : interpreter(i), outer(i.out_) { i.out_ = &text; }
    ~Capture() { interpreter.out_ = outer; }
    Interpreter& interpreter;
    std::string* outer;
    std::string text;
  };

  // statements (interpreter.cc)
  Flow run_body(const Body& body, Scope& scope);
  Flow run_statement(const Stmt& stmt, Scope& scope);
  Flow run_in_new_scope(const Body& body, Scope& scope);
  Flow run_if(const Stmt& stmt, Scope& scope);
  Flow run_for(const Stmt& stmt, Scope& scope, const Value& items, int depth);
  Flow run_set_block(const Stmt& stmt, Scope& scope);
  Flow run_filter_block(const Stmt& stmt, Scope& scope);
  Flow run_with(const Stmt& stmt, Scope& scope);
  void run_call_block(const Stmt& stmt, Scope& scope);
  void assign(const Expr& target, Value value, Scope& scope);
  void write(const Value& value);
  void write(std::string_view text);

  // expressions (evaluate.cc)
  Value evaluate(const Expr& expr, Scope& scope);
  Value evaluate_node(const Expr& expr, Scope& scope);
  Value evaluate_name(const Expr& expr, Scope& scope);
  Value evaluate_items(const Expr& expr, Scope& scope);
  Value evaluate_compare(const Expr& expr, Scope& scope);
  Value evaluate_condition(const Expr& expr, Scope& scope);
  Value evaluate_slice(const Expr& expr, Scope& scope);
  Value evaluate_call(const Expr& expr, Scope& scope, const Value* caller = nullptr);
  Value evaluate_filter(const Expr& expr, Scope& scope, const Value* input = nullptr);
  Value evaluate_test(const Expr& expr, Scope& scope);
  void evaluate_arguments(const Arguments& arguments, Scope& scope, Args& out);
  const Value& constant(const Expr& expr);

  const Program& program_;
  const RenderLimits& limits_;
  const RenderSettings& settings_;
  Heap& heap_;
  std::vector<Value> constants_;
  Value root_;
  std::string result_;
  std::string* out_ = &result_;
  int line_ = 0, nesting_ = 0, calls_ = 0;
};

// Look up built-ins by name; null when there is none.
using FilterPointer = Value (*)(Interpreter&, const Value& input, Args&);
using TestPointer = bool (*)(Interpreter&, const Value& input, Args&);
using MethodPointer = Value (*)(Interpreter&, const Value& self, Args&);
struct Method {
  MethodPointer function = nullptr;
  bool changes = false;  // changes the list or dict it belongs to
};
FilterPointer find_filter(std::string_view name);
TestPointer find_test(std::string_view name);
const Method* find_method(const Value& self, std::string_view name);
// range, dict, namespace and the other functions every template can call.
std::vector<std::pair<std::string, FunctionPointer>> global_functions();
// The tables behind these lookups; each file of filters or methods has one.
using FilterTable = std::vector<std::pair<std::string_view, FilterPointer>>;
using MethodTable = std::vector<std::pair<std::string_view, Method>>;
const FilterTable& text_filters();
const FilterTable& sequence_filters();
const FilterTable& selection_filters();
const MethodTable& string_methods();

}  // namespace sx::jinja
