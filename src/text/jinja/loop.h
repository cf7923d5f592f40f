// The callable objects the interpreter itself makes: macros, and the `loop` variable of a for statement.
#pragma once
#include "text/jinja/interpreter.h"

namespace sx::jinja {

// A macro keeps the scope it was defined in: its free variables are looked up there when it is called.
class MacroObject final : public NativeObject {
 public:
  MacroObject(const MacroCode& code, Scope& home) : code_(code), home_(&home) {}
  void clear() override { home_ = Value(); }
  Value call(Interpreter& interpreter, Args& args) override;
  std::optional<Value> attribute(std::string_view name) override;
  std::string repr() const override { return fmt::format("<Macro '{}'>", code_.name); }

 private:
  const MacroCode& code_;
  Value home_;
};

class LoopObject final : public NativeObject {
 public:
  LoopObject(const Stmt& stmt, Scope& scope, Value items, int depth)
      : stmt_(stmt), scope_(&scope), items_(std::move(items)), depth_(depth) {}
  void clear() override;
  size_t size() const { return items_.items().size(); }
  const Value& item(size_t i) const { return items_.items()[i]; }
  void move_to(size_t i) { index_ = i; }

  bool callable() const override { return stmt_.recursive; }
  Value call(Interpreter& interpreter, Args& args) override;
  std::optional<Value> attribute(std::string_view name) override;
  std::string repr() const override { return fmt::format("<LoopContext {}/{}>", index_ + 1, size()); }

 private:
  const Stmt& stmt_;
  Value scope_, items_;
  int depth_;
  size_t index_ = 0;
};

}  // namespace sx::jinja
