// Writes values as text exactly as Python's str(), repr() and json.dumps() do.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/ops.h"
#include "text/jinja/string_ops.h"

namespace sx::jinja {

// Writes the shortest digits that read back as d. As in Python there is an exponent below 1e-4 and from 1e16 on.
std::string format_float(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t sign = text[e + 1] == '+' ? 2 : 1;
  std::from_chars(text.data() + e + sign, text.data() + text.size(), exponent);
  std::string digits;
  for (char c : text.substr(0, e))
    if (c != '.') digits.push_back(c);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  const size_t whole = static_cast<size_t>(exponent) + 1;
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out.push_back(c);
    }
    if (out.size() > 2 * text.size() && out.size() % 4096 < 6) Heap::current().check_text(out.size());
  }
  return out;
}

namespace {

void append_string_repr(std::string_view text, std::string& out) {
  const bool single = text.find('\'') != std::string_view::npos, twice = text.find('"') != std::string_view::npos;
  const char quote = single && !twice ? '"' : '\'';
  out.push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = decode_at(text, at);
    if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (c == '\\' || c == static_cast<uint32_t>(quote)) (out += '\\') += static_cast<char>(c);
    else if (is_printable(c)) encode(c, out);
    else if (c < 0x100) out += fmt::format("\\x{:02x}", c);
    else if (c < 0x10000) out += fmt::format("\\u{:04x}", c);
    else out += fmt::format("\\U{:08x}", c);
  }
  out.push_back(quote);
}

// Writes repr(); `active` holds the containers being written, to print a cycle as [...] like Python.
class Printer {
 public:
  explicit Printer(std::string& out) : out_(out), heap_(Heap::current()) {}

  void write(const Value& v) {
    heap_.step();
    heap_.check_text(out_.size());
    switch (v.type()) {
      case Type::kUndefined: out_ += "Undefined"; break;
      case Type::kNone: out_ += "None"; break;
      case Type::kBool: out_ += v.as_bool() ? "True" : "False"; break;
      case Type::kInt: out_ += fmt::format("{}", v.as_int()); break;
      case Type::kFloat: out_ += format_float(v.as_double()); break;
      case Type::kString: string(v); break;
      case Type::kList: container(v, "[", "]"); break;
      case Type::kTuple: container(v, "(", v.items().size() == 1 ? ",)" : ")"); break;
      case Type::kDict: container(v, "{", "}"); break;
      case Type::kNamespace: container(v, "<Namespace {", "}>"); break;
      case Type::kView: container(v, view_name(v), "])"); break;
      case Type::kRange: range(v.range()); break;
      case Type::kIterator: out_ += "<generator object>"; break;
      default: out_ += v.native().repr();
    }
  }

 private:
  static const char* view_name(const Value& v) {
    if (v.view().kind == ViewObject::Kind::kKeys) return "dict_keys([";
    return v.view().kind == ViewObject::Kind::kValues ? "dict_values([" : "dict_items([";
  }

  void string(const Value& v) {
    if (v.is_markup()) out_ += "Markup(";
    append_string_repr(v.text(), out_);
    if (v.is_markup()) out_ += ")";
  }

  void range(const RangeObject& r) {
    out_ += fmt::format("range({}, {}", r.begin, r.end);
    out_ += r.step == 1 ? ")" : fmt::format(", {})", r.step);
  }

  void separate(size_t i) {
    if (i != 0) out_ += ", ";
  }

  void container(const Value& v, const char* open, const char* close) {
    if (std::find(active_.begin(), active_.end(), v.object()) != active_.end()) {
      out_ += v.is(Type::kList) ? "[...]" : v.is(Type::kTuple) ? "(...)" : v.is(Type::kDict) ? "{...}" : "...";
      return;
    }
    if (active_.size() > static_cast<size_t>(kMaxValueDepth)) raise("values nested too deeply to print");
    active_.push_back(v.object());
    out_ += open;
    size_t i = 0;
    if (v.is_sequence()) {
      for (const Value& item : v.items()) separate(i++), write(item);
    } else if (v.is(Type::kDict)) {
      for (const auto& [key, value] : v.dict_object().entries) {
        separate(i++), write(key);
        out_ += ": ";
        write(value);
      }
    } else if (v.is(Type::kNamespace)) {
      for (const auto& [key, value] : v.namespace_object().attributes) {
        separate(i++), append_string_repr(key, out_);
        out_ += ": ";
        write(value);
      }
    } else {
      const size_t n = v.view().dict.dict_object().entries.size();
      for (; i < n; ++i) separate(i), write(v.view().at(i));
    }
    out_ += close;
    active_.pop_back();
  }

  std::string& out_;
  Heap& heap_;
  std::vector<const Object*> active_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, std::string& out) : style_(style), out_(out), heap_(Heap::current()) {
    if (style.separators) {
      item_separator_ = style.separators->first;
      key_separator_ = style.separators->second;
    } else if (style.indent) {
      item_separator_ = ",";
    }
  }

  void write(const Value& v) {
    heap_.step();
    heap_.check_text(out_.size());
    switch (v.type()) {
      case Type::kNone: out_ += "null"; break;
      case Type::kBool: out_ += v.as_bool() ? "true" : "false"; break;
      case Type::kInt: out_ += fmt::format("{}", v.as_int()); break;
      case Type::kFloat: number(v.as_double()); break;
      case Type::kString: string(v.text()); break;
      case Type::kList:
      case Type::kTuple:
      case Type::kDict: container(v); break;
      case Type::kUndefined: fail_undefined(v);
      default: raise("an object of type '{}' is not JSON serializable", type_name(v));
    }
  }

 private:
  void number(double d) {
    if (std::isnan(d)) out_ += "NaN";
    else if (std::isinf(d)) out_ += d < 0 ? "-Infinity" : "Infinity";
    else out_ += format_float(d);
  }

  void string(std::string_view text) {
    heap_.scan(text.size());
    out_.push_back('"');
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const uint32_t c = decode_at(text, at);
      if (c == '"' || c == '\\') (out_ += '\\') += static_cast<char>(c);
      else if (c == '\n') out_ += "\\n";
      else if (c == '\r') out_ += "\\r";
      else if (c == '\t') out_ += "\\t";
      else if (c == '\f') out_ += "\\f";
      else if (c == '\b') out_ += "\\b";
      else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f && c < 0x10000)) out_ += fmt::format("\\u{:04x}", c);
      else if (style_.ensure_ascii && c >= 0x10000)
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
      else out_ += text.substr(begin, at - begin);
    }
    out_.push_back('"');
  }

  void newline() {
    if (!style_.indent) return;
    out_.push_back('\n');
    for (size_t i = 0; i < active_.size(); ++i) out_ += *style_.indent;
    heap_.check_text(out_.size());
  }

  void key(const Value& k) {
    if (k.is_string()) return string(k.text());
    if (!k.is_number() && !k.is_none()) raise("keys must be str, int, float, bool or None, not {}", type_name(k));
    out_.push_back('"');
    write(k);
    out_.push_back('"');
  }

  void container(const Value& v) {
    const bool dict = v.is(Type::kDict);
    if (std::find(active_.begin(), active_.end(), v.object()) != active_.end()) raise("circular reference detected");
    if (active_.size() > static_cast<size_t>(kMaxValueDepth)) raise("values nested too deeply for JSON");
    if (!truth(v)) {
      out_ += dict ? "{}" : "[]";
      return;
    }
    active_.push_back(v.object());
    out_.push_back(dict ? '{' : '[');
    bool first = true;
    const auto separate = [&] {
      if (!first) out_ += item_separator_;
      first = false;
      newline();
    };
    if (dict) {
      std::vector<Value> keys = to_vector(v);
      if (style_.sort_keys) sort_values(keys, [](const Value& a, const Value& b) { return less(a, b); });
      for (const Value& k : keys) {
        separate();
        key(k);
        out_ += key_separator_;
        write(*v.dict_object().find(k));
      }
    } else {
      for (const Value& item : v.items()) separate(), write(item);
    }
    active_.pop_back();
    newline();
    out_.push_back(dict ? '}' : ']');
  }

  const JsonStyle& style_;
  std::string& out_;
  Heap& heap_;
  std::string item_separator_ = ", ", key_separator_ = ": ";
  std::vector<const Object*> active_;
};

}  // namespace

void append_str(const Value& v, std::string& out) {
  if (v.is_string()) out += v.text();
  else if (!v.is_undefined()) Printer(out).write(v);
}

std::string str(const Value& v) {
  std::string out;
  append_str(v, out);
  return out;
}

std::string repr(const Value& v) {
  std::string out;
  Printer(out).write(v);
  return out;
}

std::string to_json(const Value& v, const JsonStyle& style) {
  std::string out;
  JsonWriter(style, out).write(v);
  return out;
}

}  // namespace sx::jinja
