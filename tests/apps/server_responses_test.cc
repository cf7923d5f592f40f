// OpenAI's Responses: log-probabilities, and what is kept.
#include <gtest/gtest.h>

#include "server/protocols.h"
#include "server/response_store.h"
#include "server_answer.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

const auto kStore = std::make_shared<ResponseStore>();

CompletionRequest asked(const std::string& fields) {
  Limits limits;
  limits.vocab = 1000;
  return parse_responses(R"({"input": "Tea?")" + fields + "}", limits, kStore, 0);
}

// Named events: the data of each.
std::vector<Json> named_events(const std::string& text) {
  std::vector<Json> all;
  for (size_t at = text.find("\ndata: "); at != text.npos; at = text.find("\ndata: ", at + 1))
    all.push_back(Json::parse(text.substr(at + 7, text.find("\n\n", at) - at - 7)));
  return all;
}

std::string spelt(const Json& logprobs) {
  std::string text;
  for (const Json& one : logprobs) text += one.at("token").get<std::string>();
  return text;
}

// The tokens of an answer that these spell, numbered from 1.
std::vector<AnswerToken> spelling(const std::vector<std::string>& texts) {
  std::vector<AnswerToken> tokens;
  size_t end = 0;
  for (const std::string& text : texts)
    tokens.push_back(until(token(Token(tokens.size() + 1), text), end += text.size()));
  return tokens;
}

// One that ends an answer, or is of a stop string.
AnswerToken ending(const std::string& bytes, size_t end) {
  AnswerToken last = until(token(99, bytes), end);
  last.in_text = false;
  return last;
}

// The tokens that are told of each text of an answer, which comes whole, and then token by token: that is the same.
std::vector<std::string> told_of(CompletionRequest request, const std::vector<AnswerToken>& tokens) {
  std::string all;
  for (const AnswerToken& one : tokens)
    if (one.in_text) all += one.bytes;
  const auto of_texts = [](const Json& output) {
    std::vector<std::string> texts;
    for (const Json& item : output)
      if (item["type"] == "message") {
        std::string labels;
        for (const Json& one : item["content"][0]["logprobs"]) labels += one["token"].get<std::string>() + "|";
        texts.push_back(labels);
      }
    return texts;
  };
  ChoiceEnd end = ended(all, int(tokens.size()));
  end.rest.tokens = tokens;
  const std::vector<std::string> whole = of_texts(Json::parse(Answer(request, facts()).whole({end}))["output"]);
  request.stream = true;
  Answer answer(request, facts());
  std::string text;
  ChoiceEnd last = ended("", int(tokens.size()));
  for (const AnswerToken& one : tokens) {
    if (one.in_text) text += answer.delta(0, piece(one.bytes, {one}));
    else last.rest.tokens.push_back(one);
  }
  text += answer.end(0, last);
  std::vector<std::string> deltas;
  for (const Json& event : named_events(text)) {
    if (event["type"] == "response.content_part.added" && event["part"]["type"] == "output_text") deltas.emplace_back();
    if (event["type"] == "response.output_text.delta")
      for (const Json& one : event["logprobs"]) deltas.back() += one["token"].get<std::string>() + "|";
    if (event["type"] == "response.completed") { EXPECT_EQ(of_texts(event["response"]["output"]), whole); }
  }
  EXPECT_EQ(deltas, whole);
  return whole;
}

TEST(ServerResponses, AskForLogprobs) {
  EXPECT_EQ(asked("").logprobs, -1);
  EXPECT_EQ(asked(R"(, "top_logprobs": 0)").logprobs, -1);
  EXPECT_EQ(asked(R"(, "top_logprobs": 3)").logprobs, 3);
  EXPECT_EQ(asked(R"(, "include": ["message.output_text.logprobs"])").logprobs, 0);
  EXPECT_EQ(asked(R"(, "include": ["message.output_text.logprobs"], "top_logprobs": 2)").logprobs, 2);
  for (const char* wrong : {R"("top_logprobs": 21)", R"("top_logprobs": "2")", R"("include": ["odd"])"})
    EXPECT_THROW(asked(std::string(", ") + wrong), ApiError) << wrong;
}

TEST(ServerResponses, LogprobsOfWholeAnswers) {
  const std::string fields = R"(, "top_logprobs": 2)";
  ChoiceEnd end = ended("Hot tea");
  end.rest.tokens = {until(token(1, " Hot"), 3), until(token(2, " tea"), 7), ending("", 7)};
  const Json body = Json::parse(Answer(asked(fields), facts()).whole({end}));
  const Json& logprobs = body["output"][0]["content"][0]["logprobs"];
  EXPECT_EQ(spelt(logprobs), " Hot tea");  // not of the token that ends the answer
  EXPECT_EQ(logprobs[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(logprobs[0]["logprob"], -1);
  EXPECT_EQ(body["top_logprobs"], 2);
  const Json plain = Json::parse(Answer(asked(""), facts()).whole({end}));
  EXPECT_TRUE(plain["output"][0]["content"][0]["logprobs"].empty());
}

TEST(ServerResponses, LogprobsOfStreams) {
  Answer answer(asked(R"(, "stream": true, "top_logprobs": 1)"), facts());
  std::string text = answer.delta(0, piece("Hot", {until(token(1, "Hot"), 3)}));
  text += answer.delta(0, piece(" te", {}));  // of a token that is not whole yet
  text += answer.delta(0, piece("a", {until(token(2, " tea"), 7)}));
  text += answer.end(0, ended(""));
  std::string told;
  Json last;
  for (const Json& event : named_events(text)) {
    if (event["type"] == "response.output_text.delta") told += spelt(event["logprobs"]);
    if (event["type"] == "response.output_text.done") { EXPECT_EQ(spelt(event["logprobs"]), "Hot tea"); }
    last = event;
  }
  EXPECT_EQ(told, "Hot tea");
  EXPECT_EQ(spelt(last["response"]["output"][0]["content"][0]["logprobs"]), "Hot tea");
}

TEST(ServerResponses, LogprobsOfTheAnswerAndNotOfThoughts) {
  CompletionRequest request = asked(R"(, "top_logprobs": 1)");
  request.reasoning = {"<think>", "</think>"};
  using Texts = std::vector<std::string>;
  EXPECT_EQ(told_of(request, spelling({"<think>", "So", ".", "</think>", "\n", "Tea."})), Texts{"Tea.|"});
  // The mark is spelt by tokens that could as well be the beginning of the text.
  EXPECT_EQ(told_of(request, spelling({"<think>", "So", "</", "think", ">", "</", "div", ">"})), Texts{"</|div|>|"});
  EXPECT_EQ(told_of(request, spelling({"<think>", "a", "b", "</think>", "\n\n", "a", "b"})), Texts{"a|b|"});
  request.reasoning.control = true;  // it may think again
  EXPECT_EQ(told_of(request, spelling({"<think>", "a", "</think>", "a", "<think>", "b", "</think>", " ", "b"})),
            (Texts{"a|", "b|"}));
}

// Arguments are told in another spelling than the model's, and what is between texts is of none of them.
TEST(ServerResponses, LogprobsOfTextsAroundCalls) {
  const CompletionRequest request =
      asked(R"(, "top_logprobs": 1, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}])");
  const std::vector<AnswerToken> tokens =
      spelling({"Tea", ".", "\n", "<tool_call>", "{\"name\"", ": \"f\", ", "\"arguments\"", ": { ", "\"a\" : ", "1 } }",
                "</tool_call>", "Tea", " {", "1", " }", ".", "<to", "ol>", "."});
  EXPECT_EQ(told_of(request, tokens), (std::vector<std::string>{"Tea|.|", "Tea| {|1| }|.|<to|ol>|.|"}));
}

// A stop string is no part of the text, nor are the tokens that spell it.
TEST(ServerResponses, NoLogprobsOfAStopString) {
  std::vector<AnswerToken> tokens = spelling({"Tea", "."});
  tokens.push_back(ending("EN", 4));
  tokens.push_back(ending("D", 4));
  EXPECT_EQ(told_of(asked(R"(, "top_logprobs": 1)"), tokens), std::vector<std::string>{"Tea|.|"});
}

TEST(ServerResponses, AnUnknownEarlierOneIsNamed) {
  try {
    asked(R"(, "previous_response_id": "resp_x")");
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(std::string(error.what()), "Previous response with id 'resp_x' not found.");
    EXPECT_EQ(error.status, 400);
  }
}

}  // namespace
}  // namespace sx::server
