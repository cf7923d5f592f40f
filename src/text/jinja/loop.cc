// The attributes of `loop`, and calls of macros and of recursive loops.
#include "text/jinja/loop.h"

#include "text/jinja/ops.h"

namespace sx::jinja {

Value MacroObject::call(Interpreter& interpreter, Args& args) {
  const Value keep = home_;
  return interpreter.call_macro(code_, *static_cast<Scope*>(keep.object()), args);
}

std::optional<Value> MacroObject::attribute(std::string_view name) {
  raise("attribute '{}' of macro '{}': attributes of macros are not supported", name, code_.name);
}

void LoopObject::clear() {
  scope_ = Value();
  items_ = Value();
}

Value LoopObject::call(Interpreter& interpreter, Args& args) {
  auto slots = bind("loop", args, {"iterable"}, 1);
  const Value keep = scope_;
  return interpreter.call_loop(stmt_, *static_cast<Scope*>(keep.object()), *slots[0], depth_ + 1);
}

std::optional<Value> LoopObject::attribute(std::string_view name) {
  const auto i = static_cast<int64_t>(index_), n = static_cast<int64_t>(size());
  if (name == "index") return Value::integer(i + 1);
  if (name == "index0") return Value::integer(i);
  if (name == "first") return Value::boolean(i == 0);
  if (name == "last") return Value::boolean(i + 1 == n);
  if (name == "length") return Value::integer(n);
  if (name == "revindex") return Value::integer(n - i);
  if (name == "revindex0") return Value::integer(n - i - 1);
  if (name == "depth") return Value::integer(depth_ + 1);
  if (name == "depth0") return Value::integer(depth_);
  if (name == "previtem") return i > 0 ? item(index_ - 1) : Value::undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? item(index_ + 1) : Value::undefined("there is no next item");
  if (name == "cycle" || name == "changed") raise("loop.{} is not supported", name);
  return std::nullopt;
}

}  // namespace sx::jinja
