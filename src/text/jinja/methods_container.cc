// Methods of lists, tuples and dicts, and the lookup of methods by type and name.
#include <algorithm>
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"

namespace sx::jinja {

namespace {

// dict

template <ViewObject::Kind kKind>
Value view_method(Interpreter&, const Value& self, Args& args) {
  bind("this dict method", args, {});
  return Value(new ViewObject(kKind, self));
}

Value get(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("get", args, {"/key", "/default"}, 1);
  const Value* found = self.dict_object().find(*slots[0]);
  if (found != nullptr) return *found;
  return slots[1] ? *slots[1] : Value::none();
}

Value copy(Interpreter&, const Value& self, Args& args) {
  bind("copy", args, {});
  if (self.is(Type::kList)) return Value::list(self.items());
  const Value out = Value::dict();
  for (const auto& [key, value] : self.dict_object().entries) out.dict_object().set(key, value);
  return out;
}

void update_from(DictObject& dict, const Value& other) {
  if (other.is(Type::kDict)) {
    const auto entries = other.dict_object().entries;
    for (const auto& [key, value] : entries) dict.set(key, value);
    return;
  }
  for (const Value& pair : to_vector(other)) {
    const std::vector<Value> parts = to_vector(pair);
    if (parts.size() != 2) raise("dictionary update sequence elements need 2 values, not {}", parts.size());
    dict.set(parts[0], parts[1]);
  }
}

Value update(Interpreter&, const Value& self, Args& args) {
  if (args.positional.size() > 1) raise("update expected at most 1 argument, got {}", args.positional.size());
  if (!args.positional.empty()) update_from(self.dict_object(), args.positional[0]);
  for (const auto& [name, value] : args.named) self.dict_object().set(name, value);
  return Value::none();
}

Value dict_pop(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("pop", args, {"/key", "/default"}, 1);
  const auto removed = self.dict_object().remove(*slots[0]);
  if (removed) return *removed;
  if (!slots[1]) raise("pop: no key {}", repr(*slots[0]));
  return *slots[1];
}

Value setdefault(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("setdefault", args, {"/key", "/default"}, 1);
  const Value* found = self.dict_object().find(*slots[0]);
  if (found != nullptr) return *found;
  const Value value = slots[1] ? *slots[1] : Value::none();
  self.dict_object().set(*slots[0], value);
  return value;
}

// list

void grow_list(const Value& self, size_t n) {
  self.sequence().grow(n * sizeof(Value));
  Heap::current().step(n);
}

Value append(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("append", args, {"/object"}, 1);
  grow_list(self, 1);
  self.items().push_back(*slots[0]);
  return Value::none();
}

Value extend(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("extend", args, {"/iterable"}, 1);
  const std::vector<Value> more = to_vector(*slots[0]);
  grow_list(self, more.size());
  self.items().insert(self.items().end(), more.begin(), more.end());
  return Value::none();
}

// Clamps a position to [0, size]; a negative one counts from the end.
std::ptrdiff_t place(int64_t i, size_t size) {
  const int64_t n = static_cast<int64_t>(size);
  return static_cast<std::ptrdiff_t>(std::clamp<int64_t>(i < 0 ? i + n : i, 0, n));
}

Value insert(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("insert", args, {"/index", "/object"}, 2);
  const int64_t i = need_int(*slots[0], "the index");
  grow_list(self, 1);
  Heap::current().step(self.items().size() / 8);
  self.items().insert(self.items().begin() + place(i, self.items().size()), *slots[1]);
  return Value::none();
}

Value list_pop(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("pop", args, {"/index"});
  const auto n = static_cast<int64_t>(self.items().size());
  if (n == 0) raise("pop from empty list");
  int64_t i = slots[0] ? need_int(*slots[0], "the index") : -1;
  if (i < 0) i += n;
  if (i < 0 || i >= n) raise("pop index out of range");
  Heap::current().step(static_cast<size_t>(n) / 8);
  const Value removed = self.items()[static_cast<size_t>(i)];
  self.items().erase(self.items().begin() + static_cast<std::ptrdiff_t>(i));
  return removed;
}

Value index(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("index", args, {"/value", "/start", "/stop"}, 1);
  const size_t n = self.items().size();
  const auto begin = static_cast<size_t>(slots[1] ? place(need_int(*slots[1], "start"), n) : 0);
  const auto end = slots[2] ? static_cast<size_t>(place(need_int(*slots[2], "stop"), n)) : n;
  for (size_t i = begin; i < end; ++i)
    if (equal(self.items()[i], *slots[0])) return Value::integer(static_cast<int64_t>(i));
  raise("{} is not in list", repr(*slots[0]));
}

Value count_equal(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("count", args, {"/value"}, 1);
  int64_t n = 0;
  for (const Value& v : self.items()) n += equal(v, *slots[0]);
  return Value::integer(n);
}

const MethodTable& dict_methods() {
  using Kind = ViewObject::Kind;
  static const MethodTable table = {
      {"items", {view_method<Kind::kItems>}},
      {"keys", {view_method<Kind::kKeys>}},
      {"values", {view_method<Kind::kValues>}},
      {"get", {get}},
      {"copy", {copy}},
      {"update", {update, true}},
      {"pop", {dict_pop, true}},
      {"setdefault", {setdefault, true}},
  };
  return table;
}

const MethodTable& list_methods() {
  static const MethodTable table = {
      {"append", {append, true}}, {"extend", {extend, true}}, {"insert", {insert, true}}, {"pop", {list_pop, true}},
      {"index", {index}},         {"count", {count_equal}},   {"copy", {copy}},
  };
  return table;
}

using MethodMap = std::unordered_map<std::string_view, Method>;

const Method* lookup(const MethodMap& map, std::string_view name) {
  const auto it = map.find(name);
  return it == map.end() ? nullptr : &it->second;
}

}  // namespace

const Method* find_method(const Value& self, std::string_view name) {
  static const MethodMap strings(string_methods().begin(), string_methods().end());
  static const MethodMap dicts(dict_methods().begin(), dict_methods().end());
  static const MethodMap lists(list_methods().begin(), list_methods().end());
  static const MethodMap tuples = {{"index", {index}}, {"count", {count_equal}}};
  switch (self.type()) {
    case Type::kString: return lookup(strings, name);
    case Type::kDict: return lookup(dicts, name);
    case Type::kList: return lookup(lists, name);
    case Type::kTuple: return lookup(tuples, name);
    default: return nullptr;
  }
}

}  // namespace sx::jinja
