// A run with speculation beside the same run without: what the user waits for, and what the text is like that it was measured on.
#pragma once
#include <specextend/specextend.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace sx::cli {

// What an answer took, in milliseconds. Starting the program and loading the model come before, once.
struct AnswerTime {
  double prompt = 0;        // the target reads the prompt, and a head on it with it
  double draft_prompt = 0;  // the draft reads it
  double decode = 0;        // the rest
  double whole() const { return prompt + draft_prompt + decode; }
  double after_prompt() const { return draft_prompt + decode; }
};

// The times of runs of one prompt in one session. A run that finds the prompt in the cache is given the time that reading it took before: the
// user waits for it once, whichever run that is.
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

// The share of distinct ones among the runs of `n` tokens: 1 is a text that never repeats itself, 0.1 one that loops. Drafts are easy for the
// latter. 1 where there is no such run.
double distinct_ngrams(std::span<const Token> tokens, size_t n = 8);

}  // namespace sx::cli
