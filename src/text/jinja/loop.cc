// Attributes of `loop` and of macros.
#include "text/jinja/loop.h"

#include "text/jinja/ops.h"

namespace sx::jinja {

namespace {

// loop.cycle and loop.changed as callable values.
class LoopMethod final : public NativeObject {
 public:
  LoopMethod(Value loop, bool cycle) : loop_(std::move(loop)), cycle_(cycle) {}
  void clear() override { loop_ = Value(); }
  Value call(Interpreter&, Args& args) override {
    if (!args.named.empty()) raise("loop methods take no keyword arguments");
    auto& loop = static_cast<LoopObject&>(loop_.native());
    return cycle_ ? loop.cycle(args.positional) : Value::boolean(loop.changed(args.positional));
  }

 private:
  Value loop_;
  bool cycle_;
};

}  // namespace

Value MacroObject::call(Interpreter& interpreter, Args& args) {
  const Value keep = home_;
  return interpreter.call_macro(code_, *static_cast<Scope*>(keep.object()), args);
}

std::optional<Value> MacroObject::attribute(std::string_view name) {
  if (name == "name") return Value::string(code_.name);
  if (name == "catch_kwargs") return Value::boolean(code_.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(code_.uses_varargs);
  if (name == "caller") return Value::boolean(code_.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const Parameter& p : code_.parameters) names.push_back(Value::string(p.name));
  return Value::tuple(std::move(names));
}

void LoopObject::clear() {
  scope_ = Value();
  items_ = Value();
  last_ = Value();
}

bool LoopObject::changed(std::vector<Value> values) {
  const Value now = Value::tuple(std::move(values));
  if (!last_.is_undefined() && equal(last_, now)) return false;
  last_ = now;
  return true;
}

Value LoopObject::cycle(const std::vector<Value>& values) const {
  if (values.empty()) raise("no items for cycling given");
  return values[index_ % values.size()];
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
  if (name == "cycle") return Value(new LoopMethod(Value(this), true));
  if (name == "changed") return Value(new LoopMethod(Value(this), false));
  return std::nullopt;
}

}  // namespace sx::jinja
