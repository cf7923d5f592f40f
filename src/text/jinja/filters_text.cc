// Filters that make text or numbers out of one value.
#include <algorithm>
#include <cmath>

#include "text/jinja/convert.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"
#include "text/jinja/string_ops.h"

namespace sx::jinja {

namespace {

// Jinja2's soft_str: strings pass through (with their markup flag), others are printed.
Value soft(const Value& v) { return v.is_string() ? v : Value::string(str(v)); }

template <std::string (*kMap)(std::string_view)>
Value mapped(Interpreter&, const Value& input, Args& args) {
  bind("this filter", args, {});
  const Value s = soft(input);
  Heap::current().scan(s.text().size() * 4);
  return same(s, kMap(s.text()));
}

std::string title_words(std::string_view text) {
  std::string out;
  bool start = true;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = map_char(text, at, out, start ? append_upper : append_lower);
    start = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return out;
}

Value title(Interpreter&, const Value& input, Args& args) {
  bind("title", args, {});
  const std::string text = str(input);
  Heap::current().scan(text.size() * 4);
  return Value::string(title_words(text));  // Jinja2 joins the parts, which drops the markup flag.
}

Value trim(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("trim", args, {"chars"});
  const Value s = soft(input);
  const bool all = !slots[0] || slots[0]->is_none();
  Heap::current().step(1 + s.text().size() / 32 * (all ? 1 : need_text(*slots[0], "chars").size()));
  return same(s, std::string(strip(s.text(), true, true, all ? nullptr : &need_text(*slots[0], "chars"))));
}

Value replace(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("replace", args, {"old", "new", "count"}, 2);
  const int64_t count = slots[2] && !slots[2]->is_none() ? need_int(*slots[2], "count") : -1;
  return Value::string(replace_text(str(input), str(*slots[0]), str(*slots[1]), count));
}

Value indent(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("indent", args, {"width", "first", "blank"});
  const std::string& text = need_text(input, "the input of indent");
  std::string margin = "    ";
  if (slots[0] && slots[0]->is_string()) margin = slots[0]->text();
  else if (slots[0]) margin = str(repeat(Value::string(" "), need_int(*slots[0], "width")));
  const bool first = slots[1] && truth(*slots[1]), blank = slots[2] && truth(*slots[2]);
  std::string out = first ? margin : "";
  const std::vector<std::string> lines = split_lines(text + "\n", false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out += "\n";
    if (i != 0 && (blank || !lines[i].empty())) out += margin;
    out += lines[i];
    Heap::current().check_text(out.size());
  }
  return same(input, std::move(out));
}

Value escape(Interpreter&, const Value& input, Args& args) {
  bind("escape", args, {});
  return input.is_markup() ? input : Value::string(escape_html(str(input)), true);
}

Value safe(Interpreter&, const Value& input, Args& args) {
  bind("safe", args, {});
  return Value::string(str(input), true);
}

Value string(Interpreter&, const Value& input, Args& args) {
  bind("string", args, {});
  return soft(input);
}

Value truncated(double d) {
  if (std::isinf(d)) raise("cannot convert float infinity to integer");
  if (!(std::fabs(d) < 9.2e18)) raise("an integer does not fit 64 bits");
  return Value::integer(static_cast<int64_t>(d));
}

Value to_int(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("int", args, {"default"});
  const Value fallback = slots[0] ? *slots[0] : Value::integer(0);
  need(input);
  if (input.is_integral()) return Value::integer(input.as_int());
  if (input.is(Type::kFloat)) return std::isnan(input.as_double()) ? fallback : truncated(input.as_double());
  if (!input.is_string()) return fallback;
  const auto i = parse_int(input.text());
  if (i) return Value::integer(*i);
  const auto d = parse_float(input.text());
  return d && std::isfinite(*d) ? truncated(*d) : fallback;
}

Value to_float(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("float", args, {"default"});
  need(input);
  if (input.is_number()) return Value::real(input.as_double());
  const auto d = input.is_string() ? parse_float(input.text()) : std::nullopt;
  return d ? Value::real(*d) : slots[0] ? *slots[0] : Value::real(0);
}

Value absolute(Interpreter&, const Value& input, Args& args) {
  bind("abs", args, {});
  need(input);
  if (input.is(Type::kFloat)) return Value::real(std::fabs(input.as_double()));
  if (!input.is_integral()) raise("bad operand type for abs(): '{}'", type_name(input));
  return input.as_int() < 0 ? negative(input) : Value::integer(input.as_int());
}

Value fallback(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("default", args, {"default_value", "boolean"});
  const bool boolean = slots[1] && truth(*slots[1]);
  if (!input.is_undefined() && (!boolean || truth(input))) return input;
  return slots[0] ? *slots[0] : Value::string("");
}

Value tojson(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = slots[0] && truth(*slots[0]);
  if (slots[1] && !slots[1]->is_none()) {
    if (slots[1]->is_string()) style.indent = slots[1]->text();
    else style.indent = repeat(Value::string(" "), need_int(*slots[1], "indent")).text();
  }
  if (slots[2] && !slots[2]->is_none()) {
    const std::vector<Value> parts = to_vector(*slots[2]);
    if (parts.size() != 2) raise("separators must be a pair of texts");
    style.separators = {need_text(parts[0], "a separator"), need_text(parts[1], "a separator")};
  }
  style.sort_keys = slots[3] && truth(*slots[3]);
  return Value::string(to_json(input, style));
}

// Jinja2 does not have this filter, but some published templates use it where it is defined.
Value from_json(Interpreter&, const Value& input, Args& args) {
  bind("from_json", args, {});
  const auto json = nlohmann::ordered_json::parse(need_text(input, "the input of from_json"), nullptr, false);
  if (json.is_discarded()) raise("from_json: the text is not valid JSON");
  return value_from_json(json);
}

Value reject_random(Interpreter&, const Value&, Args&) {
  raise("the filter 'random' is not supported: output must not vary");
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable table = {
      {"upper", mapped<upper_case>},
      {"lower", mapped<lower_case>},
      {"capitalize", mapped<capitalize_text>},
      {"title", title},
      {"trim", trim},
      {"replace", replace},
      {"indent", indent},
      {"escape", escape},
      {"e", escape},
      {"safe", safe},
      {"string", string},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"default", fallback},
      {"d", fallback},
      {"tojson", tojson},
      {"from_json", from_json},
      {"random", reject_random},
  };
  return table;
}

}  // namespace sx::jinja
