// How calls are found in a text that comes in pieces.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "server/tool_schema.h"
#include "server/tool_syntax.h"
#include "server/tool_text.h"
#include "server/tool_values.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kPythonTag = "<|python_tag|>";  // Llama may put it before a call
constexpr size_t kMostParsedCalls = 128;
constexpr size_t kMostName = 256;  // bytes of a name, a key or an id; with more it is none

// A mark without the white space that models write around it.
std::string_view bare(std::string_view mark) {
  const size_t first = mark.find_first_not_of(kSpaces);
  return first == std::string_view::npos ? std::string_view()
                                         : mark.substr(first, mark.find_last_not_of(kSpaces) - first + 1);
}

Json parse(std::string_view text) {  // null where it is none
  Json json = parse_written(text);
  return json.is_discarded() ? Json() : json;
}

// Whether `text` could, with what follows, begin with `mark`.
bool possible(std::string_view text, std::string_view mark) {
  return !mark.empty() && mark.starts_with(text.substr(0, mark.size()));
}

// The same with the white space before it: it belongs to a call if there is one.
size_t with_spaces_before(std::string_view text, size_t at) {
  while (at > 0 && has(kSpaces, text.substr(at - 1, 1))) --at;
  return at;
}

// One call as the model wrote it, `keyed`: as {NAME: ARGUMENTS}; arguments that are a text of JSON are taken, too.
bool read_call(const Json& json, const std::vector<std::string>& names, bool keyed, ToolCall& call) {
  if (!json.is_object() || (keyed && json.size() != 1)) return false;
  auto name = json.find("name");
  if (name == json.end()) name = json.find("tool_name");
  if (!keyed && (name == json.end() || !name->is_string())) return false;
  call.name = keyed ? json.begin().key() : name->get<std::string>();
  if (std::find(names.begin(), names.end(), call.name) == names.end()) return false;
  auto arguments = keyed ? json.begin() : json.find("arguments");
  if (arguments == json.end()) arguments = json.find("parameters");
  Json value = arguments == json.end() || arguments->is_null() ? Json::object() : *arguments;
  if (value.is_string()) value = parse(value.get_ref<const std::string&>());
  if (!value.is_object()) return false;
  call.arguments = dump(value);
  return true;
}

}  // namespace

std::string call_id(ToolFormat format) {
  thread_local std::random_device device;
  const bool mistral =
      format == ToolFormat::kMistral || format == ToolFormat::kMistralNamed || format == ToolFormat::kMistralCallId;
  if (mistral) return fmt::format("{:08x}{:01x}", device(), device() % 16);  // its templates want nine characters
  return fmt::format("call_{:08x}{:08x}{:08x}", device(), device(), device());
}

ToolParser::ToolParser(ToolFormat format, std::vector<std::string> names, bool parallel, std::string tools,
                       bool in_pieces)
    : format_(format), names_(std::move(names)), parallel_(parallel), tools_(std::move(tools)), in_pieces_(in_pieces) {}

bool ToolParser::known(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::vector<ToolCall> ToolParser::read_calls(std::string_view text) const {
  const Json json = parse(text);
  std::vector<ToolCall> calls;
  const auto take = [&](const Json& one) {
    ToolCall call{call_id(format_), {}, {}};
    if (!read_call(one, names_, syntax_of(format_).keyed, call)) return false;
    calls.push_back(std::move(call));
    return true;
  };
  if (json.is_object()) take(json);
  if (json.is_array())
    for (const Json& one : json)
      if (calls.size() >= kMostParsedCalls || !take(one)) return {};  // one of them broken: all are text
  return calls;
}

void ToolParser::take(size_t size) {
  held_.erase(0, size);
  taken_ += size;
  scan_ = {};
  marked_ = {};
  telling_ = {};
  told_.clear();
}

// The first `size` bytes held are text for the user.
void ToolParser::content(Output& out, size_t size) {
  if (size > 0) out.parts.push_back({.text = held_.substr(0, size), .places = {{taken_, taken_ + size}}});
  take(size);
}

// What looked like the beginning of a call, a mark of `size` bytes, is text, and whatever follows is looked at anew. A
// mark that is shown to nobody is dropped.
bool ToolParser::refuse(Output& out, size_t size) {
  if (telling_.on) return deliver(out, {}, held_.size()), true;
  plain_ = plain_ || format_ == ToolFormat::kLlama;
  const size_t at = skip_spaces(held_, 0);
  for (const std::string_view mark : syntax_of(format_).hidden)
    if (std::string_view(held_).substr(at).starts_with(mark)) {
      content(out, at);
      take(mark.size());
      return true;
    }
  content(out, std::max<size_t>(size, 1));
  return true;
}

// The first `end` bytes held are these calls.
void ToolParser::deliver(Output& out, std::vector<ToolCall> found, size_t end) {
  flush(out);
  if (found.empty()) ++calls_;  // it was told, and is broken
  for (size_t i = 0; i < found.size(); ++i) {
    ToolCall& one = found[i];
    if ((parallel_ || calls_ == 0) && (i >= told_.size() || !told_[i]))
      out.parts.push_back({.kind = AnswerPart::Kind::kCall, .call = std::move(one)});
    ++calls_;
  }
  take(end);
}

// held_ has the opening mark up to `begin`; a value must follow. True: something was decided.
bool ToolParser::json_call(Output& out, size_t begin, bool last) {
  const std::string_view text = held_;
  const size_t value = skip_spaces(text, begin);
  if (value == text.size()) return last ? refuse(out, begin) : false;
  if (text[value] != '{' && text[value] != '[') return refuse(out, begin);
  tell_json_call(value);
  size_t end = scan_value(text, value, CallSyntax::Notation::kJson, scan_);
  if (end == std::string::npos) return last ? refuse(out, begin) : false;
  std::vector<ToolCall> found = read_calls(text.substr(value, end - value));
  if (found.empty() && !telling_.on) return refuse(out, begin);
  if (const std::string_view mark = bare(syntax_of(format_).close); !mark.empty()) {
    const size_t next = skip_spaces(text, end);
    const std::string_view rest = text.substr(next, mark.size());
    if (rest == mark) end = next + mark.size();
    else if (!mark.starts_with(rest) && !telling_.on) return refuse(out, begin);
    else if (mark.starts_with(rest) && !last) return false;
    else if (mark.starts_with(rest)) end = text.size();  // the answer ended before the closing mark did
  }
  deliver(out, std::move(found), end);
  return true;
}

// Whether the next text, white space aside, is a mark; takes it if so.
ToolParser::Seen ToolParser::see(std::string_view mark) {
  size_t at = marked_.at;
  for (const char c : mark) {
    if (has(kSpaces, std::string_view(&c, 1))) continue;
    at = skip_spaces(held_, at);
    if (at == held_.size()) return Seen::kMore;
    if (held_[at++] != c) return Seen::kNo;
  }
  marked_.at = at;
  return Seen::kYes;
}

// All text before a mark, at most `most` bytes; takes both.
ToolParser::Seen ToolParser::text_until(std::string_view mark, size_t most, std::string& text) {
  mark = bare(mark);
  const size_t begin = marked_.at, end = held_.find(mark, std::max(marked_.searched, begin));
  if (end == std::string::npos) {
    marked_.searched = std::max(begin, held_.size() - std::min(held_.size(), mark.size() - 1));
    return held_.size() - begin > most + mark.size() ? Seen::kNo : Seen::kMore;
  }
  if (end - begin > most) return Seen::kNo;
  text = held_.substr(begin, end - begin);
  marked_.at = end + mark.size();
  return Seen::kYes;
}

ToolParser::Seen ToolParser::read_name() {
  const CallSyntax& syntax = syntax_of(format_);
  const size_t before = marked_.at;
  std::string id;
  if (syntax.id_first)
    if (const Seen seen = text_until(syntax.id, kMostName, id); seen != Seen::kYes) return seen;
  const size_t begin = skip_spaces(held_, marked_.at);
  size_t end = begin;
  while (end < held_.size() && is_name_byte(held_[end])) ++end;
  marked_.at = before;
  if (end - begin > kMostName) return Seen::kNo;
  if (end == held_.size()) return Seen::kMore;
  const std::string written = held_.substr(begin, end - begin);
  const bool prefixed = !syntax.name_begin.empty() && !known(written) && written.starts_with(syntax.name_begin);
  marked_.call = {bare(id).empty() ? call_id(format_) : std::string(bare(id)),
                  written.substr(prefixed ? syntax.name_begin.size() : 0),
                  {}};
  marked_.written = written;
  marked_.values.clear();
  marked_.at = end;
  return known(marked_.call.name) ? Seen::kYes : Seen::kNo;
}

ToolParser::Seen ToolParser::read_end_of_name() {
  const CallSyntax& syntax = syntax_of(format_);
  std::string text;
  if (!syntax.filler.empty()) return text_until(syntax.name_end, kMostName, text);
  if (syntax.id.empty() || syntax.id_first) return see(syntax.name_end);
  const size_t before = marked_.at;
  const Seen id = see(syntax.id);
  if (id == Seen::kYes) {
    const Seen seen = text_until(syntax.name_end, kMostName, text);
    if (seen != Seen::kYes) marked_.at = before;
    const std::string_view given = bare(text);
    if (seen != Seen::kYes || given.empty()) return seen;
    if (syntax.id_use == CallSyntax::Id::kGiven) marked_.call.id = given;
    if (syntax.id_use == CallSyntax::Id::kWithName)
      marked_.call.id = fmt::format("{}{}{}", marked_.written, syntax.id, given);
    return seen;
  }
  const Seen end = see(syntax.name_end);
  return end == Seen::kNo ? id : end;
}

ToolParser::Seen ToolParser::read_whole_arguments() {
  const CallSyntax::Notation notation = syntax_of(format_).notation;
  const size_t begin = skip_spaces(held_, marked_.at);
  if (begin == held_.size()) return Seen::kMore;
  if (held_[begin] != (notation == CallSyntax::Notation::kPython ? '(' : '{')) return Seen::kNo;
  if (notation == CallSyntax::Notation::kJson && (telling_.on || begin_telling(marked_.call, begin))) tell_json();
  const size_t end = scan_value(held_, begin, notation, scan_);
  if (end == std::string::npos) return Seen::kMore;
  const Json json = read_arguments(std::string_view(held_).substr(begin, end - begin), notation);
  if (!json.is_object() && !telling_.on) return Seen::kNo;
  marked_.call.arguments = dump(json);
  marked_.at = end;
  return Seen::kYes;
}

// The key of the next argument, with what stands before its value.
ToolParser::Seen ToolParser::read_key() {
  const CallSyntax& syntax = syntax_of(format_);
  const size_t before = marked_.at;
  Seen seen = see(syntax.key);
  if (seen != Seen::kYes) return seen;
  seen = text_until(syntax.key_end, kMostName, marked_.key);
  if (seen == Seen::kYes)
    seen = syntax.kind == CallSyntax::Kind::kNone ? see(syntax.value_begin)
                                                  : text_until(syntax.value_begin, kMostName, marked_.kind);
  if (seen != Seen::kYes) marked_.at = before, marked_.searched = 0;
  else begin_value();
  return seen;
}

ToolParser::Seen ToolParser::read_value() {
  std::string text;
  const Seen seen = text_until(syntax_of(format_).value_end, std::string::npos / 2, text);
  if (seen == Seen::kMore) tell_value();
  if (seen != Seen::kYes) return seen;
  if (syntax_of(format_).breaks) {
    if (text.starts_with('\n')) text.erase(0, 1);
    if (text.ends_with('\n')) text.pop_back();
  }
  marked_.values.push_back({std::exchange(marked_.key, {}), std::exchange(marked_.kind, {}), std::move(text)});
  end_value(marked_.values.back().text, value_of(marked_.values.back(), in_pieces_ ? parameters() : Json()));
  return Seen::kYes;
}

// The schema of the arguments of the call that is being read.
Json ToolParser::parameters() const {
  for (const Json& tool : parse(tools_))
    if (tool.at("function").at("name") == marked_.call.name) return tool.at("function").value("parameters", Json());
  return {};
}

Json ToolParser::value_of(const Marked::Value& value, const Json& parameters) {
  const bool is_text = value.kind == "string" || value.kind == "true";
  Json json = is_text              ? Json(value.text)
              : value.kind.empty() ? Json(Json::value_t::discarded)
                                   : parse_written(value.text);
  return json.is_discarded() ? argument_value(value.text, parameters, value.key) : json;
}

// The arguments that were written one by one, as JSON.
std::string ToolParser::arguments() const {
  const Json schema = parameters();
  Json out = Json::object();
  for (const Marked::Value& value : marked_.values) out[value.key] = value_of(value, schema);
  return dump(out);
}

// Reads the part of a call that `phase` stands for, and moves on to the next.
ToolParser::Seen ToolParser::go_on(Phase& phase) {
  const CallSyntax& syntax = syntax_of(format_);
  const bool named = syntax.body == CallSyntax::Body::kNamed;
  const auto next = [&](Seen seen, Phase to) {
    if (seen == Seen::kYes) phase = to;
    return seen;
  };
  switch (phase) {
    case Phase::kOpen: return next(see(syntax.each), Phase::kName);
    case Phase::kName: return next(read_name(), Phase::kNameEnd);
    case Phase::kNameEnd: return next(read_end_of_name(), named ? Phase::kArguments : Phase::kKey);
    case Phase::kArguments: return next(read_whole_arguments(), Phase::kCallEnd);
    case Phase::kKey: {
      const Seen key = read_key();
      if (key == Seen::kYes) return next(key, Phase::kValue);
      // A format without a mark at the end of a call ends it with the block.
      const size_t before = marked_.at;
      const Seen end = see(syntax.each_end.empty() ? syntax.close : syntax.each_end);
      marked_.at = before;
      if (end == Seen::kYes) marked_.call.arguments = arguments();
      if (end == Seen::kYes && telling_.on) tell("}");
      return end == Seen::kNo ? key : next(end, Phase::kCallEnd);
    }
    case Phase::kValue: return next(read_value(), Phase::kKey);
    case Phase::kCallEnd: {
      const Seen seen = see(syntax.each_end);
      if (seen == Seen::kYes) {
        marked_.done.push_back(std::exchange(marked_.call, {}));
        marked_.end = marked_.at;
        telling_ = {};
      }
      return next(seen, Phase::kClose);
    }
    case Phase::kClose: {
      if (syntax.close.empty()) return Seen::kNo;
      const Seen close = see(syntax.close);
      if (close == Seen::kYes) marked_.end = marked_.at;
      const std::string_view again = syntax.each.empty() ? syntax.separator : syntax.each;
      if (close == Seen::kYes || again.empty() || marked_.done.size() >= kMostParsedCalls) return close;
      const Seen each = see(again);
      return each == Seen::kNo ? close : next(each, Phase::kName);
    }
  }
  return Seen::kNo;
}

// held_ has the opening mark (or, if not `opened`, nothing of it) up to `begin`; a name and arguments between marks
// must follow.
bool ToolParser::marked_call(Output& out, size_t begin, bool opened, bool last) {
  Phase& phase = marked_.phase;
  if (phase == Phase::kOpen && marked_.at == 0) {
    marked_.at = begin;
    if (!opened) phase = Phase::kName;  // the mark was that of a call
  }
  // Some models know an older form as well.
  if (syntax_of(format_).notation == CallSyntax::Notation::kJson && (phase == Phase::kOpen || phase == Phase::kName)) {
    const size_t value = skip_spaces(held_, begin);
    if (value < held_.size() && (held_[value] == '{' || held_[value] == '[') && marked_.at == begin)
      return json_call(out, begin, last);
  }
  for (;;) {
    const bool closing = phase == Phase::kClose;
    const Seen seen = go_on(phase);
    if (seen == Seen::kYes && !closing) continue;
    if (seen == Seen::kYes && phase != Phase::kClose) continue;  // one more call in the block
    if (seen == Seen::kMore && !last) return false;
    if (telling_.on) marked_.done.push_back(marked_.call), marked_.end = last ? held_.size() : marked_.at;
    // Whole calls are calls, also where the answer ended before its closing mark or goes on with something else.
    if (marked_.done.empty()) return refuse(out, begin);
    deliver(out, std::move(marked_.done), seen == Seen::kMore && closing ? held_.size() : marked_.end);
    return true;
  }
}

// A call is the whole answer; several are separated by semicolons.
bool ToolParser::step_llama(Output& out, bool last) {
  const std::string_view text = held_;
  size_t at = std::min(text.size(), text.find_first_not_of(calls_ ? " \t\r\n;" : kSpaces));
  const std::string_view rest = text.substr(at, kPythonTag.size());
  if (rest == kPythonTag) at += kPythonTag.size();
  else if (kPythonTag.starts_with(rest)) {
    if (!last) return false;
    if (calls_ && rest.empty()) take(held_.size());
    else plain_ = true;
    return true;
  }
  const size_t value = skip_spaces(text, at);
  if (value == text.size() && !last) return false;
  if (value < text.size() && (text[value] == '{' || text[value] == '[')) return json_call(out, at, last);
  return plain_ = true;
}

// Where what is held may begin a call, or, `hidden`, nothing but a mark that is shown to nobody. A block begins with
// its mark; models forget it now and then, and begin with that of a call.
size_t ToolParser::next_mark(bool& hidden) const {
  const CallSyntax& syntax = syntax_of(format_);
  const std::string_view open = bare(syntax.open), each = bare(syntax.each), text = held_;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    if (possible(rest, open) || possible(rest, each)) return at;
    hidden = std::any_of(syntax.hidden.begin(), syntax.hidden.end(),
                         [&](std::string_view mark) { return possible(rest, mark); });
    if (hidden) return at;
  }
  return text.size();
}

// Decides something about the beginning of what is held; false: more text is needed, or nothing is left.
bool ToolParser::step(Output& out, bool last) {
  if (held_.empty()) return false;
  if (plain_) return content(out, held_.size()), true;
  if (format_ == ToolFormat::kLlama) return step_llama(out, last);
  const CallSyntax& syntax = syntax_of(format_);
  const std::string_view open = bare(syntax.open), each = bare(syntax.each);
  bool hidden = false;
  const size_t at = next_mark(hidden), begin = hidden ? at : with_spaces_before(held_, at);
  if (begin > 0) return content(out, begin), true;
  const std::string_view rest = std::string_view(held_).substr(at);
  if (hidden)
    for (const std::string_view mark : syntax.hidden)
      if (rest.starts_with(mark)) return take(mark.size()), true;
  if (!open.empty() && rest.starts_with(open)) {
    const size_t behind = at + open.size();
    return syntax.body == CallSyntax::Body::kJson ? json_call(out, behind, last) : marked_call(out, behind, true, last);
  }
  if (!each.empty() && rest.starts_with(each)) return marked_call(out, at + each.size(), false, last);
  if (!last) return false;
  if (calls_ && held_.find_first_not_of(kSpaces) == std::string::npos) return take(held_.size()), true;
  return content(out, held_.size()), true;
}

std::string ToolParser::Output::content() const {
  std::string text;
  for (const AnswerPart& part : parts)
    if (part.kind == AnswerPart::Kind::kContent) text += part.text;
  return text;
}

std::vector<ToolCall> ToolParser::Output::calls() const {
  std::vector<ToolCall> all;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kCall) all.push_back(part.call);
    if (part.kind == AnswerPart::Kind::kArguments) all.back().arguments += part.text;
  }
  return all;
}

ToolParser::Output ToolParser::add(std::string_view text) {
  held_ += text;
  Output out;
  while (step(out, false)) {}
  flush(out);
  out.taken = taken_;
  return out;
}

ToolParser::Output ToolParser::finish() {
  Output out;
  while (step(out, true)) {}
  flush(out);
  out.taken = taken_;
  return out;
}

}  // namespace sx::server
