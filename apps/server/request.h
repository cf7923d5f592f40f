// Requests as JSON: parsed, checked against limits, and turned into what the library takes. Knows nothing of HTTP;
// every fault of the client throws an ApiError that names the field.
#pragma once
#include <specextend/specextend.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/error.h"
#include "server/reasoning.h"
#include "server/tools.h"

namespace sx::server {

struct Limits {
  int vocab = 0;
  int max_tokens = -1;  // most a request may ask for; -1: what the context holds
  size_t stops = 16;
  size_t stop_bytes = 1024;  // of one stop string
  size_t biases = 1024;
  int choices = 16;     // 'n'
  size_t prompts = 32;  // of one request
  size_t jobs = 64;     // prompts * n
  size_t messages = 4096;
  size_t tools = 128;
  size_t schema_bytes = 256 << 10;  // of a schema, or of all tools together, as JSON
  size_t grammar_bytes = 256 << 10;
  std::vector<std::string> presets{};  // a request may name one of these in 'spec_preset'
  ToolStyle tool_style{};              // of the model's chat template: tool_style(template)
  ReasoningStyle reasoning{};          // of the model: reasoning_style(tokenizer)
  // What requests that do not say get; nothing: a random seed, the path's own temperature.
  std::optional<uint64_t> seed{};
  std::optional<double> temperature{};
  std::optional<bool> thinks{};  // nothing: what the template does by itself
  bool splits_thoughts = true;
  bool verbose = false;  // answers have the text of their prompt
  // The tokens of a text in 'logit_bias'; null: texts are refused there.
  std::function<std::vector<Token>(const std::string& text)> tokenize{};
  std::vector<Token> ends{};  // tokens that end a text
};

enum class Api { kChat, kText, kNative };  // /v1/chat/completions, /v1/completions, llama.cpp's /completion
// In whose form the answer is written. All but the first are chats, or texts of one prompt and one choice.
enum class Protocol { kOpenAi, kMessages, kResponses, kOllamaChat, kOllamaGenerate };
struct ProtocolFacts;  // what a protocol's answers repeat of the request (protocols.h)

// A prompt of texts and tokens in any order; mostly one of either.
struct PromptPart {
  std::string text;  // unless tokens
  std::vector<Token> tokens;
  bool is_text = true;
};
using Prompt = std::vector<PromptPart>;

struct CompletionRequest {
  Api api = Api::kText;
  Protocol protocol = Protocol::kOpenAi;
  std::shared_ptr<const ProtocolFacts> protocol_facts;  // where the protocol has some
  std::vector<Prompt> prompts;  // of kText and kNative; at least one. A chat has one prompt: chat_prompt()
  // Chat: what apply_template takes.
  std::string messages, tools, template_variables;  // JSON; tools and template_variables may be empty
  bool add_generation_prompt = true;
  bool no_thoughts = false;  // by the server's setting: a thought that the template opens all the same is closed
  // What the assistant has begun to say: the answer goes on behind it.
  std::string prefill, prefill_reasoning;
  ReasoningStyle reasoning;  // thoughts are split from the content; none: they are content
  ReasoningStart reasoning_start = ReasoningStart::kMaybe;
  std::string cache_salt;  // only requests with the same share prefixes

  std::string grammar_field;  // that binds the text; empty: none does
  GenerateOptions options;    // all but the callbacks; with grammar, preset, token_logits
  bool seeded = false;        // options.sampling.seed was given. Choice i of a prompt uses seed + i
  int n = 1;                  // choices per prompt: choice p * n + i is the i-th of prompt p
  int logprobs = -1;          // alternatives to report with each token, -1: no log-probabilities
  bool echo = false;  // the prompt's text before the answer, of a chat the answer's given beginning; with logprobs
                      // those of the prompt's tokens, too
  bool stream = false, include_usage = false;
  bool usage_each = false;         // in every event of a stream, too
  bool token_ids = false;          // of the prompt and the answer
  bool labels_are_ids = false;     // log-probabilities call tokens "token_id:7"
  int prompt_logprobs = -1;        // alternatives to report with each token of the prompt; -1: no log-probabilities
  int most_prompt_tokens = -1;     // longer prompts lose their beginning; -1: they are taken whole
  bool keeps_beginning = false;    // or their end
  bool tells_thoughts = true;      // false: they are made, and dropped
  bool return_progress = false;    // progress of the prompt in a stream
  bool spec_details = false;       // what speculation does in a stream
  bool cache_prompt = true;        // false: process the whole prompt
  bool timings_per_token = false;  // in a stream: with every event
  bool verbose = false;            // a whole answer has the text of its prompt
  bool return_tokens = false;      // kNative
  bool in_list = false;            // kNative: several prompts were given; a whole answer is a list
  std::vector<Token> ends;         // kNative: tokens that 'ignore_eos' forbids
  std::vector<std::string> response_fields;  // kNative: of a whole answer only these; empty: all
  int slot = -1;                             // kNative: the slot to use, -1: any
  // The answer may hold calls of these tools: goes through a ToolParser. Empty: text as it is.
  std::vector<std::string> tool_names;
  std::string tool_list;  // the same with their schemas, JSON
  ToolFormat tool_format = ToolFormat::kHermes;
  bool parallel_tool_calls = true;
  bool must_call = false;  // the answer is a call: at once, unless the prompt has opened a thought

  bool echoes_scores() const { return api == Api::kText && echo && logprobs >= 0; }
  bool scores_prompt() const { return echoes_scores() || prompt_logprobs >= 0; }
  // The i-th choice of a prompt: what is told of the prompt apart from its echo is the same for all, and comes of one.
  bool scores_prompt(int i) const { return echoes_scores() || (prompt_logprobs >= 0 && i == 0); }
  size_t choices() const { return (api == Api::kChat ? 1 : prompts.size()) * size_t(n); }
};

nlohmann::ordered_json parse_object(std::string_view body);  // any JSON object of bounded depth and size
CompletionRequest parse_completion(std::string_view body, const Limits& limits);
CompletionRequest parse_chat(std::string_view body, const Limits& limits);
CompletionRequest parse_native(std::string_view body, const Limits& limits);
// The body of /apply-template, and of /v1/chat/completions/input_tokens: messages, tools, template_variables and
// add_generation_prompt are set.
CompletionRequest parse_template(std::string_view body, const Limits& limits);
std::vector<Token> parse_tokens(const nlohmann::ordered_json& list, const std::string& name, int vocab);

// The text of a chat's prompt. Throws an ApiError when the template refuses the messages.
std::string chat_prompt(const Tokenizer& tokenizer, const CompletionRequest& request);
// What a prompt's text is held against before any work is done on it: the bytes of `context` tokens, were each the
// longest there is.
struct PromptBound {
  size_t bytes = SIZE_MAX;
  int context = 0;
};
// All prompts of a request as tokens: one of a chat, else one of each of prompts.
std::vector<std::vector<Token>> prompt_tokens(const Tokenizer& tokenizer, const CompletionRequest& request,
                                              const PromptBound& bound = {});
// Where the prompt of a chat leaves the model in its thoughts; a grammar of the request binds what follows them.
void begin_reasoning(const Tokenizer& tokenizer, std::span<const Token> prompt, CompletionRequest& request);
// The text that 'echo' repeats.
std::string echo_text(const Tokenizer& tokenizer, const Prompt& prompt);

// Fields of other servers that ask for something that is not there. They are refused unless they ask for nothing: null,
// false, an empty text, list or object, or one of `neutral`, a JSON list. Everything that says which fields these are
// goes by this table.
struct MissingField {
  const char* name;
  const char* neutral;
};
std::span<const MissingField> missing_fields();

// Fields of an object by name: absent and null mean the default.
const nlohmann::ordered_json* field(const nlohmann::ordered_json& object, const char* name);
bool flag_field(const nlohmann::ordered_json& object, const char* name, bool otherwise);
int integer_field(const nlohmann::ordered_json& object, const char* name, int otherwise, int low, int high);
double number_field(const nlohmann::ordered_json& object, const char* name, double otherwise, double low, double high);
std::optional<int64_t> whole_number(
    const nlohmann::ordered_json& value);  // also written as 16.0; nothing: it is none, or beyond int64
std::string text_field(const nlohmann::ordered_json& object, const char* name);  // must be there

}  // namespace sx::server
