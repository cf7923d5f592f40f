#include "server/tool_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/tool_schema.h"
#include "server/tool_text.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

using Notation = CallSyntax::Notation;

constexpr size_t kMostSpaces = 64;  // after a quote, before what shows that it has ended a text

enum class Ends { kYes, kNo, kMore };

// The mark that begins a text at `at`: empty, there is none; `more`: it is not known yet.
std::string_view quote_at(std::string_view text, size_t at, Notation notation, bool& more) {
  more = false;
  const std::string_view one = text.substr(at, 1);
  if (one == "\"" || (notation == Notation::kPython && one == "'")) return one == "'" ? "'" : "\"";
  if (notation != Notation::kGemma || one != kGemmaQuote.substr(0, 1)) return {};
  const std::string_view rest = text.substr(at, kGemmaQuote.size());
  more = rest.size() < kGemmaQuote.size() && kGemmaQuote.starts_with(rest);
  return rest == kGemmaQuote ? kGemmaQuote : std::string_view();
}

// Whether the text that began with `quote` ends at `at`. Templates write Python's texts without escapes: a quote ends
// one only where something can follow.
Ends ends_text(std::string_view text, size_t at, std::string_view quote, Notation notation) {
  const std::string_view rest = text.substr(at, quote.size());
  if (rest != quote) return rest.size() < quote.size() && quote.starts_with(rest) ? Ends::kMore : Ends::kNo;
  if (notation != Notation::kPython) return Ends::kYes;
  const size_t next = text.find_first_not_of(kSpaces, at + quote.size());
  if (next == std::string_view::npos) return text.size() - at > kMostSpaces ? Ends::kNo : Ends::kMore;
  return std::string_view(",)]}:").find(text[next]) != std::string_view::npos ? Ends::kYes : Ends::kNo;
}

std::string utf8_of(uint32_t code) {
  const Json text = Json::parse(fmt::format("\"\\u{:04x}\"", code), nullptr, false);
  return text.is_string() ? text.get<std::string>() : std::string();
}

// A text between Python's quotes. An escape that is none stands for itself, as in Python.
std::string unescaped(std::string_view text) {
  constexpr std::string_view kNames = "ntrbf\\'\"/", kMeant = "\n\t\r\b\f\\'\"/";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[i + 1];
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0, name = kNames.find(c);
    const std::string_view hex = text.substr(i + 2, digits);
    const bool code =
        digits > 0 && hex.size() == digits && hex.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    const std::string shown = code ? utf8_of(uint32_t(std::stoul(std::string(hex), nullptr, 16))) : std::string();
    if (name != std::string_view::npos) out += kMeant[name];
    else if (!shown.empty()) out += shown;
    else out += text.substr(i, 2);
    i += 1 + (shown.empty() ? 0 : digits);
  }
  return out;
}

// Reads a value that is whole.
class Reader {
 public:
  Reader(std::string_view text, Notation notation) : text_(text), notation_(notation) {}

  Json arguments() {
    const bool python = notation_ == Notation::kPython;
    std::optional<Json> all = members(python ? ')' : '}', python ? '=' : ':', true);
    skip();
    return all && at_ == text_.size() ? std::move(*all) : Json(Json::value_t::discarded);
  }

 private:
  void skip() { at_ = std::min(text_.size(), text_.find_first_not_of(kSpaces, at_)); }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  // Members up to `end`; the opening bracket is next.
  std::optional<Json> members(char end, char sign, bool top) {
    ++at_;
    Json out = Json::object();
    while (!take(end)) {
      if (!out.empty() && !take(',')) return {};
      if (!out.empty() && take(end)) break;
      std::optional<std::string> key = quoted();
      if (!key && (top || notation_ == Notation::kGemma)) key = bare(sign);
      if (!key || !take(sign)) return {};
      std::optional<Json> one = value();
      if (!one) return {};
      out[*key] = std::move(*one);
    }
    return out;
  }

  std::optional<Json> list(char end) {
    ++at_;
    Json out = Json::array();
    while (!take(end)) {
      if (!out.empty() && !take(',')) return {};
      if (!out.empty() && take(end)) break;
      std::optional<Json> one = value();
      if (!one) return {};
      out.push_back(std::move(*one));
    }
    return out;
  }

  // A key without quotes.
  std::optional<std::string> bare(char sign) {
    skip();
    const size_t end = text_.find_first_of(std::string(kSpaces) + sign + ",(){}[]\"'", at_);
    if (end == std::string_view::npos || end == at_) return {};
    const std::string_view key = text_.substr(at_, end - at_);
    at_ = end;
    return std::string(key);
  }

  std::optional<std::string> quoted() {
    skip();
    bool more = false;
    const std::string_view quote = quote_at(text_, at_, notation_, more);
    if (quote.empty()) return {};
    const size_t begin = at_ + quote.size();
    size_t end = begin;
    for (; end < text_.size() && ends_text(text_, end, quote, notation_) != Ends::kYes; ++end)
      if (quote != kGemmaQuote && text_[end] == '\\') ++end;
    if (end >= text_.size()) return {};
    at_ = end + quote.size();
    const std::string_view inside = text_.substr(begin, end - begin);
    if (quote == kGemmaQuote) return std::string(inside);
    if (quote == "\"")
      if (const Json json = parse_written(text_.substr(begin - 1, end - begin + 2)); json.is_string())
        return json.get<std::string>();
    return unescaped(inside);
  }

  std::optional<Json> value() {
    if (++depth_ > kMaxValueDepth) return {};
    std::optional<Json> out;
    const char c = peek();
    if (c == '{') out = members('}', ':', false);
    else if (c == '[') out = list(']');
    else if (c == '(' && notation_ == Notation::kPython) out = list(')');
    else if (std::optional<std::string> text = quoted()) out = Json(std::move(*text));
    else out = word();
    --depth_;
    return out;
  }

  std::optional<Json> word() {
    const size_t end = std::min(text_.size(), text_.find_first_of(std::string(kSpaces) + ",:=(){}[]\"'", at_));
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    if (word == "True" || word == "False") return Json(word == "True");
    if (word == "None") return Json(nullptr);
    Json json = parse_written(word);
    if (json.is_discarded()) return {};
    return json;
  }

  std::string_view text_;
  Notation notation_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

size_t scan_value(std::string_view text, size_t begin, Notation notation, ValueScan& s) {
  for (s.at = std::max(s.at, begin); s.at < text.size(); ++s.at) {
    const char c = text[s.at];
    if (!s.quote.empty()) {
      if (s.escaped) {
        s.escaped = false;
      } else if (c == '\\' && s.quote != kGemmaQuote) {
        s.escaped = true;
      } else if (c == s.quote.front()) {
        const Ends ends = ends_text(text, s.at, s.quote, notation);
        if (ends == Ends::kMore) return std::string_view::npos;
        if (ends == Ends::kNo) continue;
        s.at += s.quote.size() - 1;
        s.quote = {};
      }
      continue;
    }
    bool more = false;
    s.quote = quote_at(text, s.at, notation, more);
    if (more) return std::string_view::npos;
    if (!s.quote.empty()) s.at += s.quote.size() - 1;
    else if (c == '{' || c == '[' || c == '(') s.depth += c != '(' || notation == Notation::kPython;
    else if (c == '}' || c == ']' || (c == ')' && notation == Notation::kPython))
      if (--s.depth <= 0) {
        const size_t end = s.at + 1;
        s = {};
        return end;
      }
  }
  return std::string_view::npos;
}

Json read_arguments(std::string_view text, Notation notation) {
  return notation == Notation::kJson ? parse_written(text) : Reader(text, notation).arguments();
}

std::string write_key(const std::string& key, Notation notation, bool top) {
  if (notation == Notation::kGemma) return key + ":";
  if (notation == Notation::kPython && top) return key + "=";
  return Json(key).dump() + ": ";
}

std::string write_value(const Json& value, Notation notation) {
  const bool python = notation == Notation::kPython;
  if (value.is_string() && notation == Notation::kGemma)
    return fmt::format("{0}{1}{0}", kGemmaQuote, value.get<std::string>());
  if (python && value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (python && value.is_null()) return "None";
  if (!value.is_structured()) return value.dump();
  std::string out;
  for (const auto& [key, one] : value.items()) {
    if (!out.empty()) out += notation == Notation::kGemma ? "," : ", ";
    out += (value.is_object() ? write_key(key, notation, false) : "") + write_value(one, notation);
  }
  return value.is_object() ? "{" + out + "}" : "[" + out + "]";
}

}  // namespace sx::server
