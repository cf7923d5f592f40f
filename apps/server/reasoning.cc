#include "server/reasoning.h"

#include <fmt/format.h>
#include <specextend/grammar.h>

#include <algorithm>
#include <cctype>

#include "server/tool_schema.h"
#include "server/tool_text.h"

namespace sx::server {
namespace {

constexpr size_t kTail = 32;  // tokens of a prompt that are looked at

struct Marks {
  std::string_view sign;  // in a template's source: it has these marks
  std::string_view open, close;
  std::string_view next{}, answer{};
};
// Where a template has the signs of several, the first is meant.
constexpr Marks kMarks[] = {
    {"<|channel|>analysis", "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant",
     "<|channel|>final<|message|>"},                                                             // gpt-oss
    {"<|channel>thought", "<|channel>thought", "<channel|>"},                                    // Gemma 4
    {"<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>", "", "<|START_RESPONSE|>"},  // Command R7B, A
    {"<|inner_prefix|>", "<|inner_prefix|>", "<|inner_suffix|>"},                                // Apertus
    {"open_tag('think')", "<|open|>think<|sep|>", "<|close|>think<|sep|>", "", "<|open|>response<|sep|>"},  // Kimi K3
    {"<seed:think>", "<seed:think>", "</seed:think>"},
    {"[/THINK]", "[THINK]", "[/THINK]"},                                         // Magistral, Ministral
    {"</think>", "<think>", "</think>"},                                         // Qwen, DeepSeek, GLM, and most others
    {"<|think|>", "<|think|>", "<|end|>", "<|begin|>assistant", "<|content|>"},  // Solar Open
    {"</thought>", "<thought>", "</thought>"},
};

// The longest end of `text` that may, with what follows, become `mark`.
size_t partial_end(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size)
    if (mark.starts_with(text.substr(text.size() - size))) return size;
  return 0;
}

size_t without_spaces_behind(std::string_view text) { return text.find_last_not_of(kSpaces) + 1; }

bool is_rule_char(char c) { return std::isalnum(uint8_t(c)) || c == '-' || c == '_'; }

// GBNF with `prefix` before the name of every rule: texts, classes, counts and comments stay as they are.
std::string with_prefix(std::string_view grammar, std::string_view prefix) {
  std::string out;
  char inside = 0;  // what ends the text, class, count or comment it is in
  for (size_t i = 0; i < grammar.size(); ++i) {
    const char c = grammar[i];
    if (inside) {
      if (c == '\\' && inside != '\n' && i + 1 < grammar.size()) out += grammar[i++];
      else if (c == inside) inside = 0;
      out += grammar[i];
      continue;
    }
    if (is_rule_char(c)) {
      out += prefix;
      for (; i < grammar.size() && is_rule_char(grammar[i]); ++i) out += grammar[i];
      --i;
      continue;
    }
    inside = c == '"' ? '"' : c == '[' ? ']' : c == '{' ? '}' : c == '#' ? '\n' : '\0';
    out += c;
  }
  return out;
}

}  // namespace

ReasoningStyle reasoning_style(std::string_view source) {
  for (const Marks& marks : kMarks)
    if (has(source, marks.sign))
      return {.open = std::string(marks.open),
              .close = std::string(marks.close),
              .control = marks.open[1] == '|',
              .next = std::string(marks.next),
              .answer = std::string(marks.answer)};
  return {};
}

ReasoningStyle reasoning_style(const Tokenizer& tokenizer) {
  ReasoningStyle style = reasoning_style(tokenizer.chat_template());
  if (style.any())
    style.control = !has(tokenizer.detokenize(tokenizer.tokenize(style.close, false, true), false), style.close);
  return style;
}

ReasoningStart reasoning_start(const Tokenizer& tokenizer, std::span<const Token> prompt, const ReasoningStyle& style) {
  const std::string text = tokenizer.detokenize(prompt.last(std::min(prompt.size(), kTail)), true, true);
  const std::string_view tail = std::string_view(text).substr(0, without_spaces_behind(text));
  if (tail.ends_with(style.open)) return ReasoningStart::kOpened;
  return tail.ends_with(style.close) && style.close != "<|end|>" ? ReasoningStart::kOver : ReasoningStart::kMaybe;
}

void append_prefill(std::string& prompt, const std::string& reasoning, const std::string& content,
                    const ReasoningStyle& style) {
  const std::string_view said = std::string_view(prompt).substr(0, without_spaces_behind(prompt));
  const bool opened = style.any() && said.ends_with(style.open);
  if (style.any() && !reasoning.empty()) prompt += (opened ? "" : style.open + "\n") + reasoning;
  if (content.empty()) return;
  if (style.any() && (opened || !reasoning.empty())) prompt += "\n" + style.close + "\n\n";
  prompt += content;
}

void close_thought(std::string& prompt, const ReasoningStyle& style) {
  const std::string_view said = std::string_view(prompt).substr(0, without_spaces_behind(prompt));
  if (style.any() && said.ends_with(style.open)) prompt += style.close;
}

std::string after_reasoning(const std::string& grammar, const ReasoningStyle& style, ReasoningStart start) {
  if (grammar.empty() || !style.any() || start == ReasoningStart::kOver) return grammar;
  const auto mark = [](const std::string& text) { return text.empty() ? "" : " @" + gbnf_quote(text); };
  const std::string thought = fmt::format("Thought-text{} [ \\t\\r\\n]{{0,8}}{}", mark(style.close), mark(style.next));
  std::string root = start == ReasoningStart::kOpened ? fmt::format("root ::= {}", thought)
                                                      : fmt::format("root ::= ({} {})?", mark(style.open), thought);
  if (!style.answer.empty()) root += fmt::format(" ({})?", mark(style.answer));
  root += " Answer-root\n";
  return root + raw_text_rules(style.close, "Thought-text") + with_prefix(grammar, "Answer-");
}

std::string either_grammar(const std::string& one, const std::string& other) {
  return "root ::= One-root | Other-root\n" + with_prefix(one, "One-") + "\n" + with_prefix(other, "Other-");
}

ReasoningSplitter::ReasoningSplitter(ReasoningStyle style, ReasoningStart start)
    : style_(std::move(style)),
      state_(!style_.any() || start == ReasoningStart::kOver ? State::kAnswer
             : start == ReasoningStart::kOpened              ? State::kOpened
                                                             : State::kBegin) {}

void ReasoningSplitter::drop(size_t size, bool thought) {
  held_.erase(0, size);
  if (thought) add_place(thoughts_, taken_, taken_ + size);
  taken_ += size;
}

// The first `size` bytes held are of the part it is in.
void ReasoningSplitter::give(Pieces& out, size_t size) {
  if (size == 0) return;
  const bool reasoning = state_ == State::kThought;
  if (out.empty() || out.back().reasoning != reasoning) out.push_back({reasoning, {}});
  out.back().text.append(held_, 0, size);
  drop(size, reasoning);
}

bool ReasoningSplitter::step_begin(bool last) {
  const size_t word = std::min(held_.size(), held_.find_first_not_of(kSpaces));
  const std::string_view rest = std::string_view(held_).substr(word);
  // A model may write the mark again that its template has written.
  const bool opens = rest.starts_with(style_.open);
  if (!opens && !last && std::string_view(style_.open).starts_with(rest)) return false;
  if (opens) drop(word + style_.open.size());
  state_ = opens || state_ == State::kOpened ? State::kThought : State::kAnswer;
  skip_spaces_ = state_ == State::kThought;
  return true;
}

bool ReasoningSplitter::step_thought(Pieces& out, bool last) {
  const std::string_view text = held_;
  if (const size_t end = text.find(style_.close); end != std::string_view::npos) {
    const size_t size = without_spaces_behind(text.substr(0, end));
    give(out, size);
    drop(end - size + style_.close.size());
    state_ = State::kAnswer, skip_spaces_ = true;
    return true;
  }
  give(out, without_spaces_behind(text.substr(0, text.size() - (last ? 0 : partial_end(text, style_.close)))));
  if (last) drop(held_.size());
  return false;
}

bool ReasoningSplitter::step_answer(Pieces& out, bool last) {
  const std::string_view text = held_;
  // Where the marks are control tokens nothing else can look like one, and a model may think again.
  const size_t again = style_.control ? text.find(style_.open) : std::string_view::npos;
  if (again == 0) {
    drop(style_.open.size());
    state_ = State::kThought, skip_spaces_ = true;
    return true;
  }
  const bool more = again != std::string_view::npos;
  give(out, more ? again : text.size() - (style_.control && !last ? partial_end(text, style_.open) : 0));
  return more;
}

// Decides something about the beginning of what is held; false: more text is needed, or nothing is left.
bool ReasoningSplitter::step(Pieces& out, bool last) {
  if (skip_spaces_) {
    drop(std::min(held_.size(), held_.find_first_not_of(kSpaces)));
    skip_spaces_ = held_.empty();
  }
  if (held_.empty()) return false;
  if (state_ == State::kThought) return step_thought(out, last);
  return state_ == State::kAnswer ? step_answer(out, last) : step_begin(last);
}

ReasoningSplitter::Pieces ReasoningSplitter::add(std::string_view text) {
  held_ += text;
  Pieces out;
  while (step(out, false)) {}
  return out;
}

ReasoningSplitter::Pieces ReasoningSplitter::finish() {
  Pieces out;
  while (step(out, true)) {}
  return out;
}

}  // namespace sx::server
