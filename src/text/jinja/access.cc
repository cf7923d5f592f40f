// Attributes, subscripts and slices with Jinja2's fallbacks: object.name tries methods, then items; object[key] tries
// items, then methods; nothing found is an undefined value, not an error.
#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"
#include "text/jinja/string_ops.h"

namespace sx::jinja {

namespace {

// A method together with the value it belongs to.
class BoundMethod final : public NativeObject {
 public:
  BoundMethod(Value self, std::string name, const Method& method)
      : self_(std::move(self)), name_(std::move(name)), method_(method) {}
  void clear() override { self_ = Value(); }
  Value call(Interpreter& interpreter, Args& args) override { return method_.function(interpreter, self_, args); }
  std::string repr() const override { return fmt::format("<built-in method {}>", name_); }

 private:
  Value self_;
  std::string name_;
  const Method& method_;
};

std::optional<Value> native_attribute(Interpreter& interpreter, const Value& object, std::string_view name) {
  if (object.is(Type::kNative)) return object.native().attribute(name);
  if (object.is(Type::kNamespace)) {
    const Value* found = object.namespace_object().find(name);
    if (found != nullptr) return *found;
    return std::nullopt;
  }
  const Method* method = find_method(object, name);
  if (method == nullptr) return std::nullopt;
  if (method->changes && interpreter.settings().read_only)
    return Value::undefined(fmt::format("access to '{}' of a {} is not allowed: the template may not change its data",
                                        name, type_name(object)));
  return Value(new BoundMethod(object, std::string(name), *method));
}

Value missing(const Value& object, std::string_view name) {
  // Python may well have the attribute; only a part of its methods is supported.
  const char* supported = object.is_string() || object.is_sequence() || object.is_number() ? " that is supported" : "";
  return Value::undefined(fmt::format("'{}' object has no attribute '{}'{}", type_name(object), name, supported));
}

// Returns object[key] as plain Python does; empty where Python raises TypeError or LookupError.
std::optional<Value> plain_item(const Value& object, const Value& key) {
  if (object.is(Type::kDict)) {
    if (key.is(Type::kList) || key.is(Type::kDict) || key.is(Type::kView)) return std::nullopt;
    const Value* found = object.dict_object().find(key);
    if (found == nullptr) return std::nullopt;
    return *found;
  }
  if (!key.is_integral()) return std::nullopt;
  if (!object.is_string() && !object.is_sequence() && !object.is(Type::kRange)) return std::nullopt;
  const int64_t n = length(object);
  const int64_t i = key.as_int() < 0 ? key.as_int() + n : key.as_int();
  if (i < 0 || i >= n) return std::nullopt;
  if (object.is_sequence()) return object.items()[static_cast<size_t>(i)];
  if (object.is(Type::kRange)) return Value::integer(object.range().begin + i * object.range().step);
  return Value::string(substring(object, i, i + 1), object.is_markup());
}

}  // namespace

std::string substring(const Value& text, int64_t begin, int64_t end) {
  const std::string& s = text.text();
  const int64_t n = length(text);
  end = std::min(end, n);
  if (begin >= end) return "";
  const auto count = static_cast<size_t>(end - begin);
  if (n == static_cast<int64_t>(s.size())) return s.substr(static_cast<size_t>(begin), count);  // one byte each
  Heap::current().scan(s.size());
  size_t at = 0;
  for (int64_t i = 0; i < begin; ++i) at += char_bytes(s, at);
  const size_t first = at;
  for (int64_t i = begin; i < end; ++i) at += char_bytes(s, at);
  return s.substr(first, at - first);
}

Value attribute(Interpreter& interpreter, const Value& object, std::string_view name) {
  need(object);
  if (auto found = native_attribute(interpreter, object, name)) {
    if (object.is(Type::kNamespace) && name.starts_with('_')) return missing(object, name);
    return *found;
  }
  if (object.is(Type::kDict)) {
    const Value* found = object.dict_object().find(name);
    if (found != nullptr) return *found;
  }
  return missing(object, name);
}

Value item(Interpreter& interpreter, const Value& object, const Value& key) {
  need(object);
  if (auto found = plain_item(object, key)) return *found;
  if (key.is_string()) {
    if (auto found = native_attribute(interpreter, object, key.text())) return *found;
    return missing(object, key.text());
  }
  return Value::undefined(fmt::format("'{}' object has no element {}", type_name(object), repr(key)));
}

// A slice bound: none counts as absent, anything but an integer is an error.
static std::optional<int64_t> bound(const Value& v) {
  if (v.is_none()) return std::nullopt;
  need(v);
  if (!v.is_integral()) raise("slice indices must be integers or none");
  return v.as_int();
}

Value slice(const Value& object, const Value& begin, const Value& end, const Value& step_value) {
  need(object);
  const bool sliceable = object.is_string() || object.is_sequence() || object.is(Type::kRange);
  if (!sliceable) raise("'{}' object cannot be sliced", type_name(object));
  const int64_t n = length(object);
  const int64_t step = bound(step_value).value_or(1);
  if (step == 0) raise("slice step cannot be zero");
  const auto clamp = [&](std::optional<int64_t> v, int64_t absent) {
    if (!v) return absent;
    int64_t i = *v < 0 ? *v + n : *v;
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    return std::min(std::max(i, low), high);
  };
  const int64_t from = clamp(bound(begin), step > 0 ? 0 : n - 1);
  const int64_t to = clamp(bound(end), step > 0 ? n : -1);
  if (object.is(Type::kRange)) {
    const RangeObject& r = object.range();
    if (step > n || step < -n) raise("a slice step beyond the length of a range");
    return Value(new RangeObject(r.begin + from * r.step, r.begin + to * r.step, r.step * step));
  }
  if (object.is_string() && step == 1) return Value::string(substring(object, from, to), object.is_markup());
  std::vector<int64_t> indices;
  // The loop ends before i + step could overflow.
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    indices.push_back(i);
    if (step > 0 ? step >= to - i : -(step + 1) >= i - to - 1) break;
    i += step;
  }
  Heap::current().step(1 + indices.size() / 8);
  if (object.is_string()) {
    Heap::current().scan(object.text().size());
    const std::vector<char32_t> chars = decode_all(object.text());
    std::string out;
    for (int64_t i : indices) encode(chars[static_cast<size_t>(i)], out);
    return Value::string(std::move(out), object.is_markup());
  }
  std::vector<Value> items;
  items.reserve(indices.size());
  for (int64_t i : indices) items.push_back(object.items()[static_cast<size_t>(i)]);
  return object.is(Type::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace sx::jinja
