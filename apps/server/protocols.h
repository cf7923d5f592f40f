// Other protocols than OpenAI's chats and texts: Anthropic's Messages, OpenAI's Responses, Ollama's. Each is a
// translation: its requests become chats (or texts), and what comes of them is written in its form. Unknown fields are
// rejected. Knows nothing of HTTP.
#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/request.h"
#include "server/response.h"

namespace sx::server {

class ResponseStore;

// What an answer in a protocol's form needs of its request.
struct ProtocolFacts {
  using Json = nlohmann::ordered_json;
  bool hide_reasoning = false;  // thoughts are left out
  Json echo{};                  // Responses: fields of the request that the answer repeats
  // Responses: gets the answer and its items once it is whole, if it shall be kept.
  std::function<void(const Json& response)> keep{};
};

// Anthropic's /v1/messages; `counting`: /v1/messages/count_tokens, which needs no max_tokens.
CompletionRequest parse_messages(std::string_view body, const Limits& limits, bool counting = false);
// OpenAI's /v1/responses. `store` has earlier ones; `scope` is that of the API key.
CompletionRequest parse_responses(std::string_view body, const Limits& limits,
                                  const std::shared_ptr<ResponseStore>& store, uint64_t scope);
// Ollama's /api/chat and /api/generate.
CompletionRequest parse_ollama_chat(std::string_view body, const Limits& limits);
CompletionRequest parse_ollama_generate(std::string_view body, const Limits& limits);
// No messages, or an empty prompt: Ollama's clients load a model so. Gives the answer; nothing: it asks for a text.
std::string ollama_load_answer(std::string_view body, const std::string& model, bool chat);

// The writer of a request's protocol; nothing: OpenAI's chats and texts.
std::unique_ptr<AnswerWriter> protocol_writer(const CompletionRequest& request, const AnswerFacts& facts);

// The body of an error in the form of whoever asks on `path`.
std::string error_body_for(std::string_view path, const ApiError& error, const std::string& request_id);

}  // namespace sx::server
