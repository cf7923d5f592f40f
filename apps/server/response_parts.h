// Pieces of answers as JSON; what the files of response.h share.
#pragma once
#include <deque>
#include <nlohmann/json.hpp>
#include <span>

#include "server/response.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

std::string random_id();
int64_t seconds_now();  // since 1970
std::string text_of(const Json& json);
std::string event(const Json& json);
Json error_json(const ApiError& error, const std::string& request_id = {});

const char* finish_reason(FinishReason reason, bool called);
size_t characters(std::string_view text);
// What is left of tokens and shares of an answer without those of its thoughts. `begin`: bytes of the text before the
// first share.
void drop_thoughts(std::vector<AnswerToken>& tokens, const Places& thoughts);
void drop_thoughts(std::vector<TextShare>& shares, size_t begin, const Places& thoughts);
// A token's text; what is not whole characters is spelt as "bytes:\xe4\xbd".
std::string token_label(const std::string& bytes);
// A token's text, or the list of its bytes where these are not whole characters.
Json piece_json(const std::string& bytes);

// How log-probabilities are written: alternatives of each token, and whether tokens are called by their ids.
struct LogprobForm {
  int top = 0;
  bool ids = false;
};
// {"content": [...]} of chats.
Json chat_logprobs(std::span<const AnswerToken> tokens, LogprobForm form);
// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; `offsets` are those of the tokens.
Json text_logprobs(std::span<const AnswerToken> tokens, LogprobForm form, const std::vector<size_t>& offsets);
// vLLM's "prompt_logprobs": for each token null, or {ID: {"logprob", "rank", "decoded_token"}} of it and the `top`.
Json prompt_logprobs(std::span<const AnswerToken> tokens, int top);
Json token_ids(std::span<const AnswerToken> tokens);
// Where tokens of a prompt begin in its text, in characters, as far as they spell it: some are not in it, such as one
// for its beginning, and the first may have a space that the text has not.
std::vector<size_t> prompt_offsets(std::span<const AnswerToken> tokens, std::string_view text);
// llama.cpp's "completion_probabilities".
Json native_logprobs(std::span<const AnswerToken> tokens);

Json progress_json(const PromptProgress& progress);
// "specextend": what a piece of text came from.
Json details_json(std::span<const TextShare> shares, const RoundNotes& rounds);
Json calls_json(std::span<const ToolCall> calls, size_t first, bool indexed);

// Counts the tokens of thoughts, marks around them included, when it is decided what is one.
class ThoughtTokens {
 public:
  void add(std::span<const AnswerToken> tokens);
  // How many more there are in the text up to `taken`, of which `thoughts` are places.
  int count(size_t taken, const Places& thoughts);

 private:
  std::deque<size_t> ends_;  // of those in what is not decided
};

// Sums over the choices of an answer.
struct Totals {
  int prompt_tokens = 0, cached_tokens = 0;  // of the prompts, however many choices each has
  std::optional<int> reasoning_tokens{};     // of the answers; nothing: the model has no thoughts
  Timings timings;
  SpecStats spec;
  double plain_seconds = 0;  // that the tokens would have taken without drafts
  bool plain_known = true;
  void add(const AnswerTimes& times);
  void add(const ChoiceEnd& end);
};
Json usage_json(const Totals& totals);
Json timings_json(const Totals& totals);
// llama.cpp's last event, and whole answer; `content` is empty in a stream.
struct NativeFacts {
  const std::string& model;
  int prompt = 0;  // which of the request's
  int prompt_tokens = 0;
};
Json native_json(const CompletionRequest& request, const NativeFacts& facts, const ChoiceEnd& end,
                 const std::string& content);
// The fields of an answer that 'response_fields' names: "timings/prompt_n" is one within another. Empty: all.
Json chosen_fields(Json answer, const std::vector<std::string>& fields);

}  // namespace sx::server
