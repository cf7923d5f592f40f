// Compares a run with speculation and the same run without: the times a user waits for, and how repetitive the text is.
#pragma once
#include <specextend/specextend.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace sx::cli {

// Whether the text of such a request has the bytes of plain decoding.
bool promises_bytes(const SpecRule& rule, const SamplingOptions& sampling);
// What to say of a text that differs from the plain one, where the rule allows that.
std::string allowed_difference(const SpecRule& rule);

// Generates from the same prompt without speculation; shows nothing.
GenerateResult decode_plainly(Session& session, std::span<const Token> prompt, GenerateOptions options);

// The times of one response, in milliseconds, without loading the model.
struct AnswerTime {
  double prompt = 0;        // prefill of the target, and of a draft head on it
  double draft_prompt = 0;  // prefill of the draft model
  double decode = 0;        // everything after that
  double whole() const { return prompt + draft_prompt + decode; }
  double after_prompt() const { return draft_prompt + decode; }
};

// The times of several runs of one prompt in one session. A run that finds the prompt in the prefix cache counts the
// prefill time of an earlier run, because a user waits for the prefill once.
class PromptTimes {
 public:
  AnswerTime of(const GenerateResult& result, bool speculated);

 private:
  double prompt_[2] = {0, 0}, draft_prompt_ = 0;  // without and with speculation
};

struct Speedup {
  double whole = 0, after_prompt = 0, decode = 0;
};
Speedup speedup(const AnswerTime& plain, const AnswerTime& drafted);

// {"whole_answer": ..., "after_prompt": ..., "decode_only": ...}
nlohmann::ordered_json to_object(const Speedup& s);
nlohmann::ordered_json to_object(const AnswerTime& t);

// The share of distinct n-grams: 1 for a text that never repeats itself, 0.1 for one that loops and is easy to draft. A
// text shorter than `n` tokens counts as 1.
double distinct_ngrams(std::span<const Token> tokens, size_t n = 8);

}  // namespace sx::cli
