#include "server/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMaxDepth = 64;
constexpr int kMostTokens = 1 << 24;  // the library's largest context
constexpr int kDefaultTokens = 16;    // of /v1/completions, as OpenAI's

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
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(high);
  if (!value->is_number_integer() || huge || value->get<int64_t>() < low || value->get<int64_t>() > high)
    throw bad_request(fmt::format("'{}' must be a whole number from {} to {}", name, low, high), name);
  return value->get<int>();
}

// What is not there yet is refused rather than ignored: the answer would not be what was asked for.
void refuse_missing(const Json& body) {
  if (integer_field(body, "n", 1, 1, 1 << 20) != 1) throw bad_request("'n' must be 1: one choice per request", "n");
  if (integer_field(body, "best_of", 1, 0, 1 << 20) > 1) throw bad_request("'best_of' must be 1", "best_of");
  for (const char* name : {"tools", "functions"})
    if (const Json* value = field(body, name); value && !(value->is_array() && value->empty()))
      throw bad_request(fmt::format("'{}' are not supported", name), name);
  for (const char* name : {"logprobs", "top_logprobs", "echo", "n_probs"}) {
    const Json* value = field(body, name);
    const bool off = !value || (value->is_boolean() && !value->get<bool>()) ||
                     (value->is_number_integer() && value->get<int64_t>() == 0 && std::string_view(name) != "logprobs");
    if (!off) throw bad_request(fmt::format("'{}' is not supported", name), name);
  }
  for (const char* name : {"grammar", "json_schema", "suffix", "structured_outputs", "guided_json"})
    if (const Json* value = field(body, name); value && !(value->is_string() && value->get_ref<const std::string&>().empty()))
      throw bad_request(fmt::format("'{}' is not supported", name), name);
  if (const Json* format = field(body, "response_format")) {
    const Json* type = format->is_object() ? field(*format, "type") : nullptr;
    if (!type || !type->is_string() || type->get_ref<const std::string&>() != "text")
      throw bad_request("'response_format' must be {\"type\": \"text\"}", "response_format");
  }
}

void read_stop(const Json& body, const Limits& limits, std::vector<std::string>& stop) {
  const Json* value = field(body, "stop");
  if (!value) return;
  const auto take = [&](const Json& one) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      throw bad_request("'stop' must be a string or a list of strings, none of them empty", "stop");
    if (one.get_ref<const std::string&>().size() > limits.stop_bytes)
      throw bad_request(fmt::format("a 'stop' is longer than {} bytes", limits.stop_bytes), "stop");
    stop.push_back(one.get<std::string>());
  };
  if (!value->is_array()) return take(*value);
  if (value->size() > limits.stops) throw bad_request(fmt::format("more than {} in 'stop'", limits.stops), "stop");
  for (const Json& one : *value) take(one);
}

// {"15043": -1.5} as OpenAI has it, or [[15043, -1.5]] as llama.cpp has it.
void read_bias(const Json& body, const Limits& limits, std::vector<std::pair<Token, float>>& bias) {
  const Json* value = field(body, "logit_bias");
  if (!value) return;
  const auto wrong = [] {
    return bad_request("'logit_bias' must be an object of token ids with numbers from -100 to 100", "logit_bias");
  };
  const auto take = [&](int64_t token, const Json& amount) {
    if (!amount.is_number() || !(amount.get<double>() >= -100 && amount.get<double>() <= 100)) throw wrong();
    if (token < 0 || token >= limits.vocab)
      throw bad_request(fmt::format("'logit_bias': token {} is outside the vocabulary of {}", token, limits.vocab), "logit_bias");
    bias.emplace_back(Token(token), amount.get<float>());
  };
  if (!value->is_structured()) throw wrong();
  if (value->size() > limits.biases)
    throw bad_request(fmt::format("more than {} entries in 'logit_bias'", limits.biases), "logit_bias");
  if (value->is_array()) {
    for (const Json& pair : *value) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer()) throw wrong();
      take(pair[0].get<int64_t>(), pair[1]);
    }
    return;
  }
  for (const auto& [key, amount] : value->items()) {
    int64_t token = -1;
    const auto end = key.data() + key.size();
    if (const auto read = std::from_chars(key.data(), end, token); read.ec != std::errc() || read.ptr != end) throw wrong();
    take(token, amount);
  }
}

void read_sampling(const Json& body, const Limits& limits, CompletionRequest& request) {
  SamplingOptions& s = request.options.sampling;
  s.temperature = float(number_field(body, "temperature", 1, 0, 2));
  s.top_p = std::max(1e-9f, float(number_field(body, "top_p", 1, 0, 1)));
  s.top_k = integer_field(body, "top_k", 0, -1, kMostTokens);
  s.top_k = std::max(s.top_k, 0);  // -1 means all, too
  s.min_p = float(number_field(body, "min_p", 0, 0, 1));
  s.presence_penalty = float(number_field(body, "presence_penalty", 0, -2, 2));
  s.frequency_penalty = float(number_field(body, "frequency_penalty", 0, -2, 2));
  s.repeat_penalty = float(number_field(body, "repetition_penalty", 1, 0.01, 100));
  s.repeat_penalty = float(number_field(body, "repeat_penalty", double(s.repeat_penalty), 0.01, 100));
  s.repeat_last_n = integer_field(body, "repeat_last_n", s.repeat_last_n, -1, kMostTokens);
  read_bias(body, limits, s.logit_bias);
  if (const Json* seed = field(body, "seed")) {
    if (!seed->is_number_integer()) throw bad_request("'seed' must be a whole number", "seed");
    const bool random = !seed->is_number_unsigned() && seed->get<int64_t>() == -1;  // as in llama.cpp
    request.seeded = !random;
    s.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : uint64_t(seed->get<int64_t>());
  }
}

void read_common(const Json& body, const Limits& limits, CompletionRequest& request) {
  refuse_missing(body);
  if (const Json* model = field(body, "model"); model && !model->is_string())
    throw bad_request("'model' must be a string", "model");
  int most = request.chat ? -1 : kDefaultTokens;
  bool given = false;
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    given = given || field(body, name);
    most = integer_field(body, name, most, -1, kMostTokens);
  }
  if (limits.max_tokens >= 0 && (most < 0 || most > limits.max_tokens)) {
    if (given && most >= 0)
      throw bad_request(fmt::format("'max_tokens' is {}, this server allows {}", most, limits.max_tokens), "max_tokens");
    most = limits.max_tokens;
  }
  request.options.max_tokens = most;
  request.options.ignore_end = flag_field(body, "ignore_eos", false);
  request.options.speculate = flag_field(body, "speculate", true);
  request.stream = flag_field(body, "stream", false);
  if (const Json* options = field(body, "stream_options")) {
    if (!options->is_object()) throw bad_request("'stream_options' must be an object", "stream_options");
    if (!request.stream) throw bad_request("'stream_options' needs 'stream': true", "stream_options");
    request.include_usage = flag_field(*options, "include_usage", false);
  }
  read_stop(body, limits, request.options.stop);
  read_sampling(body, limits, request);
}

// A content is a string, or a list of parts of which only text is taken.
std::string content_text(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw bad_request("a message's 'content' must be a string or a list of parts", "messages");
  std::string text;
  for (const Json& part : content) {
    const Json* type = part.is_object() ? field(part, "type") : nullptr;
    if (!type || !type->is_string() || type->get_ref<const std::string&>() != "text")
      throw bad_request("a message's 'content' may have parts of type text only", "messages");
    text += text_field(part, "text");
  }
  return text;
}

}  // namespace

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

Json parse_object(std::string_view body) {
  // Also against nesting that would exhaust the stack of whoever walks the value.
  const auto bounded = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw bad_request(fmt::format("JSON nested deeper than {} levels", kMaxDepth));
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(body, bounded);
  } catch (const Json::exception& e) {
    throw bad_request(fmt::format("broken JSON: {}", e.what()));
  }
  if (!parsed.is_object()) throw bad_request("the body must be a JSON object");
  return parsed;
}

std::vector<Token> parse_tokens(const Json& list, const std::string& name, int vocab) {
  std::vector<Token> tokens;
  if (!list.is_array()) throw bad_request(fmt::format("'{}' must be a list of token ids", name), name);
  for (const Json& one : list) {
    const bool fits = one.is_number_unsigned() && one.get<uint64_t>() < uint64_t(vocab);
    if (!fits) throw bad_request(fmt::format("'{}' must hold token ids from 0 to {}", name, vocab - 1), name);
    tokens.push_back(one.get<Token>());
  }
  return tokens;
}

std::string parse_messages(const Json& body) {
  const Json* given = field(body, "messages");
  if (!given || !given->is_array() || given->empty())
    throw bad_request("'messages' must be a list with at least one message", "messages");
  Json messages = Json::array();
  for (const Json& one : *given) {
    const Json* role = one.is_object() ? field(one, "role") : nullptr;
    const Json* content = one.is_object() ? field(one, "content") : nullptr;
    if (!role || !role->is_string() || !content)
      throw bad_request("each of 'messages' must be an object with a 'role' and a 'content'", "messages");
    if (field(one, "tool_calls")) throw bad_request("'tool_calls' are not supported", "messages");
    const std::string name = role->get<std::string>();  // OpenAI's newer word for system
    messages.push_back({{"role", name == "developer" ? "system" : name}, {"content", content_text(*content)}});
  }
  return messages.dump();
}

CompletionRequest parse_completion(std::string_view body, const Limits& limits) {
  const Json json = parse_object(body);
  CompletionRequest request;
  const Json* prompt = field(json, "prompt");
  if (prompt && prompt->is_array() && prompt->size() == 1 && prompt->front().is_string()) prompt = &prompt->front();
  if (prompt && prompt->is_array() && !prompt->empty() && prompt->front().is_number())
    request.tokens = parse_tokens(*prompt, "prompt", limits.vocab);
  else if (prompt && prompt->is_string()) request.text = prompt->get<std::string>();
  else throw bad_request("'prompt' must be a string or a list of token ids; one prompt per request", "prompt");
  read_common(json, limits, request);
  return request;
}

CompletionRequest parse_chat(std::string_view body, const Limits& limits) {
  const Json json = parse_object(body);
  CompletionRequest request;
  request.chat = true;
  request.messages = parse_messages(json);
  read_common(json, limits, request);
  return request;
}

}  // namespace sx::server
