// The parts requests are read in; what the files of request.h share.
#pragma once
#include <nlohmann/json.hpp>

#include "server/request.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;  // of JSON
// Of one body. A number takes 16 bytes of memory, however short it was written, lists, objects, names and texts 50 and
// more; and every name of an object is held against those before it.
constexpr size_t kMostNumbers = size_t(1) << 21;
constexpr size_t kMostParts = size_t(1) << 17;
constexpr size_t kMostNames = 4096;   // of one object
constexpr int kMostTokens = 1 << 24;  // the library's largest context
constexpr int kMostLogprobs = 20;

bool is_text(const Json* value, std::string_view text);  // a string, and this one
bool is_off(const Json* value);                          // absent, false, or an empty string, list or object
// The variables of templates that switch thoughts on and off, unless they are given.
void set_thinking(Json& variables, bool on);
// Sampling, length, stops, streaming, extensions: what all completion requests share. `request.api` is set.
void read_options(const Json& body, const Limits& limits, CompletionRequest& request);
// 'logprobs', 'top_logprobs', 'n_probs', 'n', 'best_of', 'echo', and what vLLM tells of tokens.
void read_choices(const Json& body, const Limits& limits, CompletionRequest& request);
// 'grammar', 'json_schema', 'response_format', and vLLM's 'structured_outputs' and 'guided_...'. True: the text is
// bound.
bool read_grammar(const Json& body, const Limits& limits, CompletionRequest& request);
// 'messages' as templates take them.
Json read_messages(const Json& body, const Limits& limits);
// 'tools', checked; an empty list if there are none.
Json read_tools(const Json& body, const Limits& limits);
// A chat from its parsed body; other protocols are translated into one.
CompletionRequest read_chat_request(const Json& body, const Limits& limits);
CompletionRequest read_text_request(const Json& body, const Limits& limits);  // the same for /v1/completions
// 'messages', 'tools', 'tool_choice', 'chat_template_kwargs'.
void read_chat(const Json& body, const Limits& limits, CompletionRequest& request);

}  // namespace sx::server
