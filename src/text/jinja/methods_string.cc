// Methods of strings.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"
#include "text/jinja/string_ops.h"

namespace sx::jinja {

namespace {

const std::string* optional_text(const std::optional<Value>& v, const char* what) {
  if (!v || v->is_none()) return nullptr;
  return &need_text(*v, what);
}

template <bool kLeft, bool kRight>
Value strip_method(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("strip", args, {"/chars"});
  const std::string* chars = optional_text(slots[0], "the argument of strip");
  // Every character may be compared with each of `chars`.
  Heap::current().step(1 + self.text().size() / 32 * (chars == nullptr ? 1 : chars->size()));
  return same(self, std::string(strip(self.text(), kLeft, kRight, chars)));
}

Value text_list(const Value& self, std::vector<std::string> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& p : parts) items.push_back(same(self, std::move(p)));
  return Value::list(std::move(items));
}

template <bool kFromRight>
Value split_method(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("split", args, {"sep", "maxsplit"});
  const int64_t limit = slots[1] ? need_int(*slots[1], "maxsplit") : -1;
  return text_list(self, split_text(self.text(), optional_text(slots[0], "the separator"), limit, kFromRight));
}

Value splitlines(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("splitlines", args, {"keepends"});
  return text_list(self, split_lines(self.text(), slots[0] && truth(*slots[0])));
}

// The characters [start, end) that an optional pair of arguments selects.
struct Window {
  std::string text;
  int64_t begin;
  bool valid;  // start lies within the text
};
Window window(const Value& self, const std::optional<Value>& start, const std::optional<Value>& stop) {
  const int64_t n = length(self);
  if (!start && !stop) return {self.text(), 0, true};
  const auto place = [&](const std::optional<Value>& v, int64_t absent) {
    if (!v || v->is_none()) return absent;
    const int64_t i = need_int(*v, "a position");
    return i < 0 ? std::max<int64_t>(i + n, 0) : i;
  };
  const int64_t begin = place(start, 0), end = std::min(place(stop, n), n);
  return {begin <= end ? substring(self, begin, end) : "", begin, begin <= end};
}

template <bool kStart>
Value affix_method(Interpreter&, const Value& self, Args& args) {
  auto slots = bind(kStart ? "startswith" : "endswith", args, {"/prefix", "/start", "/end"}, 1);
  const Window w = window(self, slots[1], slots[2]);
  const auto matches = [&](const Value& affix) {
    const std::string& text = need_text(affix, "the prefix or suffix");
    return w.valid && (kStart ? w.text.starts_with(text) : w.text.ends_with(text));
  };
  if (!slots[0]->is(Type::kTuple)) return Value::boolean(matches(*slots[0]));
  for (const Value& affix : slots[0]->items())
    if (matches(affix)) return Value::boolean(true);
  return Value::boolean(false);
}

template <bool kLast, bool kMustFind>
Value find_text(Interpreter&, const Value& self, Args& args) {
  auto slots = bind(kMustFind ? "index" : "find", args, {"/sub", "/start", "/end"}, 1);
  const std::string& wanted = need_text(*slots[0], "the text to find");
  const Window w = window(self, slots[1], slots[2]);
  Heap::current().search(w.text.size(), wanted.size());
  const size_t found = !w.valid ? std::string::npos : kLast ? w.text.rfind(wanted) : w.text.find(wanted);
  if (found == std::string::npos) {
    if (kMustFind) raise("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(w.begin + static_cast<int64_t>(count_chars(std::string_view(w.text).substr(0, found))));
}

Value count_text(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("count", args, {"/sub", "/start", "/end"}, 1);
  const std::string& wanted = need_text(*slots[0], "the text to count");
  const Window w = window(self, slots[1], slots[2]);
  Heap::current().search(w.text.size(), wanted.size());
  if (!w.valid) return Value::integer(0);
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(count_chars(w.text)) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = w.text.find(wanted, at)) != std::string::npos; at += wanted.size()) ++n;
  return Value::integer(n);
}

Value replace_method(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("replace", args, {"/old", "/new", "/count"}, 2);
  std::string from = need_text(*slots[0], "the text to replace"), to = need_text(*slots[1], "the replacement");
  if (self.is_markup() && !slots[0]->is_markup()) from = escape_html(from);
  if (self.is_markup() && !slots[1]->is_markup()) to = escape_html(to);
  return same(self, replace_text(self.text(), from, to, slots[2] ? need_int(*slots[2], "count") : -1));
}

Value join_method(Interpreter&, const Value& self, Args& args) {
  auto slots = bind("join", args, {"/iterable"}, 1);
  if (!is_iterable(*slots[0])) raise("can only join an iterable");
  std::vector<std::string> parts;
  for (const Value& v : to_vector(*slots[0])) {
    if (!v.is_string()) raise("join: sequence item {}: expected str, {} found", parts.size(), type_name(v));
    parts.push_back(self.is_markup() && !v.is_markup() ? escape_html(v.text()) : v.text());
  }
  return same(self, join_text(parts, self.text()));
}

template <std::string (*kMap)(std::string_view)>
Value map_method(Interpreter&, const Value& self, Args& args) {
  bind("this string method", args, {});
  Heap::current().scan(self.text().size() * 4);
  return same(self, kMap(self.text()));
}

template <bool kPrefix>
Value remove_affix(Interpreter&, const Value& self, Args& args) {
  auto slots = bind(kPrefix ? "removeprefix" : "removesuffix", args, {"/affix"}, 1);
  const std::string& affix = need_text(*slots[0], "the prefix or suffix");
  const std::string& text = self.text();
  if (kPrefix) return same(self, text.starts_with(affix) ? text.substr(affix.size()) : text);
  return same(self, text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text);
}

}  // namespace

const MethodTable& string_methods() {
  static const MethodTable table = {
      {"strip", {strip_method<true, true>}},
      {"lstrip", {strip_method<true, false>}},
      {"rstrip", {strip_method<false, true>}},
      {"split", {split_method<false>}},
      {"rsplit", {split_method<true>}},
      {"splitlines", {splitlines}},
      {"startswith", {affix_method<true>}},
      {"endswith", {affix_method<false>}},
      {"find", {find_text<false, false>}},
      {"rfind", {find_text<true, false>}},
      {"index", {find_text<false, true>}},
      {"rindex", {find_text<true, true>}},
      {"count", {count_text}},
      {"replace", {replace_method}},
      {"join", {join_method}},
      {"upper", {map_method<upper_case>}},
      {"lower", {map_method<lower_case>}},
      {"title", {map_method<title_text>}},
      {"capitalize", {map_method<capitalize_text>}},
      {"removeprefix", {remove_affix<true>}},
      {"removesuffix", {remove_affix<false>}},
  };
  return table;
}

}  // namespace sx::jinja
