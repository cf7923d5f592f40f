// Python's two ways to format text: "..." % values and "...".format(...), and numbers read from text.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"
#include "text/jinja/unicode.h"

namespace sx::jinja {

namespace {

// A parsed format specification of either kind.
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0: the type's default
  char sign = '-';
  bool alternate = false;
  char grouping = 0;  // ',' or '_'
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

constexpr int64_t kMaxPrecision = 1000;

std::string digits_of(uint64_t v, unsigned base, bool upper) {
  std::string out;
  do {
    const unsigned d = static_cast<unsigned>(v % base);
    out.insert(out.begin(), static_cast<char>(d < 10 ? '0' + d : (upper ? 'A' : 'a') + d - 10));
    v /= base;
  } while (v != 0);
  return out;
}

void group(std::string& digits, char separator, size_t every) {
  for (size_t i = digits.size(); i > every;) {
    i -= every;
    digits.insert(i, 1, separator);
  }
}

// Fills `body` (with its sign or prefix apart) up to the width.
std::string pad(const std::string& sign, const std::string& body, const Spec& spec, char default_align) {
  const int64_t size = static_cast<int64_t>(count_chars(sign) + count_chars(body));
  if (spec.width <= size) return sign + body;
  const size_t space = static_cast<size_t>(spec.width - size);
  Heap::current().check_text(space * spec.fill.size() + body.size());
  const auto fill = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += spec.fill;
    return out;
  };
  const char align = spec.align != 0 ? spec.align : default_align;
  if (align == '=') return sign + fill(space) + body;
  if (align == '<') return sign + body + fill(space);
  if (align == '^') return fill(space / 2) + sign + body + fill(space - space / 2);
  return fill(space) + sign + body;
}

std::string sign_text(bool negative, char rule) {
  if (negative) return "-";
  return rule == '+' ? "+" : rule == ' ' ? " " : "";
}

std::string format_integer(int64_t v, const Spec& spec) {
  const uint64_t magnitude = v < 0 ? ~static_cast<uint64_t>(v) + 1 : static_cast<uint64_t>(v);
  const bool hex = spec.type == 'x' || spec.type == 'X';
  const unsigned base = hex ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  std::string body = digits_of(magnitude, base, spec.type == 'X');
  if (spec.grouping != 0) group(body, spec.grouping, base == 10 ? 3 : 4);
  std::string sign = sign_text(v < 0, spec.sign);
  if (spec.alternate && base != 10) sign += spec.type == 'x' ? "0x" : spec.type == 'X' ? "0X" : base == 8 ? "0o" : "0b";
  return pad(sign, body, spec, '>');
}

std::string format_real(double v, const Spec& spec) {
  if (spec.precision > kMaxPrecision) raise("a precision above {}", kMaxPrecision);
  const double magnitude = std::fabs(v);
  std::string body;
  const char type = spec.type == '%' ? 'f' : spec.type;
  if (std::isnan(v) || std::isinf(v)) {
    body = std::isnan(v) ? "nan" : "inf";
    if (type == 'F' || type == 'E' || type == 'G') body = to_upper(body);
  } else if (type == 0 && spec.precision < 0) {
    body = format_float(magnitude);
  } else {
    const char c[2] = {type == 0 || type == 'n' ? 'g' : type, 0};
    const std::string pattern = std::string(spec.alternate ? "%#.*" : "%.*") + c;
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    std::string buffer(static_cast<size_t>(precision) + 350, '\0');
    const int n = std::snprintf(buffer.data(), buffer.size(), pattern.c_str(), precision,
                                spec.type == '%' ? magnitude * 100 : magnitude);
    body = buffer.substr(0, static_cast<size_t>(n));
    // Without a type, format() keeps a float recognisable.
    if (type == 0 && body.find_first_of(".e") == std::string::npos) body += ".0";
  }
  if (spec.grouping != 0) {
    const size_t point = std::min(body.find_first_not_of("0123456789"), body.size());
    std::string whole = body.substr(0, point);
    group(whole, spec.grouping, 3);
    body = whole + body.substr(point);
  }
  if (spec.type == '%') body += "%";
  return pad(sign_text(std::signbit(v) && !std::isnan(v), spec.sign), body, spec, '>');
}

int64_t read_number(std::string_view text, size_t& at) {
  int64_t n = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    n = n * 10 + (text[at++] - '0');
    if (n > 100'000'000) raise("a number in a format is too large");
  }
  return n;
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto aligner = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const size_t first = char_bytes(text, 0);
    if (first < text.size() && aligner(text[first])) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      at = first + 1;
    } else if (aligner(text[0])) {
      spec.align = text[at++];
    }
  }
  const auto skip = [&](char c) { return at < text.size() && text[at] == c ? (++at, true) : false; };
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  spec.alternate = skip('#');
  if (skip('0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = read_number(text, at);
  if (skip(',')) spec.grouping = ',';
  else if (skip('_')) spec.grouping = '_';
  if (skip('.')) {
    const size_t before = at;
    spec.precision = read_number(text, at);
    if (at == before) raise("format specifier missing precision");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) raise("invalid format specifier '{}'", text);
  return spec;
}

std::string format_value(const Value& v, std::string_view text) {
  if (text.empty()) return str(v);
  Spec spec = parse_spec(text);
  const bool integer_type = std::string_view("bcdoxX").find(spec.type) != std::string_view::npos && spec.type != 0;
  const bool real_type = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != 0;
  if (v.is_number() && !(v.is(Type::kBool) && spec.type == 0)) {
    if (v.is(Type::kFloat) || real_type) {
      if (integer_type || spec.type == 's') raise("unknown format code '{}' for a float", spec.type);
      return format_real(v.as_double(), spec);
    }
    if (spec.precision >= 0) raise("precision not allowed in integer format specifier");
    if (spec.type == 's') raise("unknown format code 's' for an integer");
    if (spec.type == 'c') {
      std::string out;
      if (v.as_int() < 0 || v.as_int() > 0x10FFFF) raise("%c arg not in range");
      encode(static_cast<uint32_t>(v.as_int()), out);
      return pad("", out, spec, '<');
    }
    return format_integer(v.as_int(), spec);
  }
  if (!v.is_string() && !v.is(Type::kBool)) raise("unsupported format string passed to {}", type_name(v));
  if (spec.type != 0 && spec.type != 's') raise("unknown format code '{}' for a string", spec.type);
  if (spec.align == '=' && spec.fill != "0") raise("'=' alignment not allowed in string format specifier");
  if (spec.align == '=') spec.align = '<';
  std::string body = str(v);
  if (spec.precision >= 0) body = substring(Value::string(body), 0, spec.precision);
  return pad("", body, spec, '<');
}

// One % directive; `at` is behind the '%'.
class Percent {
 public:
  Percent(const std::string& format, const Value& values) : format_(format), values_(values) {}

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      if (format_[at_] != '%') {
        out.push_back(format_[at_++]);
        continue;
      }
      ++at_;
      out += directive();
      Heap::current().check_text(out.size());
    }
    if (!named_ && values_.is(Type::kTuple) && used_ < values_.items().size())
      raise("not all arguments converted during string formatting");
    if (!named_ && used_ == 0 && !values_.is(Type::kTuple) && !values_.is(Type::kDict) && !values_.is(Type::kList))
      raise("not all arguments converted during string formatting");
    return out;
  }

 private:
  Value take() {
    if (values_.is(Type::kTuple)) {
      if (used_ >= values_.items().size()) raise("not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_++ > 0) raise("not enough arguments for format string");
    return values_;
  }

  std::string directive() {
    Value value;
    bool given = false;
    if (at_ < format_.size() && format_[at_] == '(') {
      const size_t end = format_.find(')', at_);
      if (end == std::string::npos) raise("incomplete format key");
      if (!values_.is(Type::kDict)) raise("format requires a mapping");
      const std::string key = format_.substr(at_ + 1, end - at_ - 1);
      const Value* found = values_.dict_object().find(key);
      if (found == nullptr) raise("format key '{}' is missing", key);
      value = *found;
      given = named_ = true;
      at_ = end + 1;
    }
    Spec spec;
    for (; at_ < format_.size(); ++at_) {
      const char c = format_[at_];
      if (c == '-') spec.align = '<';
      else if (c == '+') spec.sign = '+';
      else if (c == ' ') spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#') spec.alternate = true;
      else if (c == '0') zero_ = true;
      else break;
    }
    const auto number = [&] {
      if (at_ < format_.size() && format_[at_] == '*') {
        ++at_;
        return std::min<int64_t>(need_int(take(), "a width"), 100'000'000);
      }
      return read_number(format_, at_);
    };
    spec.width = number();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = spec.width < -100'000'000 ? 100'000'000 : -spec.width;
    }
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      spec.precision = number();
    }
    while (at_ < format_.size() && (format_[at_] == 'l' || format_[at_] == 'h' || format_[at_] == 'L')) ++at_;
    if (at_ >= format_.size()) raise("incomplete format");
    const char type = format_[at_++];
    if (type == '%') return "%";
    if (!given) value = take();
    return convert(type, value, spec);
  }

  std::string convert(char type, const Value& value, Spec& spec) {
    const bool zero = zero_;
    zero_ = false;
    if (type == 's' || type == 'r' || type == 'a') {
      std::string body = type == 's' ? str(value) : repr(value);
      if (spec.precision >= 0) body = substring(Value::string(body), 0, spec.precision);
      return pad("", body, spec, '>');
    }
    if (type == 'c') {
      if (value.is_string() && length(value) == 1) return pad("", value.text(), spec, '>');
      std::string out;
      const int64_t c = need_int(value, "%c");
      if (c < 0 || c > 0x10FFFF) raise("%c arg not in range");
      encode(static_cast<uint32_t>(c), out);
      return pad("", out, spec, '>');
    }
    need(value);
    if (!value.is_number()) raise("%{} format: a number is required, not {}", type, type_name(value));
    if (zero && spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    if (type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' || type == 'o') {
      spec.type = type == 'i' || type == 'u' ? 'd' : type;
      if (value.is(Type::kFloat) && (spec.type != 'd' || !(std::fabs(value.as_double()) < 9e18)))
        raise("%{} format: an integer is required", type);
      const int64_t v = value.is(Type::kFloat) ? static_cast<int64_t>(value.as_double()) : value.as_int();
      return format_integer(v, spec);
    }
    if (std::string_view("eEfFgG").find(type) == std::string_view::npos)
      raise("unsupported format character '{}'", type);
    spec.type = type;
    return format_real(value.as_double(), spec);
  }

  const std::string& format_;
  const Value& values_;
  size_t at_ = 0, used_ = 0;
  bool named_ = false, zero_ = false;
};

// "...{field!conversion:spec}...".format(args)
class Braces {
 public:
  Braces(Interpreter& interpreter, const Args& args) : interpreter_(interpreter), args_(args) {}

  std::string run(std::string_view format, int depth) {
    if (depth > 2) raise("max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at++];
      if (c != '{' && c != '}') {
        out.push_back(c);
        continue;
      }
      if (at < format.size() && format[at] == c) {
        out.push_back(c);
        ++at;
        continue;
      }
      if (c == '}') raise("single '}}' encountered in format string");
      const size_t begin = at;
      int open = 1;
      while (at < format.size() && open > 0) {
        open += format[at] == '{';
        open -= format[at] == '}';
        ++at;
      }
      if (open > 0) raise("expected '}}' before end of string");
      out += field(format.substr(begin, at - begin - 1), depth);
      Heap::current().check_text(out.size());
    }
    return out;
  }

 private:
  std::string field(std::string_view text, int depth) {
    const size_t colon = text.find(':');
    std::string_view name = text.substr(0, colon);
    char conversion = 0;
    const size_t bang = name.find('!');
    if (bang != std::string_view::npos) {
      if (bang + 2 != name.size()) raise("bad conversion in a format field");
      conversion = name[bang + 1];
      name = name.substr(0, bang);
    }
    Value v = lookup(name);  // before the fields of the specification take their numbers
    const std::string spec = colon == std::string_view::npos ? "" : run(text.substr(colon + 1), depth + 1);
    if (conversion == 'r' || conversion == 'a') v = Value::string(repr(v));
    else if (conversion == 's') v = Value::string(str(v));
    else if (conversion != 0) raise("unknown conversion specifier '{}'", conversion);
    return format_value(v, spec);
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, end);
    Value v;
    const auto number = parse_int(first, 10);
    if (first.empty() || number) {
      const size_t i = first.empty() ? automatic_++ : static_cast<size_t>(*number);
      if (i >= args_.positional.size()) raise("replacement index {} out of range for positional args", i);
      v = args_.positional[i];
    } else {
      bool found = false;
      for (const auto& [key, value] : args_.named)
        if (key == first) v = value, found = true;
      if (!found) raise("format key '{}' is missing", first);
    }
    for (size_t at = end; at < name.size();) {
      if (name[at] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", at + 1), name.size());
        v = attribute(interpreter_, v, name.substr(at + 1, stop - at - 1));
        at = stop;
      } else if (name[at] == '[') {
        const size_t stop = name.find(']', at);
        if (stop == std::string_view::npos) raise("missing ']' in format string");
        const std::string_view key = name.substr(at + 1, stop - at - 1);
        const auto index = parse_int(key, 10);
        v = item(interpreter_, v, index ? Value::integer(*index) : Value::string(std::string(key)));
        at = stop + 1;
      } else {
        raise("only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return v;
  }

  Interpreter& interpreter_;
  const Args& args_;
  size_t automatic_ = 0;
};

}  // namespace

std::string format_percent(const std::string& format, const Value& values) { return Percent(format, values).run(); }

std::string format_braces(Interpreter& interpreter, const std::string& format, const Args& args) {
  return Braces(interpreter, args).run(format, 0);
}

static std::string without_underscores(std::string_view text) {
  text = strip(text, true, true);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_' && text[i + 1] != '_';
    if (text[i] != '_' || !between) out.push_back(text[i]);
  }
  return out;
}

std::optional<int64_t> parse_int(std::string_view text, int base) {
  std::string s = without_underscores(text);
  const bool minus = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.erase(0, 1);
  if (s.size() > 2 && s[0] == '0') {
    const char mark = static_cast<char>(s[1] | 0x20);
    const int implied = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (implied != 0 && (base == implied || base == 0)) {
      s.erase(0, 2);
      base = implied;
    }
  }
  if (base == 0) base = 10;
  if (s.empty() || s[0] == '-' || base < 2 || base > 36) return std::nullopt;
  if (minus) s.insert(0, 1, '-');
  int64_t value = 0;
  const auto result = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (result.ptr != s.data() + s.size() || result.ec == std::errc::invalid_argument) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) raise("the integer {} does not fit 64 bits", s.substr(0, 40));
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string s = without_underscores(text);
  const std::string lower = to_lower(s);
  if (s.empty() || lower.find_first_of("xp") != std::string::npos || lower.find("nan(") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double d = std::strtod(s.c_str(), &end);
  if (end != s.c_str() + s.size()) return std::nullopt;
  return d;
}

}  // namespace sx::jinja
