#include "cli/eval_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace sx::cli {
namespace {

using Json = nlohmann::json;

// Lengths that differ by so much count as reached: tokens at the edges of a cut join.
constexpr int kNear = 4;
constexpr int kTries = 12;

std::string string_of(const Json& line, const char* key, const std::string& where) {
  const auto found = line.find(key);
  if (found == line.end() || found->is_null()) return {};
  if (!found->is_string()) throw Error(fmt::format("{}: \"{}\" is not a string", where, key));
  return found->get<std::string>();
}

std::vector<Message> messages_of(const Json& line, const std::string& where) {
  std::vector<Message> out;
  const Json& list = line["messages"];
  if (!list.is_array() || list.empty()) throw Error(fmt::format("{}: \"messages\" is not a list of messages", where));
  for (const Json& m : list) {
    if (!m.is_object() || !m.contains("role") || !m.contains("content") || !m["role"].is_string() ||
        !m["content"].is_string())
      throw Error(fmt::format("{}: a message needs the strings \"role\" and \"content\"", where));
    out.push_back({m["role"], m["content"]});
  }
  return out;
}

EvalPrompt prompt_of(const Json& line, const std::string& where, size_t number) {
  EvalPrompt p;
  p.where = where;
  int kinds = 0;
  for (const char* kind : {"prompt", "text", "messages"}) kinds += line.contains(kind);
  if (kinds != 1) throw Error(fmt::format("{}: expected one of \"prompt\", \"text\" and \"messages\"", where));
  if (line.contains("messages")) p.messages = messages_of(line, where);
  p.document = line.contains("text");
  p.prompt = string_of(line, p.document ? "text" : "prompt", where);
  if (p.messages.empty() && p.prompt.empty()) throw Error(fmt::format("{}: the prompt is empty", where));
  p.instruction = string_of(line, "instruction", where);
  if (!p.instruction.empty() && !p.document)
    throw Error(fmt::format("{}: \"instruction\" goes with \"text\": it stands before the document", where));
  p.category = string_of(line, "category", where);
  if (const auto id = line.find("id"); id != line.end() && id->is_number_integer()) p.id = id->dump();
  else p.id = string_of(line, "id", where);
  if (p.id.empty()) p.id = std::to_string(number);
  if (line.contains("reference") && !line["reference"].is_null()) p.reference = string_of(line, "reference", where);
  return p;
}

std::vector<Token> rendered(const std::vector<Message>& messages, const Tokenizer& tokenizer) {
  return tokenizer.tokenize(tokenizer.apply_template(messages), false, true);
}

// The tokens of a text with `kept` of its tokens left: the first ones (documents), or as many of both ends.
std::string shortened(const std::vector<Token>& tokens, int kept, bool from_end, const Tokenizer& tokenizer) {
  const size_t n = std::min(tokens.size(), size_t(std::max(0, kept)));
  if (n == tokens.size() || from_end) return tokenizer.detokenize(std::span(tokens).first(n));
  const size_t head = n - n / 2;
  return tokenizer.detokenize(std::span(tokens).first(head)) +
         tokenizer.detokenize(std::span(tokens).last(n / 2), false, true);
}

}  // namespace

std::vector<EvalPrompt> parse_eval_data(std::string_view jsonl, const std::string& name) {
  std::vector<EvalPrompt> prompts;
  std::istringstream lines{std::string(jsonl)};
  int number = 0;
  for (std::string text; std::getline(lines, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("'{}' line {}", name, number);
    Json line;
    try {
      line = Json::parse(text);
    } catch (const Json::parse_error& e) {
      throw Error(fmt::format("{}: not JSON (at byte {} of the line)", where, e.byte));
    }
    if (!line.is_object()) throw Error(fmt::format("{}: expected a JSON object", where));
    prompts.push_back(prompt_of(line, where, prompts.size() + 1));
  }
  if (prompts.empty()) throw Error(fmt::format("'{}' has no prompts", name));
  return prompts;
}

std::vector<EvalPrompt> joined(std::vector<std::vector<EvalPrompt>> sets, int limit) {
  std::vector<EvalPrompt> all;
  std::set<std::string> ids;
  for (auto& set : sets)
    for (EvalPrompt& p : set) {
      if (!ids.insert(p.id).second) throw Error(fmt::format("{}: id '{}' is there twice", p.where, p.id));
      if (limit <= 0 || all.size() < size_t(limit)) all.push_back(std::move(p));
    }
  return all;
}

std::vector<Token> eval_tokens(const EvalPrompt& prompt, int length, const EvalPromptOptions& options,
                               const Tokenizer& tokenizer) {
  const std::string& own = prompt.instruction.empty() ? options.instruction : prompt.instruction;
  const std::string before = prompt.document && !own.empty() ? own + "\n\n" : "";
  std::vector<Message> messages = prompt.messages;
  if (messages.empty()) messages.push_back({"user", ""});
  const bool chat = options.chat || !prompt.messages.empty();
  const auto longest = std::max_element(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return a.content.size() < b.content.size();
  });
  const std::string whole = prompt.messages.empty() ? prompt.prompt : longest->content;
  const auto tokens_with = [&](const std::string& text) {
    if (!chat) return tokenizer.tokenize(before + text, true, true);
    longest->content = before + text;
    return rendered(messages, tokenizer);
  };
  std::vector<Token> tokens = tokens_with(whole);
  if (length == 0) return tokens;
  if (int(tokens.size()) < length) return {};
  const std::vector<Token> content = tokenizer.tokenize(whole, false, true);
  int kept = int(content.size()) + length - int(tokens.size()), best = 0;
  std::vector<Token> found;
  for (int i = 0; i < kTries && kept > 0; ++i) {
    tokens = tokens_with(shortened(content, kept, prompt.document, tokenizer));
    const int size = int(tokens.size());
    if (size <= length && size > best) best = size, found = tokens;
    if (size <= length && size > length - kNear) break;
    kept += length - size - (size > length);
  }
  if (found.empty())
    throw Error(fmt::format("{}: the prompt cannot be cut to {} tokens: instruction and template alone have more",
                            prompt.where, length));
  return found;
}

}  // namespace sx::cli
