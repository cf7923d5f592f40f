// The heap's bookkeeping, the containers, and the binding of call arguments.
#include "text/jinja/value.h"

#include <cstring>

#include "base/error.h"
#include "text/jinja/ops.h"

namespace sx::jinja {

namespace {
thread_local Heap* current_heap = nullptr;
}

Heap::Heap(size_t max_steps, size_t max_bytes, size_t max_text)
    : max_steps_(max_steps), max_bytes_(max_bytes), max_text_(max_text), outer_(current_heap) {
  current_heap = this;
}

// First every object drops its references, so that nothing refers to freed memory; then all objects are freed.
Heap::~Heap() {
  teardown_ = true;
  for (Object* o = head_; o != nullptr; o = o->next_) o->clear();
  while (head_ != nullptr) {
    Object* o = head_;
    head_ = o->next_;
    if (head_ != nullptr) head_->previous_ = nullptr;
    delete o;
  }
  current_heap = outer_;
}

Heap& Heap::current() {
  SX_ASSERT(current_heap != nullptr);
  return *current_heap;
}

void Heap::steps_exceeded() const { raise("the template runs too long: more than {} steps", max_steps_); }

void Heap::check_text(size_t bytes) const {
  if (bytes > max_text_) raise("a text would become larger than {} bytes", max_text_);
}

void Heap::link(Object* object) {
  if (head_ != nullptr) head_->previous_ = object;
  object->next_ = head_;
  head_ = object;
}

void Heap::unlink(Object* object) {
  if (object->previous_ != nullptr) object->previous_->next_ = object->next_;
  if (object->next_ != nullptr) object->next_->previous_ = object->previous_;
  if (head_ == object) head_ = object->next_;
  object->previous_ = object->next_ = nullptr;
}

// Frees an unreferenced object. Objects that lose their last reference by that join a queue, so that deeply nested
// values need no stack.
void Heap::dead(Object* object) {
  if (teardown_) return;
  unlink(object);
  object->next_ = dead_;
  dead_ = object;
  if (draining_) return;
  draining_ = true;
  while (dead_ != nullptr) {
    Object* o = dead_;
    dead_ = o->next_;
    delete o;
  }
  draining_ = false;
}

Object::Object(Type t, size_t bytes) : type(t), heap_(&Heap::current()), bytes_(0) {
  grow(bytes);
  heap_->link(this);
}

Object::~Object() { heap_->bytes_ -= bytes_; }

void Object::grow(size_t bytes) {
  if (bytes > heap_->max_bytes_ - heap_->bytes_) raise("the template needs more than {} bytes", heap_->max_bytes_);
  heap_->bytes_ += bytes;
  bytes_ += bytes;
}

Value Value::real(double d) {
  Value v(Type::kFloat, 0);
  v.float_ = d;
  return v;
}

Value Value::string(std::string text, bool markup) { return Value(new StringObject(std::move(text), markup)); }
Value Value::list(std::vector<Value> items) { return Value(new SequenceObject(Type::kList, std::move(items))); }
Value Value::tuple(std::vector<Value> items) { return Value(new SequenceObject(Type::kTuple, std::move(items))); }
Value Value::dict() { return Value(new DictObject()); }
Value Value::undefined(std::string why) { return Value(new StringObject(std::move(why), false, Type::kUndefined)); }

bool Value::identical(const Value& other) const {
  if (type_ != other.type_) return false;
  switch (type_) {
    case Type::kUndefined:
    case Type::kNone: return true;
    case Type::kString: return object_ == other.object_ || text() == other.text();
    case Type::kFloat: return float_ == other.float_;
    default: return int_ == other.int_;
  }
}

// Both checks may throw, so they run before the object joins the heap's list.
static size_t admit_text(size_t bytes) {
  Heap& heap = Heap::current();
  heap.check_text(bytes);
  heap.scan(bytes);
  return 64 + bytes;
}

static size_t admit_items(size_t count) {
  Heap::current().step(1 + count / 8);
  return 64 + count * sizeof(Value);
}

StringObject::StringObject(std::string t, bool m, Type type_tag)
    : Object(type_tag, admit_text(t.size())), text(std::move(t)), markup(m) {}

SequenceObject::SequenceObject(Type t, std::vector<Value> v) : Object(t, admit_items(v.size())), items(std::move(v)) {}

void DictObject::clear() {
  entries.clear();
  index_.clear();
}

size_t DictObject::slot(const Value& key, size_t hash) const {
  auto [first, last] = index_.equal_range(hash);
  for (; first != last; ++first) {
    Heap::current().step();
    if (equal(entries[first->second].first, key)) return first->second;
  }
  return SIZE_MAX;
}

const Value* DictObject::find(const Value& key) const {
  const size_t at = slot(key, hash_value(key));
  return at == SIZE_MAX ? nullptr : &entries[at].second;
}

const Value* DictObject::find(std::string_view key) const {
  auto [first, last] = index_.equal_range(std::hash<std::string_view>()(key));
  for (; first != last; ++first) {
    const auto& [k, v] = entries[first->second];
    if (k.is_string() && k.text() == key) return &v;
  }
  return nullptr;
}

void DictObject::set(const Value& key, Value value) {
  const size_t hash = hash_value(key);
  const size_t at = slot(key, hash);
  if (at != SIZE_MAX) {
    entries[at].second = std::move(value);
    return;
  }
  grow(96);
  index_.emplace(hash, entries.size());
  entries.emplace_back(key, std::move(value));
}

std::optional<Value> DictObject::remove(const Value& key) {
  const size_t at = slot(key, hash_value(key));
  if (at == SIZE_MAX) return std::nullopt;
  Heap::current().step(entries.size());
  Value removed = entries[at].second;
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
  index_.clear();
  for (size_t i = 0; i < entries.size(); ++i) index_.emplace(hash_value(entries[i].first), i);
  return removed;
}

const Value* NamespaceObject::find(std::string_view name) const {
  for (const auto& [key, value] : attributes)
    if (key == name) return &value;
  return nullptr;
}

void NamespaceObject::set(std::string_view name, Value value) {
  Heap::current().step(1 + attributes.size() / 16);
  for (auto& [key, old] : attributes)
    if (key == name) {
      old = std::move(value);
      return;
    }
  grow(64 + name.size());
  attributes.emplace_back(name, std::move(value));
}

int64_t RangeObject::count(int64_t begin, int64_t end, int64_t step) {
  if (step > 0) return begin < end ? (end - begin - 1) / step + 1 : 0;
  return begin > end ? (begin - end - 1) / -step + 1 : 0;
}

Value ViewObject::at(size_t i) const {
  const auto& [key, value] = dict.dict_object().entries[i];
  if (kind == Kind::kKeys) return key;
  if (kind == Kind::kValues) return value;
  return Value::tuple({key, value});
}

std::vector<std::optional<Value>> bind(const char* function, Args& args, std::initializer_list<const char*> names,
                                       size_t required) {
  if (args.positional.size() > names.size())
    raise("{}() takes at most {} arguments, {} given", function, names.size(), args.positional.size());
  std::vector<std::optional<Value>> slots(names.size());
  for (size_t i = 0; i < args.positional.size(); ++i) slots[i] = args.positional[i];
  for (auto& [name, value] : args.named) {
    size_t i = 0;
    for (const char* parameter : names) {
      if (name == parameter) break;
      ++i;
    }
    if (i == names.size()) raise("{}() got an unexpected keyword argument '{}'", function, name);
    if (slots[i]) raise("{}() got multiple values for argument '{}'", function, name);
    slots[i] = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!slots[i]) raise("{}() misses its argument {}", function, i + 1);
  return slots;
}

}  // namespace sx::jinja
