// Requests as JSON: parsed, checked against limits, and turned into what the library takes. Knows nothing of HTTP; every
// fault of the client throws an ApiError that names the field.
#pragma once
#include <specextend/specextend.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/error.h"

namespace sx::server {

struct Limits {
  int vocab = 0;
  int max_tokens = -1;           // most a request may ask for; -1: what the context holds
  size_t stops = 16;
  size_t stop_bytes = 1024;      // of one stop string
  size_t biases = 1024;
};

struct CompletionRequest {
  bool chat = false;
  std::string text;              // the prompt, unless given as tokens or messages
  std::vector<Token> tokens;     // the prompt as tokens; empty: text or messages
  std::string messages;          // chat: a JSON array of {"role", "content"}, contents flat strings
  GenerateOptions options;
  bool seeded = false;           // options.sampling.seed was given
  bool stream = false, include_usage = false;
};

nlohmann::ordered_json parse_object(std::string_view body);  // any JSON object of bounded depth
CompletionRequest parse_completion(std::string_view body, const Limits& limits);
CompletionRequest parse_chat(std::string_view body, const Limits& limits);
// The "messages" of a body, as CompletionRequest::messages.
std::string parse_messages(const nlohmann::ordered_json& body);
std::vector<Token> parse_tokens(const nlohmann::ordered_json& list, const std::string& name, int vocab);

// Fields of an object by name: absent and null mean the default.
const nlohmann::ordered_json* field(const nlohmann::ordered_json& object, const char* name);
bool flag_field(const nlohmann::ordered_json& object, const char* name, bool otherwise);
std::string text_field(const nlohmann::ordered_json& object, const char* name);  // must be there

}  // namespace sx::server
