// Calls that are told before they are whole: the name as soon as it is known, the arguments as they come.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "server/tool_schema.h"
#include "server/tool_syntax.h"
#include "server/tool_text.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

// A text as JSON spells it between its quotes.
std::string spelt(const std::string& text) {
  const std::string quoted = dump(text);
  return quoted.substr(1, quoted.size() - 2);
}

// Takes a text without escapes that begins at `at`; false: there is none, or not all of it.
bool read_text(std::string_view text, size_t& at, std::string& out) {
  at = skip_spaces(text, at);
  if (at == text.size() || text[at] != '"') return false;
  const size_t end = text.find_first_of("\"\\", at + 1);
  if (end == std::string_view::npos || text[end] != '"') return false;
  out = text.substr(at + 1, end - at - 1);
  at = end + 1;
  return true;
}

bool read_sign(std::string_view text, size_t& at, char sign) {
  at = skip_spaces(text, at);
  return at < text.size() && text[at++] == sign;
}

}  // namespace

bool ToolParser::begin_telling(const ToolCall& call, size_t arguments) {
  const size_t number = marked_.done.size();  // in its block
  if (!in_pieces_ || (!parallel_ && calls_ + number > 0)) return false;
  pieces_.push_back({.kind = AnswerPart::Kind::kCall, .call = {call.id, call.name, {}}});
  told_.resize(number + 1, false);
  told_[number] = true;
  telling_ = {.on = true, .at = arguments};
  return true;
}

void ToolParser::tell(std::string text) {
  if (text.empty()) return;
  if (pieces_.empty()) pieces_.push_back({.kind = AnswerPart::Kind::kArguments});
  AnswerPart& last = pieces_.back();
  (last.kind == AnswerPart::Kind::kCall ? last.call.arguments : last.text) += text;
}

void ToolParser::flush(Output& out) {
  std::move(pieces_.begin(), pieces_.end(), std::back_inserter(out.parts));
  pieces_.clear();
}

// The object of a call, or the first of a list of them: its name and where its arguments begin.
bool ToolParser::find_arguments(size_t at, ToolCall& call, size_t& arguments) const {
  const std::string_view text = held_;
  if (text[at] == '[') at = skip_spaces(text, at + 1);
  if (!read_sign(text, at, '{')) return false;
  for (std::string key, value; read_text(text, at, key) && read_sign(text, at, ':');) {
    at = skip_spaces(text, at);
    if (key == "arguments" || key == "parameters") {
      arguments = at;
      return at < text.size() && text[at] == '{' && known(call.name);
    }
    if (!read_text(text, at, value)) return false;
    if (key == "name" || key == "tool_name") call.name = value;
    if (!read_sign(text, at, ',')) return false;
  }
  return false;
}

void ToolParser::tell_json_call(size_t value) {
  if (!in_pieces_ || syntax_of(format_).keyed) return;
  ToolCall call{call_id(format_), {}, {}};
  size_t arguments = 0;
  if (!telling_.on && !(find_arguments(value, call, arguments) && begin_telling(call, arguments))) return;
  tell_json();
}

// What is there of the arguments, without the white space that means nothing.
void ToolParser::tell_json() {
  std::string more;
  Telling& t = telling_;
  while (t.at < held_.size() && (t.depth > 0 || !t.some)) {
    const char c = held_[t.at++];
    if (t.in_text) {
      if (uint8_t(c) < 0x20) {
        more += spelt(std::string(1, c));
        continue;
      }
      t.in_text = t.escaped || c != '"';
      t.escaped = !t.escaped && c == '\\';
    } else if (kSpaces.find(c) != std::string_view::npos) {
      continue;
    } else {
      t.in_text = c == '"';
      t.depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      t.some = true;
    }
    more += c;
  }
  tell(std::move(more));
}

// Between marks: a value follows.
void ToolParser::begin_value() {
  if (!in_pieces_) return;
  if (!telling_.on && begin_telling(marked_.call, 0)) tell("{");
  telling_.value_begun = false;
  telling_.value_told = 0;
  telling_.is_text = marked_.kind.empty() ? is_text_argument(parameters(), marked_.key)
                                          : marked_.kind == "string" || marked_.kind == "true";
}

// As much of a text as is no part of the mark behind it.
void ToolParser::tell_value() {
  Telling& t = telling_;
  if (!t.on || !t.is_text) return;
  const CallSyntax& syntax = syntax_of(format_);
  const size_t begin = marked_.at + (syntax.breaks && held_[std::min(marked_.at, held_.size() - 1)] == '\n');
  size_t end = held_.size() - std::min(held_.size(), syntax.value_end.size() + 1);
  while (end > begin && (uint8_t(held_[end]) & 0xC0) == 0x80) --end;
  if (end <= begin + t.value_told) return;
  if (!std::exchange(t.value_begun, true)) tell((t.some ? "," : "") + dump(marked_.key) + ":\"");
  t.some = true;
  tell(spelt(held_.substr(begin + t.value_told, end - begin - t.value_told)));
  t.value_told = end - begin;
}

void ToolParser::end_value(const std::string& text, const Json& value) {
  Telling& t = telling_;
  if (!t.on) return;
  if (t.value_begun) return tell(spelt(text.substr(std::min(text.size(), t.value_told))) + "\"");
  tell((t.some ? "," : "") + dump(marked_.values.back().key) + ":" + dump(value));
  t.some = true;
}

}  // namespace sx::server
