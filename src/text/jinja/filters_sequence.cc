// Filters over sequences as a whole: order, selection of one item, reduction.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/key.h"
#include "text/jinja/ops.h"
#include "text/jinja/string_ops.h"

namespace sx::jinja {

Key::Key(Interpreter& interpreter, const std::optional<Value>& attribute, bool fold_case, std::optional<Value> fallback)
    : interpreter_(interpreter), fold_case_(fold_case), fallback_(std::move(fallback)) {
  if (fallback_ && fallback_->is_none()) fallback_.reset();
  if (!attribute || attribute->is_none()) return;
  if (!attribute->is_string()) {
    path_.push_back(*attribute);
    return;
  }
  for (const std::string& part : split_text(attribute->text(), &Value::string(".").text(), -1, false)) {
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    const auto number = digits ? parse_int(part) : std::nullopt;
    path_.push_back(number ? Value::integer(*number) : Value::string(part));
  }
}

Value Key::operator()(const Value& value) const {
  Value v = value;
  for (const Value& part : path_) {
    v = item(interpreter_, v, part);
    if (fallback_ && v.is_undefined()) v = *fallback_;
  }
  return fold_case_ && v.is_string() ? Value::string(lower_case(v.text())) : v;
}

namespace {

bool flag(const std::optional<Value>& v) { return v && truth(*v); }

Value count(Interpreter&, const Value& input, Args& args) {
  bind("length", args, {});
  return Value::integer(length(input));
}

Value first(Interpreter&, const Value& input, Args& args) {
  bind("first", args, {});
  const auto next = iterate(input);
  Value v;
  return next(v) ? v : Value::undefined("No first item, sequence was empty.");
}

Value last(Interpreter&, const Value& input, Args& args) {
  bind("last", args, {});
  if (!try_length(input)) raise("'{}' object is not reversible", type_name(input));
  const std::vector<Value> items = to_vector(input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value to_list(Interpreter&, const Value& input, Args& args) {
  bind("list", args, {});
  return Value::list(to_vector(input));
}

Value join(Interpreter& interpreter, const Value& input, Args& args) {
  auto slots = bind("join", args, {"d", "attribute"});
  const Key key(interpreter, slots[1]);
  const std::string separator = slots[0] ? str(*slots[0]) : "";
  std::string out;
  const auto next = iterate(input);
  bool more = false;
  for (Value v; next(v); more = true) {
    if (more) out += separator;
    append_str(key(v), out);
    Heap::current().check_text(out.size());
  }
  return Value::string(std::move(out));
}

Value reverse(Interpreter&, const Value& input, Args& args) {
  bind("reverse", args, {});
  if (input.is_string()) {
    std::vector<char32_t> chars = decode_all(input.text());
    std::reverse(chars.begin(), chars.end());
    return same(input, encode_all(chars));
  }
  if (!is_iterable(input)) raise("argument must be iterable");
  std::vector<Value> items = to_vector(input);
  std::reverse(items.begin(), items.end());
  const Value list = Value::list(std::move(items));
  return input.is(Type::kIterator) ? list : make_iterator(iterate(list));
}

// Items sorted by key, as (key, item) tuples.
std::vector<Value> sorted_pairs(const std::vector<Value>& items, const std::function<Value(const Value&)>& key,
                                bool down) {
  std::vector<Value> pairs;
  pairs.reserve(items.size());
  for (const Value& v : items) pairs.push_back(Value::tuple({key(v), v}));
  sort_values(pairs, [down](const Value& a, const Value& b) {
    return down ? less(b.items()[0], a.items()[0]) : less(a.items()[0], b.items()[0]);
  });
  return pairs;
}

Value seconds(const std::vector<Value>& pairs) {
  std::vector<Value> out;
  out.reserve(pairs.size());
  for (const Value& p : pairs) out.push_back(p.items()[1]);
  return Value::list(std::move(out));
}

Value sort(Interpreter& interpreter, const Value& input, Args& args) {
  auto slots = bind("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Key> keys;
  if (slots[2] && slots[2]->is_string()) {
    for (const std::string& part : split_text(slots[2]->text(), &Value::string(",").text(), -1, false))
      keys.emplace_back(interpreter, Value::string(part), !flag(slots[1]));
  } else {
    keys.emplace_back(interpreter, slots[2], !flag(slots[1]));
  }
  // Lists compare by their first unequal element, so equal keys without an order (undefined) are no error.
  const auto key = [&](const Value& v) {
    std::vector<Value> parts;
    for (const Key& k : keys) parts.push_back(k(v));
    return Value::list(std::move(parts));
  };
  return seconds(sorted_pairs(to_vector(input), key, flag(slots[0])));
}

Value dictsort(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("dictsort", args, {"case_sensitive", "by", "reverse"});
  need(input);
  if (!input.is(Type::kDict)) raise("dictsort needs a mapping, not '{}'", type_name(input));
  const std::string by = slots[1] ? str(*slots[1]) : "key";
  if (by != "key" && by != "value") raise("dictsort: 'by' must be 'key' or 'value'");
  const size_t part = by == "key" ? 0 : 1;
  const bool fold = !flag(slots[0]);
  const auto key = [&](const Value& pair) {
    const Value& v = pair.items()[part];
    return fold && v.is_string() ? Value::string(lower_case(v.text())) : v;
  };
  const Value view(new ViewObject(ViewObject::Kind::kItems, input));
  return seconds(sorted_pairs(to_vector(view), key, flag(slots[2])));
}

Value unique(Interpreter& interpreter, const Value& input, Args& args) {
  auto slots = bind("unique", args, {"case_sensitive", "attribute"});
  const Key key(interpreter, slots[1], !flag(slots[0]));
  return make_generator([input, key]() -> IteratorObject::Next {
    return [next = iterate(input), key, seen = Value::dict()](Value& out) {
      while (next(out)) {
        const Value k = key(out);
        if (seen.dict_object().find(k) != nullptr) continue;
        seen.dict_object().set(k, Value::none());
        return true;
      }
      return false;
    };
  });
}

template <bool kMax>
Value extreme(Interpreter& interpreter, const Value& input, Args& args) {
  auto slots = bind(kMax ? "max" : "min", args, {"case_sensitive", "attribute"});
  const Key key(interpreter, slots[1], !flag(slots[0]));
  const auto next = iterate(input);
  Value best, v;
  if (!next(best)) return Value::undefined("No aggregated item, sequence was empty.");
  for (Value best_key = key(best); next(v);) {
    const Value k = key(v);
    if (!(kMax ? less(best_key, k) : less(k, best_key))) continue;
    best = v;
    best_key = k;
  }
  return best;
}

Value sum(Interpreter& interpreter, const Value& input, Args& args) {
  auto slots = bind("sum", args, {"attribute", "start"});
  const Key key(interpreter, slots[0]);
  Value total = slots[1] ? *slots[1] : Value::integer(0);
  if (total.is_string()) raise("sum() can't sum strings");
  const auto next = iterate(input);
  for (Value v; next(v);) total = arithmetic(Op::kAdd, total, key(v));
  return total;
}

Value items(Interpreter&, const Value& input, Args& args) {
  bind("items", args, {});
  return make_generator([input] {
    if (input.is_undefined()) return iterate(input);
    if (!input.is(Type::kDict)) raise("Can only get item pairs from a mapping.");
    return iterate(Value(new ViewObject(ViewObject::Kind::kItems, input)));
  });
}

}  // namespace

const FilterTable& sequence_filters() {
  static const FilterTable table = {
      {"length", count},       {"count", count},       {"first", first}, {"last", last},     {"list", to_list},
      {"join", join},          {"reverse", reverse},   {"sort", sort},   {"unique", unique}, {"dictsort", dictsort},
      {"min", extreme<false>}, {"max", extreme<true>}, {"sum", sum},     {"items", items},
  };
  return table;
}

}  // namespace sx::jinja
