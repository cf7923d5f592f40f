// Python's operations on values: truth, equality, order, arithmetic, membership, iteration, subscripts, text forms.
// All of them throw Failure where Python raises, and charge their work to the heap.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace sx::jinja {

// Deepest nesting of lists and dicts that printing, comparing and hashing follow.
constexpr int kMaxValueDepth = 200;

const char* type_name(const Value& v);
[[noreturn]] void fail_undefined(const Value& v);
// Fails when v is undefined.
inline void need(const Value& v) {
  if (v.is_undefined()) fail_undefined(v);
}

bool truth(const Value& v);
bool equal(const Value& a, const Value& b, int depth = 0);
// Python's a < b; fails for types without an order.
bool less(const Value& a, const Value& b, int depth = 0);
size_t hash_value(const Value& v, int depth = 0);
Value arithmetic(Op op, const Value& a, const Value& b);
bool compare(Op op, const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
Value negative(const Value& v);
Value repeat(const Value& v, int64_t count);

// len(v); fails for values without a length.
int64_t length(const Value& v);
std::optional<int64_t> try_length(const Value& v);
bool is_iterable(const Value& v);
IteratorObject::Next iterate(const Value& v);
std::vector<Value> to_vector(const Value& v);
Value make_iterator(IteratorObject::Next next);
// Makes a generator. `start` runs, and may fail, when the first item is asked for.
Value make_generator(std::function<IteratorObject::Next()> start);

// Subscripts (access.cc). `attribute` and `item` return undefined when there is nothing, as Jinja2 does.
Value attribute(Interpreter& interpreter, const Value& object, std::string_view name);
Value item(Interpreter& interpreter, const Value& object, const Value& key);
Value slice(const Value& object, const Value& begin, const Value& end, const Value& step);
// Returns the characters [begin, end) of a text.
std::string substring(const Value& text, int64_t begin, int64_t end);

// Values as text (repr.cc).
std::string str(const Value& v);
void append_str(const Value& v, std::string& out);
std::string repr(const Value& v);
std::string format_float(double d);
std::string escape_html(std::string_view text);
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::optional<std::pair<std::string, std::string>> separators;
};
std::string to_json(const Value& v, const JsonStyle& style);

// These return an argument that must be an integer (a bool counts) or a string, and fail otherwise.
int64_t need_int(const Value& v, const char* what);
const std::string& need_text(const Value& v, const char* what);

// A stable merge sort whose comparison may throw and need not be consistent.
void sort_values(std::vector<Value>& values, const std::function<bool(const Value&, const Value&)>& before);

}  // namespace sx::jinja
