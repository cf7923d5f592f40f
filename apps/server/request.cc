#include "server/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "server/request_parts.h"

namespace sx::server {

const Json* field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool flag_field(const Json& object, const char* name, bool otherwise) {
  const Json* value = field(object, name);
  if (value && !value->is_boolean()) throw bad_request(fmt::format("'{}' must be true or false", name), name);
  return value ? value->get<bool>() : otherwise;
}

std::string text_field(const Json& object, const char* name) {
  const Json* value = field(object, name);
  if (!value || !value->is_string()) throw bad_request(fmt::format("'{}' must be there and a string", name), name);
  return value->get<std::string>();
}

double number_field(const Json& object, const char* name, double otherwise, double low, double high) {
  const Json* value = field(object, name);
  if (!value) return otherwise;
  const double number = value->is_number() ? value->get<double>() : low - 1;
  if (!value->is_number() || !(number >= low && number <= high))
    throw bad_request(fmt::format("'{}' must be a number from {} to {}", name, low, high), name);
  return number;
}

int integer_field(const Json& object, const char* name, int otherwise, int low, int high) {
  const Json* value = field(object, name);
  if (!value) return otherwise;
  const std::optional<int64_t> number = whole_number(*value);
  if (!number || *number < low || *number > high)
    throw bad_request(fmt::format("'{}' must be a whole number from {} to {}", name, low, high), name);
  return int(*number);
}

std::optional<int64_t> whole_number(const Json& value) {
  // Languages with one kind of number may write 16.0, and JSON Schema calls that an integer; beyond 2^53 it need not be
  // the number meant.
  constexpr double kExact = 1ull << 53;
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(number >= -kExact && number <= kExact) || number != double(int64_t(number))) return std::nullopt;
    return int64_t(number);
  }
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max());
  return value.is_number_integer() && !huge ? std::optional(value.get<int64_t>()) : std::nullopt;
}

namespace {

// Reads a body without keeping it: bodies that would take many times their size, or whose nesting would exhaust the
// stack of whoever walks them, are refused before anything is made of them. What is broken is left to the parser
// proper.
class BodyBounds final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return number(); }
  bool boolean(bool) override { return number(); }
  bool number_integer(number_integer_t) override { return number(); }
  bool number_unsigned(number_unsigned_t) override { return number(); }
  bool number_float(number_float_t, const string_t&) override { return number(); }
  bool string(string_t&) override { return part(); }
  bool binary(binary_t&) override { return part(); }
  bool start_object(size_t) override { return enter(); }
  bool start_array(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t&) override {
    if (++names_.back() > kMostNames)
      throw bad_request(fmt::format("an object of the body has more than {} names", kMostNames));
    return part();
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool number() {
    if (++numbers_ > kMostNumbers) throw bad_request(fmt::format("the body has more than {} numbers", kMostNumbers));
    return true;
  }
  bool part() {
    if (++parts_ > kMostParts)
      throw bad_request(fmt::format("the body has more than {} lists, objects, names and texts", kMostParts));
    return true;
  }
  bool enter() {
    names_.push_back(0);
    if (names_.size() > kMaxDepth) throw bad_request(fmt::format("JSON nested deeper than {} levels", kMaxDepth));
    return part();
  }
  bool leave() {
    names_.pop_back();
    return true;
  }

  size_t numbers_ = 0, parts_ = 0;
  std::vector<size_t> names_;  // of the objects that are open
};

}  // namespace

Json parse_object(std::string_view body) {
  BodyBounds bounds;
  Json::sax_parse(body, &bounds);
  Json parsed;
  try {
    parsed = Json::parse(body);
  } catch (const Json::exception& e) { throw bad_request(fmt::format("broken JSON: {}", e.what())); }
  if (!parsed.is_object()) throw bad_request("the body must be a JSON object");
  return parsed;
}

std::vector<Token> parse_tokens(const Json& list, const std::string& name, int vocab) {
  std::vector<Token> tokens;
  if (!list.is_array()) throw bad_request(fmt::format("'{}' must be a list of token ids", name), name);
  for (const Json& one : list) {
    const std::optional<int64_t> token = whole_number(one);
    if (!token) throw bad_request(fmt::format("'{}' must hold token ids from 0 to {}", name, vocab - 1), name);
    if (*token < 0 || *token >= vocab)
      throw bad_request(
          fmt::format("'{}' must hold token ids from 0 to {}: {} is out of vocabulary", name, vocab - 1, *token), name);
    tokens.push_back(Token(*token));
  }
  return tokens;
}

namespace {

ApiError wrong_prompt(const char* why) { return bad_request(fmt::format("'prompt' {}", why), "prompt"); }

// A text, a list of tokens, or, where `mixed` is allowed, a list of both.
Prompt read_prompt(const Json& given, const Limits& limits, bool mixed) {
  constexpr const char* kWhat = "must be a string or a list of token ids that is not empty";
  if (given.is_string()) return {{given.get<std::string>(), {}, true}};
  if (mixed && given.is_object()) {  // llama.cpp's form of a text with images
    if (!is_off(field(given, "multimodal_data"))) throw wrong_prompt("has 'multimodal_data': only texts are taken");
    return {{text_field(given, "prompt_string"), {}, true}};
  }
  if (!given.is_array() || given.empty()) throw wrong_prompt(kWhat);
  if (!mixed) return {{{}, parse_tokens(given, "prompt", limits.vocab), false}};
  Prompt prompt;
  for (const Json& one : given) {
    if (one.is_string()) {
      prompt.push_back({one.get<std::string>(), {}, true});
      continue;
    }
    const Token token = parse_tokens(Json::array({one}), "prompt", limits.vocab).front();
    if (prompt.empty() || prompt.back().is_text) prompt.push_back({{}, {}, false});
    prompt.back().tokens.push_back(token);
  }
  return prompt;
}

// Several prompts are a list of texts and lists.
std::vector<Prompt> read_prompts(const Json& body, const Limits& limits) {
  const Json* given = field(body, "prompt");
  if (!given) throw wrong_prompt("must be there: a string, a list of token ids, or a list of those");
  const bool several = given->is_array() && !given->empty() && !given->front().is_number();
  if (!several) return {read_prompt(*given, limits, false)};
  if (given->size() > limits.prompts)
    throw bad_request(fmt::format("more than {} in 'prompt'", limits.prompts), "prompt");
  std::vector<Prompt> prompts;
  for (const Json& one : *given) prompts.push_back(read_prompt(one, limits, false));
  return prompts;
}

void refuse_tools(const Json& body) {
  if (!is_off(field(body, "tools"))) throw bad_request("'tools' are for /v1/chat/completions", "tools");
}

void read_common(const Json& json, const Limits& limits, CompletionRequest& request) {
  read_options(json, limits, request);
  read_choices(json, limits, request);
  read_grammar(json, limits, request);
}

}  // namespace

CompletionRequest read_text_request(const Json& body, const Limits& limits) {
  CompletionRequest request;
  request.api = Api::kText;
  request.prompts = read_prompts(body, limits);
  refuse_tools(body);
  read_common(body, limits, request);
  return request;
}

CompletionRequest parse_completion(std::string_view body, const Limits& limits) {
  return read_text_request(parse_object(body), limits);
}

CompletionRequest parse_native(std::string_view body, const Limits& limits) {
  const Json json = parse_object(body);
  CompletionRequest request;
  request.api = Api::kNative;
  const Json* given = field(json, "prompt");
  if (!given) throw wrong_prompt("must be there: a string or a list of token ids and strings");
  // A list with a token id in it is one prompt; any other list holds a prompt in each place.
  const auto is_number = [](const Json& one) { return one.is_number(); };
  request.in_list = given->is_array() && !given->empty() && std::ranges::none_of(*given, is_number);
  if (request.in_list) {
    if (given->size() > limits.prompts)
      throw bad_request(fmt::format("more than {} in 'prompt'", limits.prompts), "prompt");
    for (const Json& one : *given) request.prompts.push_back(read_prompt(one, limits, true));
  } else {
    request.prompts = {read_prompt(*given, limits, true)};
  }
  refuse_tools(json);
  read_common(json, limits, request);
  return request;
}

CompletionRequest read_chat_request(const Json& body, const Limits& limits) {
  CompletionRequest request;
  request.api = Api::kChat;
  read_common(body, limits, request);
  read_chat(body, limits, request);
  return request;
}

CompletionRequest parse_chat(std::string_view body, const Limits& limits) {
  return read_chat_request(parse_object(body), limits);
}

CompletionRequest parse_template(std::string_view body, const Limits& limits) {
  CompletionRequest request;
  request.api = Api::kChat;
  read_chat(parse_object(body), limits, request);
  return request;
}

std::string chat_prompt(const Tokenizer& tokenizer, const CompletionRequest& request) {
  try {
    std::string text = tokenizer.apply_template_json(request.messages, request.add_generation_prompt, request.tools,
                                                     request.template_variables);
    const ReasoningStyle style = reasoning_style(tokenizer.chat_template());
    if (!request.prefill.empty() || !request.prefill_reasoning.empty())
      append_prefill(text, request.prefill_reasoning, request.prefill, style);
    else if (request.no_thoughts && request.add_generation_prompt) close_thought(text, style);
    return text;
  } catch (const Error& e) {  // templates raise errors about messages they do not take
    throw bad_request(e.what(), "messages");
  }
}

void begin_reasoning(const Tokenizer& tokenizer, std::span<const Token> prompt, CompletionRequest& request) {
  if (request.api != Api::kChat || !request.reasoning.any()) return;
  request.reasoning_start = !request.prefill.empty() ? ReasoningStart::kOver
                            : !request.prefill_reasoning.empty()
                                ? ReasoningStart::kOpened
                                : reasoning_start(tokenizer, prompt, request.reasoning);
  if (request.must_call && request.reasoning_start == ReasoningStart::kMaybe)
    request.reasoning_start = ReasoningStart::kOver;
  request.options.grammar = after_reasoning(request.options.grammar, request.reasoning, request.reasoning_start);
}

std::vector<std::vector<Token>> prompt_tokens(const Tokenizer& tokenizer, const CompletionRequest& request,
                                              const PromptBound& bound) {
  const char* param = request.api == Api::kChat ? "messages" : "prompt";
  const auto check = [&](size_t bytes) {
    if (bytes > bound.bytes)
      throw too_long(
          fmt::format(
              "the prompt has {} bytes, which exceeds the available context size of {}: its longest tokens have {} together",
              bytes, bound.context, bound.bytes),
          param, 0, bound.context);
  };
  std::vector<std::vector<Token>> all;
  if (request.api == Api::kChat) {
    const std::string text = chat_prompt(tokenizer, request);
    check(text.size());
    all.push_back(tokenizer.tokenize(text, false, true));
  }
  for (const Prompt& prompt : request.prompts) {
    size_t bytes = 0;
    for (const PromptPart& part : prompt) bytes += part.text.size();
    check(bytes);
    std::vector<Token> tokens;
    for (const PromptPart& part : prompt) {
      const bool first = &part == &prompt.front();
      const std::vector<Token> more = part.is_text ? tokenizer.tokenize(part.text, first, true) : part.tokens;
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    all.push_back(std::move(tokens));
  }
  if (const size_t most = size_t(std::max(0, request.most_prompt_tokens)); most > 0)
    for (std::vector<Token>& tokens : all) {
      const auto extra = tokens.size() - std::min(tokens.size(), most);
      if (request.keeps_beginning) tokens.resize(tokens.size() - extra);
      else tokens.erase(tokens.begin(), tokens.begin() + std::ptrdiff_t(extra));
    }
  for (const std::vector<Token>& tokens : all)
    if (tokens.empty()) throw bad_request(fmt::format("'{}' is empty", param), param);
  return all;
}

std::string echo_text(const Tokenizer& tokenizer, const Prompt& prompt) {
  std::string text;
  for (const PromptPart& part : prompt) {
    try {
      text += part.is_text ? part.text : tokenizer.detokenize(part.tokens, true, &part != &prompt.front());
    } catch (const Error& e) {  // the embedding may have more rows than there are tokens
      throw bad_request(e.what(), "prompt");
    }
  }
  return text;
}

}  // namespace sx::server
