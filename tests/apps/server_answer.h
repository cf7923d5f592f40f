// Ends of answers and parsed events, for tests of responses.
#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/response.h"

namespace sx::server {

inline ChoiceEnd ended(const std::string& text, int generated = 3, FinishReason reason = FinishReason::kEnd) {
  ChoiceEnd end;
  end.result.text = text;
  end.result.reason = reason;
  end.result.tokens = {7, 8, 9};
  end.result.timings = {
      .prompt_tokens = 4, .cached_tokens = 2, .generated_tokens = generated, .prompt_ms = 8, .decode_ms = 20};
  end.result.spec.drafted = 5, end.result.spec.accepted = 2, end.result.spec.rounds = 2,
  end.result.spec.drafted_rounds = 2;
  end.result.spec.histogram = {1, 0, 1};
  end.result.spec.tried_at_depth = {2, 2};
  end.slot = 1;
  return end;
}

inline CompletionRequest request(Api api, int n = 1) {
  CompletionRequest r;
  r.api = api;
  r.n = n;
  if (api != Api::kChat) r.prompts.resize(1);
  return r;
}

inline AnswerFacts facts(std::vector<int> prompt_tokens = {6}) { return {"m", "fp", std::move(prompt_tokens), {}}; }

// The data of each event; "[DONE]" becomes a JSON string.
inline std::vector<nlohmann::ordered_json> events(const std::string& text) {
  std::vector<nlohmann::ordered_json> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    EXPECT_EQ(text.substr(at, 6), "data: ");
    const std::string data = text.substr(at + 6, end - at - 6);
    EXPECT_EQ(data.find('\n'), std::string::npos);
    all.push_back(data == "[DONE]" ? nlohmann::ordered_json(data) : nlohmann::ordered_json::parse(data));
    at = end + 2;
  }
  return all;
}

// The same of several texts, which are made in this order.
inline std::vector<nlohmann::ordered_json> events(std::initializer_list<std::string> texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return events(all);
}

inline AnswerToken token(Token id, const std::string& bytes, double logprob = -1) {
  return {id, 0, bytes, {logprob, {{id, logprob, bytes}, {id + 1, -2, "other"}}}};
}

inline AnswerToken until(AnswerToken token, size_t end) {
  token.end = end;
  return token;
}

// The first token of a prompt.
inline AnswerToken beginning(Token id, const std::string& bytes) { return {id, 0, bytes, {0, {}, false}}; }

inline ChoiceDelta piece(const std::string& text, std::vector<AnswerToken> tokens = {}, int depth = 0) {
  ChoiceDelta delta;
  delta.piece = {text, std::move(tokens), {{text, depth}}};
  return delta;
}

}  // namespace sx::server
