// Values of the template language, with Python's semantics: numbers and strings are immutable, lists and dicts are
// shared by reference. Every object belongs to one Heap, which lives as long as one rendering, counts bytes and steps
// against the limits, and frees everything at the end, so neither cycles nor very deep nesting can leak or overflow the
// stack.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace sx::jinja {

class Interpreter;
class Value;

// The template did something for which Python raises, or hit a limit. Template turns it into sx::Error with its name
// and the line.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... A>
[[noreturn]] void raise(fmt::format_string<A...> format, A&&... args) {
  throw Failure(fmt::format(format, std::forward<A>(args)...));
}

enum class Type : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kRange,
  kView,
  kIterator,
  kNative,
  kScope,  // internal: variables of a block, never visible to a template
};

class Heap;

class Object {
 public:
  explicit Object(Type type, size_t bytes = 64);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  // Drops every reference that this object holds (the first half of the heap's teardown).
  virtual void clear() {}
  // Accounts for growth; throws when the heap's memory limit is reached.
  void grow(size_t bytes);

  const Type type;

 private:
  friend class Heap;
  friend class Value;
  uint32_t refs_ = 0;
  Heap* heap_;
  size_t bytes_;
  Object* previous_ = nullptr;
  Object* next_ = nullptr;
};

class Heap {
 public:
  Heap(size_t max_steps, size_t max_bytes, size_t max_text);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // The heap of the rendering that runs on this thread.
  static Heap& current();
  // Charges work; throws when the step limit is reached.
  void step(size_t n = 1) {
    steps_ += n;
    if (steps_ > max_steps_) steps_exceeded();
  }
  // Charges work over `bytes` bytes of text.
  void scan(size_t bytes) { step(1 + bytes / 32); }
  // Charges a search for `wanted` bytes in `bytes` bytes, which may compare them all at every place.
  void search(size_t bytes, size_t wanted) { step(1 + bytes / 32 + (wanted <= bytes ? bytes * wanted / 1024 : 0)); }
  // Fails for a text or container that would become larger than the limit, before it is built.
  void check_text(size_t bytes) const;
  size_t max_text() const { return max_text_; }
  // One level of recursion through values (iterators over iterators); throws when there are too many.
  struct Nested {
    explicit Nested(Heap& h) : heap(h) {
      if (++heap.nested_ > 200) {
        --heap.nested_;
        raise("iterators nested too deeply");
      }
    }
    ~Nested() { --heap.nested_; }
    Heap& heap;
  };

 private:
  friend class Object;
  friend class Value;
  [[noreturn]] void steps_exceeded() const;
  void link(Object* object);
  void unlink(Object* object);
  void dead(Object* object);

  size_t steps_ = 0, bytes_ = 0;
  size_t max_steps_, max_bytes_, max_text_;
  int nested_ = 0;
  Object* head_ = nullptr;
  Object* dead_ = nullptr;
  bool draining_ = false, teardown_ = false;
  Heap* outer_;
};

struct StringObject;
struct SequenceObject;
struct DictObject;
struct NamespaceObject;
struct RangeObject;
struct ViewObject;
struct IteratorObject;
class NativeObject;

class Value {
 public:
  Value() : type_(Type::kUndefined), object_(nullptr) {}
  Value(const Value& other) : type_(other.type_), int_(other.int_) { retain(); }
  Value(Value&& other) noexcept : type_(other.type_), int_(other.int_) { other.forget(); }
  explicit Value(Object* object) : type_(object->type), object_(object) { retain(); }
  Value& operator=(const Value& other) {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    Value moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Value() { release(); }
  void swap(Value& other) noexcept {
    std::swap(type_, other.type_);
    std::swap(int_, other.int_);
  }

  static Value none() { return Value(Type::kNone, 0); }
  static Value boolean(bool b) { return Value(Type::kBool, b ? 1 : 0); }
  static Value integer(int64_t i) { return Value(Type::kInt, i); }
  static Value real(double d);
  static Value string(std::string text, bool markup = false);
  static Value list(std::vector<Value> items = {});
  static Value tuple(std::vector<Value> items = {});
  static Value dict();
  // An undefined value; operations on it fail with the sentence `why`.
  static Value undefined(std::string why);

  Type type() const { return type_; }
  bool is(Type t) const { return type_ == t; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_integral() const { return type_ == Type::kInt || type_ == Type::kBool; }
  bool is_number() const { return is_integral() || type_ == Type::kFloat; }
  bool is_sequence() const { return type_ == Type::kList || type_ == Type::kTuple; }
  bool is_object() const { return type_ >= Type::kString || (type_ == Type::kUndefined && object_ != nullptr); }

  bool as_bool() const { return int_ != 0; }
  int64_t as_int() const { return int_; }
  // Any number as a double.
  double as_double() const { return type_ == Type::kFloat ? float_ : static_cast<double>(int_); }
  Object* object() const { return object_; }
  const std::string& text() const;
  bool is_markup() const;
  StringObject& str() const;
  SequenceObject& sequence() const;
  std::vector<Value>& items() const;
  DictObject& dict_object() const;
  NamespaceObject& namespace_object() const;
  RangeObject& range() const;
  ViewObject& view() const;
  IteratorObject& iterator() const;
  NativeObject& native() const;
  // True for the same object and for equal immutable scalars of the same type.
  bool identical(const Value& other) const;

 private:
  Value(Type type, int64_t i) : type_(type), int_(i) {}
  void retain() const {
    if (is_object()) ++object_->refs_;
  }
  void forget() noexcept {
    type_ = Type::kUndefined;
    object_ = nullptr;
  }
  void release() noexcept {
    if (is_object() && --object_->refs_ == 0) object_->heap_->dead(object_);
  }

  Type type_;
  union {
    int64_t int_;
    double float_;
    Object* object_;
  };
};

// A string. An undefined value keeps its sentence in one too.
struct StringObject final : Object {
  StringObject(std::string t, bool m, Type type_tag = Type::kString);
  const std::string text;
  const bool markup;            // made by `safe` or `escape`; text that is added to it is escaped
  mutable int64_t length = -1;  // code points, -1: not yet counted
};

struct SequenceObject final : Object {
  SequenceObject(Type t, std::vector<Value> v);
  void clear() override { items.clear(); }
  std::vector<Value> items;
};

// Insertion-ordered hash map.
struct DictObject final : Object {
  DictObject() : Object(Type::kDict, 128) {}
  void clear() override;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
  void set(std::string_view key, Value value) { set(Value::string(std::string(key)), std::move(value)); }
  std::optional<Value> remove(const Value& key);
  std::vector<std::pair<Value, Value>> entries;

 private:
  size_t slot(const Value& key, size_t hash) const;
  std::unordered_multimap<size_t, size_t> index_;  // hash -> position in entries
};

struct NamespaceObject final : Object {
  NamespaceObject() : Object(Type::kNamespace) {}
  void clear() override { attributes.clear(); }
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
  std::vector<std::pair<std::string, Value>> attributes;
};

struct RangeObject final : Object {
  RangeObject(int64_t b, int64_t e, int64_t s) : Object(Type::kRange), begin(b), end(e), step(s) {}
  static int64_t count(int64_t begin, int64_t end, int64_t step);
  int64_t size() const { return count(begin, end, step); }
  const int64_t begin, end, step;
};

// What dict.keys(), .values() and .items() return.
struct ViewObject final : Object {
  enum class Kind { kKeys, kValues, kItems };
  ViewObject(Kind k, Value d) : Object(Type::kView), kind(k), dict(std::move(d)) {}
  void clear() override { dict = Value(); }
  Value at(size_t i) const;
  const Kind kind;
  Value dict;
};

// A lazy, one-pass sequence (Python's generators: the results of map, select, reverse ...).
struct IteratorObject final : Object {
  using Next = std::function<bool(Value&)>;
  explicit IteratorObject(Next n) : Object(Type::kIterator, 128), next(std::move(n)) {}
  void clear() override { next = nullptr; }
  Next next;
};

// Arguments of a call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Anything callable or with computed attributes: functions, bound methods, macros, loop.
class NativeObject : public Object {
 public:
  NativeObject() : Object(Type::kNative, 128) {}
  virtual bool callable() const { return true; }
  virtual Value call(Interpreter& interpreter, Args& args) = 0;
  virtual std::optional<Value> attribute(std::string_view) { return std::nullopt; }
  virtual std::string repr() const { return "<function>"; }
};

using FunctionPointer = Value (*)(Interpreter&, Args&);
class FunctionObject final : public NativeObject {
 public:
  FunctionObject(std::string name, FunctionPointer f) : name_(std::move(name)), function_(f) {}
  Value call(Interpreter& interpreter, Args& args) override { return function_(interpreter, args); }
  std::string repr() const override { return "<function " + name_ + ">"; }

 private:
  std::string name_;
  FunctionPointer function_;
};

inline const std::string& Value::text() const { return static_cast<StringObject*>(object_)->text; }
inline bool Value::is_markup() const { return is_string() && static_cast<StringObject*>(object_)->markup; }
inline StringObject& Value::str() const { return *static_cast<StringObject*>(object_); }
inline SequenceObject& Value::sequence() const { return *static_cast<SequenceObject*>(object_); }
inline std::vector<Value>& Value::items() const { return static_cast<SequenceObject*>(object_)->items; }
inline DictObject& Value::dict_object() const { return *static_cast<DictObject*>(object_); }
inline NamespaceObject& Value::namespace_object() const { return *static_cast<NamespaceObject*>(object_); }
inline RangeObject& Value::range() const { return *static_cast<RangeObject*>(object_); }
inline ViewObject& Value::view() const { return *static_cast<ViewObject*>(object_); }
inline IteratorObject& Value::iterator() const { return *static_cast<IteratorObject*>(object_); }
inline NativeObject& Value::native() const { return *static_cast<NativeObject*>(object_); }

// Binds call arguments to parameter names as Python does. A name that starts with '/' is positional only.
// Returns one slot per parameter, empty when not given; fails when one of the first `required` is missing.
std::vector<std::optional<Value>> bind(const char* function, Args& args, std::initializer_list<const char*> names,
                                       size_t required = 0);

}  // namespace sx::jinja
