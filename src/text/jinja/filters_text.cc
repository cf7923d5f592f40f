// Filters that make text or numbers out of one value.
#include <algorithm>
#include <cmath>

#include "text/jinja/convert.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"
#include "text/jinja/string_ops.h"
#include "text/jinja/unicode.h"

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
    const uint32_t c = decode_at(text, at);
    const bool separator = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    start || separator ? append_upper(c, out) : append_lower(c, out);
    start = separator;
  }
  return out;
}

Value title(Interpreter&, const Value& input, Args& args) {
  bind("title", args, {});
  const std::string text = str(input);
  Heap::current().scan(text.size() * 4);
  return Value::string(title_words(text));  // joined from parts: no longer markup
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

Value truncate(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("truncate", args, {"length", "killwords", "end", "leeway"});
  const int64_t size = slots[0] ? need_int(*slots[0], "length") : 255;
  const Value end = slots[2] ? *slots[2] : Value::string("...");
  const int64_t leeway = slots[3] && !slots[3]->is_none() ? need_int(*slots[3], "leeway") : 5;
  need_text(end, "end");
  if (size < length(end)) raise("truncate: expected length >= {}, got {}", length(end), size);
  if (leeway < 0) raise("truncate: expected leeway >= 0, got {}", leeway);
  if (length(input) - leeway <= size) return input;
  need_text(input, "the input of truncate");
  std::string kept = substring(input, 0, size - length(end));
  if (!(slots[1] && truth(*slots[1]))) kept = split_text(kept, &Value::string(" ").text(), 1, true)[0];
  return Value::string(kept + end.text());
}

Value center(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("center", args, {"width"});
  const Value s = soft(input);
  return same(s, pad_text(s, slots[0] ? need_int(*slots[0], "width") : 80, " ", '^'));
}

Value wordcount(Interpreter&, const Value& input, Args& args) {
  bind("wordcount", args, {});
  const std::string text = str(input);
  int64_t n = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = decode_at(text, at);
    const bool word = c == '_' || is_alnum(c);
    n += word && !inside;
    inside = word;
  }
  return Value::integer(n);
}

Value escape(Interpreter&, const Value& input, Args& args) {
  bind("escape", args, {});
  return input.is_markup() ? input : Value::string(escape_html(str(input)), true);
}

Value force_escape(Interpreter&, const Value& input, Args& args) {
  bind("forceescape", args, {});
  return Value::string(escape_html(str(input)), true);
}

Value safe(Interpreter&, const Value& input, Args& args) {
  bind("safe", args, {});
  return Value::string(str(input), true);
}

Value string(Interpreter&, const Value& input, Args& args) {
  bind("string", args, {});
  return soft(input);
}

Value format(Interpreter&, const Value& input, Args& args) {
  if (!args.positional.empty() && !args.named.empty()) raise("format cannot take positional and keyword arguments");
  const Value s = soft(input);
  if (args.named.empty()) return same(s, format_percent(s.text(), Value::tuple(args.positional)));
  const Value dict = Value::dict();
  for (const auto& [name, value] : args.named) dict.dict_object().set(name, value);
  return same(s, format_percent(s.text(), dict));
}

std::string quote_url(const std::string& text, bool query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query);
    if (plain) out.push_back(c);
    else if (c == ' ' && query) out.push_back('+');
    else out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

Value urlencode(Interpreter&, const Value& input, Args& args) {
  bind("urlencode", args, {});
  if (input.is_string() || !is_iterable(input)) return Value::string(quote_url(str(input), false));
  std::string out;
  const Value pairs = input.is(Type::kDict) ? Value(new ViewObject(ViewObject::Kind::kItems, input)) : input;
  for (const Value& pair : to_vector(pairs)) {
    const std::vector<Value> parts = to_vector(pair);
    if (parts.size() != 2) raise("urlencode: pairs of key and value expected");
    if (!out.empty()) out += "&";
    out += quote_url(str(parts[0]), true) + "=" + quote_url(str(parts[1]), true);
    Heap::current().check_text(out.size());
  }
  return Value::string(std::move(out));
}

Value truncated(double d) {
  if (std::isinf(d)) raise("cannot convert float infinity to integer");
  if (!(std::fabs(d) < 9.2e18)) raise("an integer does not fit 64 bits");
  return Value::integer(static_cast<int64_t>(d));
}

Value to_int(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("int", args, {"default", "base"});
  const Value fallback = slots[0] ? *slots[0] : Value::integer(0);
  need(input);
  if (input.is_integral()) return Value::integer(input.as_int());
  if (input.is(Type::kFloat)) return std::isnan(input.as_double()) ? fallback : truncated(input.as_double());
  if (!input.is_string()) return fallback;
  const int64_t base = slots[1] ? std::clamp<int64_t>(need_int(*slots[1], "base"), -1, 99) : 10;
  const auto i = parse_int(input.text(), static_cast<int>(base));
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

// round(v, precision) of Python: half to even, on the exact decimal value.
Value round_number(const Value& input, int64_t precision) {
  if (input.is_integral()) {
    if (precision >= 0) return Value::integer(input.as_int());
    if (precision < -18) return Value::integer(0);
    int64_t unit = 1;
    for (; precision < 0; ++precision) unit *= 10;
    const int64_t v = input.as_int(), rest = ((v % unit) + unit) % unit, low = v - rest;
    const bool up = rest > unit - rest || (rest == unit - rest && (low / unit) % 2 != 0);
    return arithmetic(Op::kAdd, Value::integer(low), Value::integer(up ? unit : 0));
  }
  const double d = input.as_double();
  if (!std::isfinite(d) || precision > 300) return input;
  if (precision >= 0) return Value::real(*parse_float(fmt::format("{:.{}f}", d, static_cast<int>(precision))));
  if (precision < -300) return Value::real(std::copysign(0.0, d));
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return Value::real(std::nearbyint(d / unit) * unit);
}

Value round(Interpreter&, const Value& input, Args& args) {
  auto slots = bind("round", args, {"precision", "method"});
  const int64_t precision = slots[0] ? need_int(*slots[0], "precision") : 0;
  const std::string method = slots[1] ? str(*slots[1]) : "common";
  need(input);
  if (method != "common" && method != "ceil" && method != "floor") raise("method must be common, ceil or floor");
  if (!input.is_number()) raise("type {} doesn't define __round__ method", type_name(input));
  if (method == "common") return round_number(input, precision);
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.as_double() * unit;
  if (!std::isfinite(scaled)) raise("cannot convert float infinity or NaN to integer");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
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

// Not in Jinja2, but some published templates guard for it.
Value from_json(Interpreter&, const Value& input, Args& args) {
  bind("from_json", args, {});
  const auto json = nlohmann::ordered_json::parse(need_text(input, "the input of from_json"), nullptr, false);
  if (json.is_discarded()) raise("from_json: the text is not valid JSON");
  return value_from_json(json);
}

Value pprint(Interpreter&, const Value& input, Args& args) {
  bind("pprint", args, {});
  return Value::string(repr(input));
}

Value refuse_random(Interpreter&, const Value&, Args&) {
  raise("the filter 'random' is refused: output must not vary");
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable table = {
      {"upper", mapped<to_upper>},
      {"lower", mapped<to_lower>},
      {"capitalize", mapped<capitalize_text>},
      {"title", title},
      {"trim", trim},
      {"replace", replace},
      {"indent", indent},
      {"truncate", truncate},
      {"center", center},
      {"wordcount", wordcount},
      {"escape", escape},
      {"e", escape},
      {"forceescape", force_escape},
      {"safe", safe},
      {"string", string},
      {"format", format},
      {"urlencode", urlencode},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"round", round},
      {"default", fallback},
      {"d", fallback},
      {"tojson", tojson},
      {"from_json", from_json},
      {"pprint", pprint},
      {"random", refuse_random},
  };
  return table;
}

}  // namespace sx::jinja
