// Truth, equality, order, arithmetic, membership and iteration.
#include "text/jinja/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/string_ops.h"

namespace sx::jinja {

const char* type_name(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined: return "undefined";
    case Type::kNone: return "None";
    case Type::kBool: return "bool";
    case Type::kInt: return "int";
    case Type::kFloat: return "float";
    case Type::kString: return "str";
    case Type::kList: return "list";
    case Type::kTuple: return "tuple";
    case Type::kDict: return "dict";
    case Type::kNamespace: return "namespace";
    case Type::kRange: return "range";
    case Type::kView: return "dict view";
    case Type::kIterator: return "iterator";
    default: return "function";
  }
}

void fail_undefined(const Value& v) {
  if (v.object() != nullptr) raise("{}", v.text());
  raise("the value is undefined");
}

static void guard(int depth) {
  Heap::current().step();
  if (depth > kMaxValueDepth) raise("values nested deeper than {} levels", kMaxValueDepth);
}

bool truth(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
    case Type::kNone: return false;
    case Type::kBool:
    case Type::kInt: return v.as_int() != 0;
    case Type::kFloat: return v.as_double() != 0;
    case Type::kString: return !v.text().empty();
    case Type::kList:
    case Type::kTuple: return !v.items().empty();
    case Type::kDict: return !v.dict_object().entries.empty();
    case Type::kRange: return v.range().size() != 0;
    case Type::kView: return !v.view().dict.dict_object().entries.empty();
    default: return true;
  }
}

bool equal(const Value& a, const Value& b, int depth) {
  guard(depth);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    if (a.is(Type::kFloat) && b.is(Type::kFloat)) return a.as_double() == b.as_double();
    const long double x = a.is_integral() ? static_cast<long double>(a.as_int()) : a.as_double();
    return x == (b.is_integral() ? static_cast<long double>(b.as_int()) : b.as_double());
  }
  if (a.type() != b.type()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.object() == b.object()) return true;
  switch (a.type()) {
    case Type::kString: Heap::current().scan(a.text().size()); return a.text() == b.text();
    case Type::kList:
    case Type::kTuple: {
      // Items are taken by index and by value, so that a container that changes meanwhile does no harm.
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i)
        if (!equal(a.items()[i], b.items()[i], depth + 1)) return false;
      return true;
    }
    case Type::kDict: {
      const DictObject &x = a.dict_object(), &y = b.dict_object();
      if (x.entries.size() != y.entries.size()) return false;
      for (const auto& [key, value] : x.entries) {
        const Value* other = y.find(key);
        if (other == nullptr || !equal(value, *other, depth + 1)) return false;
      }
      return true;
    }
    case Type::kRange: {
      const RangeObject &x = a.range(), &y = b.range();
      if (x.size() != y.size()) return false;
      return x.size() == 0 || (x.begin == y.begin && (x.size() == 1 || x.step == y.step));
    }
    case Type::kView: {
      const ViewObject &x = a.view(), &y = b.view();
      const size_t n = x.dict.dict_object().entries.size();
      if (x.kind != y.kind || x.kind == ViewObject::Kind::kValues) return false;
      if (n != y.dict.dict_object().entries.size()) return false;
      for (size_t i = 0; i < n; ++i)
        if (!contains(b, x.at(i))) return false;
      return true;
    }
    default: return false;
  }
}

bool less(const Value& a, const Value& b, int depth) {
  guard(depth);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
    if (a.is(Type::kFloat) && b.is(Type::kFloat)) return a.as_double() < b.as_double();
    const long double x = a.is_integral() ? static_cast<long double>(a.as_int()) : a.as_double();
    return x < (b.is_integral() ? static_cast<long double>(b.as_int()) : b.as_double());
  }
  need(a);
  need(b);
  if (a.is_string() && b.is_string()) {
    Heap::current().scan(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // bytes of UTF-8 sort as code points do
  }
  if (a.is_sequence() && a.type() == b.type()) {
    const size_t n = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < n; ++i)
      if (!equal(a.items()[i], b.items()[i], depth + 1)) return less(a.items()[i], b.items()[i], depth + 1);
    return a.items().size() < b.items().size();
  }
  raise("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b));
}

size_t hash_value(const Value& v, int depth) {
  guard(depth);
  switch (v.type()) {
    case Type::kUndefined:
    case Type::kNone: return 11;
    case Type::kBool:
    case Type::kInt: return std::hash<double>()(static_cast<double>(v.as_int()) + 0.0);
    case Type::kFloat: return std::hash<double>()(v.as_double() + 0.0);
    case Type::kString: Heap::current().scan(v.text().size()); return std::hash<std::string_view>()(v.text());
    case Type::kTuple: {
      size_t h = 17;
      for (const Value& i : v.items()) h = h * 1000003 + hash_value(i, depth + 1);
      return h;
    }
    case Type::kList:
    case Type::kDict:
    case Type::kView: raise("unhashable type: '{}'", type_name(v));
    default: return std::hash<const void*>()(v.object());
  }
}

[[noreturn]] static void overflow() { raise("an integer does not fit 64 bits"); }

static Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) raise("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  int64_t result = 1;
  for (; exponent > 0; --exponent)  // at most 63 rounds before it overflows
    if (__builtin_mul_overflow(result, base, &result)) overflow();
  return Value::integer(result);
}

static Value integer_arithmetic(Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &r)) overflow();
      return Value::integer(r);
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &r)) overflow();
      return Value::integer(r);
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &r)) overflow();
      return Value::integer(r);
    case Op::kPow: return integer_power(a, b);
    default: break;
  }
  if (b == 0) raise("division by zero");
  if (op == Op::kDiv) return Value::real(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // Only here the quotient may not fit.
    if (op == Op::kMod) return Value::integer(0);
    if (__builtin_sub_overflow(int64_t{0}, a, &r)) overflow();
    return Value::integer(r);
  }
  const int64_t quotient = a / b, rest = a % b;
  const bool adjust = rest != 0 && (rest < 0) != (b < 0);  // Python rounds towards minus infinity
  if (op == Op::kMod) return Value::integer(adjust ? rest + b : rest);
  return Value::integer(adjust ? quotient - 1 : quotient);
}

static Value float_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd: return Value::real(a + b);
    case Op::kSub: return Value::real(a - b);
    case Op::kMul: return Value::real(a * b);
    case Op::kPow: {
      if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
        raise("the power would be a complex number");
      const double r = std::pow(a, b);
      if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) raise("numerical result out of range");
      return Value::real(r);
    }
    default: break;
  }
  if (b == 0) raise("float division by zero");
  if (op == Op::kDiv) return Value::real(a / b);
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0) {
    if ((b < 0) != (mod < 0)) {
      mod += b;
      quotient -= 1;
    }
  } else {
    mod = std::copysign(0.0, b);
  }
  if (op == Op::kMod) return Value::real(mod);
  if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
  const double floored = std::floor(quotient);
  return Value::real(quotient - floored > 0.5 ? floored + 1 : floored);
}

Value repeat(const Value& v, int64_t count) {
  const size_t n = count > 0 ? static_cast<size_t>(count) : 0;
  Heap& heap = Heap::current();
  const size_t size = v.is_string() ? v.text().size() : v.items().size() * sizeof(Value);
  if (n != 0 && size > heap.max_text() / n) heap.check_text(SIZE_MAX);
  if (v.is_string()) {
    std::string out;
    out.reserve(size * n);
    for (size_t i = 0; i < n && size != 0; ++i) out += v.text();
    return Value::string(std::move(out), v.is_markup());
  }
  std::vector<Value> items;
  for (size_t i = 0; i < n && size != 0; ++i) items.insert(items.end(), v.items().begin(), v.items().end());
  return v.is(Type::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

static Value add(const Value& a, const Value& b) {
  Heap& heap = Heap::current();
  if (a.is_string() && b.is_string()) {
    heap.check_text(a.text().size() + b.text().size());
    if (!a.is_markup() && !b.is_markup()) return Value::string(a.text() + b.text());
    std::string left = a.is_markup() ? a.text() : escape_html(a.text());
    return Value::string(left + (b.is_markup() ? b.text() : escape_html(b.text())), true);
  }
  if (a.is_sequence() && a.type() == b.type()) {
    heap.step((a.items().size() + b.items().size()) / 8);
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.is(Type::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
  }
  if (a.is_string()) raise("can only concatenate str (not \"{}\") to str", type_name(b));
  raise("unsupported operand types for +: '{}' and '{}'", type_name(a), type_name(b));
}

Value arithmetic(Op op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return float_arithmetic(op, a.as_double(), b.as_double());
  if (op == Op::kMod && a.is_string()) raise("formatting a string with % is not supported: join its parts with ~");
  need(a);
  need(b);
  if (op == Op::kAdd) return add(a, b);
  if (op == Op::kMul) {
    if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(a, b.as_int());
    if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(b, a.as_int());
  }
  static constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  raise("unsupported operand types for {}: '{}' and '{}'", kSymbols[static_cast<int>(op)], type_name(a), type_name(b));
}

bool compare(Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq: return equal(a, b);
    case Op::kNe: return !equal(a, b);
    case Op::kIn: return contains(b, a);
    case Op::kNotIn: return !contains(b, a);
    case Op::kLt: return less(a, b);
    case Op::kGt: return less(b, a);
    default: break;
  }
  if (a.is_number() && b.is_number() && (std::isnan(a.as_double()) || std::isnan(b.as_double()))) return false;
  return op == Op::kLe ? !less(b, a) : !less(a, b);
}

bool contains(const Value& container, const Value& item) {
  switch (container.type()) {
    case Type::kString:
      if (!item.is_string()) raise("'in <string>' requires string as left operand, not {}", type_name(item));
      Heap::current().search(container.text().size(), item.text().size());
      return container.text().find(item.text()) != std::string::npos;
    case Type::kDict: return container.dict_object().find(item) != nullptr;
    case Type::kUndefined: return false;
    case Type::kView:
      if (container.view().kind == ViewObject::Kind::kKeys) return contains(container.view().dict, item);
      break;
    default: break;
  }
  const auto next = iterate(container);
  for (Value v; next(v);)
    if (v.identical(item) || equal(v, item)) return true;
  return false;
}

Value negative(const Value& v) {
  need(v);
  if (v.is(Type::kFloat)) return Value::real(-v.as_double());
  if (v.is_integral()) return integer_arithmetic(Op::kSub, 0, v.as_int());
  raise("bad operand type for unary -: '{}'", type_name(v));
}

std::optional<int64_t> try_length(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined: return 0;
    case Type::kString: {
      const StringObject& s = v.str();
      if (s.length < 0) {
        Heap::current().scan(s.text.size());
        s.length = static_cast<int64_t>(count_chars(s.text));
      }
      return s.length;
    }
    case Type::kList:
    case Type::kTuple: return static_cast<int64_t>(v.items().size());
    case Type::kDict: return static_cast<int64_t>(v.dict_object().entries.size());
    case Type::kView: return static_cast<int64_t>(v.view().dict.dict_object().entries.size());
    case Type::kRange: return v.range().size();
    default: return std::nullopt;
  }
}

int64_t length(const Value& v) {
  const auto n = try_length(v);
  if (!n) raise("object of type '{}' has no len()", type_name(v));
  return *n;
}

bool is_iterable(const Value& v) { return v.is(Type::kIterator) || try_length(v).has_value(); }

IteratorObject::Next iterate(const Value& v) {
  Heap* heap = &Heap::current();
  switch (v.type()) {
    case Type::kUndefined: return [](Value&) { return false; };
    case Type::kString:
      return [heap, v, at = size_t{0}](Value& out) mutable {
        if (at >= v.text().size()) return false;
        heap->step();
        const size_t n = char_bytes(v.text(), at);
        out = Value::string(v.text().substr(at, n));
        at += n;
        return true;
      };
    case Type::kIterator:
      return [heap, v](Value& out) {
        heap->step();
        Heap::Nested nested(*heap);
        return v.iterator().next(out);
      };
    case Type::kRange:
      return [heap, v, i = int64_t{0}](Value& out) mutable {
        if (i >= v.range().size()) return false;
        heap->step();
        out = Value::integer(v.range().begin + i++ * v.range().step);
        return true;
      };
    case Type::kList:
    case Type::kTuple:
      return [heap, v, i = size_t{0}](Value& out) mutable {
        if (i >= v.items().size()) return false;
        heap->step();
        out = v.items()[i++];
        return true;
      };
    case Type::kDict:
      return [heap, v, i = size_t{0}](Value& out) mutable {
        if (i >= v.dict_object().entries.size()) return false;
        heap->step();
        out = v.dict_object().entries[i++].first;
        return true;
      };
    case Type::kView:
      return [heap, v, i = size_t{0}](Value& out) mutable {
        if (i >= v.view().dict.dict_object().entries.size()) return false;
        heap->step();
        out = v.view().at(i++);
        return true;
      };
    default: raise("'{}' object is not iterable", type_name(v));
  }
}

std::vector<Value> to_vector(const Value& v) {
  if (v.is_sequence()) {
    Heap::current().step(1 + v.items().size() / 8);
    return v.items();
  }
  std::vector<Value> out;
  const auto next = iterate(v);
  for (Value i; next(i);) {
    out.push_back(i);
    if (out.size() % 1024 == 0) Heap::current().check_text(out.size() * sizeof(Value));
  }
  return out;
}

Value make_iterator(IteratorObject::Next next) { return Value(new IteratorObject(std::move(next))); }

Value make_generator(std::function<IteratorObject::Next()> start) {
  return make_iterator([start = std::move(start), next = IteratorObject::Next()](Value& out) mutable {
    if (!next) next = start();
    return next(out);
  });
}

int64_t need_int(const Value& v, const char* what) {
  need(v);
  if (!v.is_integral()) raise("{} must be an integer, not '{}'", what, type_name(v));
  return v.as_int();
}

const std::string& need_text(const Value& v, const char* what) {
  need(v);
  if (!v.is_string()) raise("{} must be a string, not '{}'", what, type_name(v));
  return v.text();
}

void sort_values(std::vector<Value>& values, const std::function<bool(const Value&, const Value&)>& before) {
  std::vector<Value> other(values.size());
  for (size_t width = 1; width < values.size(); width *= 2) {
    for (size_t low = 0; low < values.size(); low += 2 * width) {
      const size_t middle = std::min(low + width, values.size()), high = std::min(low + 2 * width, values.size());
      size_t a = low, b = middle;
      for (size_t out = low; out < high; ++out) {
        const bool right = a >= middle || (b < high && before(values[b], values[a]));
        other[out] = values[right ? b++ : a++];
      }
    }
    values.swap(other);
  }
}

}  // namespace sx::jinja
