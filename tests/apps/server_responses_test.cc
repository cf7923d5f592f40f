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
  end.rest.tokens = {token(1, " Hot"), token(2, " tea"), token(3, "")};
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
  std::string text = answer.delta(0, piece("Hot", {token(1, "Hot")}));
  text += answer.delta(0, piece(" te", {}));  // of a token that is not whole yet
  text += answer.delta(0, piece("a", {token(2, " tea")}));
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
  const std::vector<AnswerToken> tokens{token(1, "<think>"),  token(2, "So"), token(3, "."),
                                        token(4, "</think>"), token(5, "\n"), token(6, "Tea.")};
  ChoiceEnd end = ended("<think>So.</think>\nTea.", 6);
  end.rest.tokens = tokens;
  const Json body = Json::parse(Answer(request, facts()).whole({end}));
  EXPECT_EQ(spelt(body["output"][1]["content"][0]["logprobs"]), "Tea.");
  request.stream = true;
  Answer answer(request, facts());
  std::string text, told;
  for (const AnswerToken& one : tokens) text += answer.delta(0, piece(one.bytes, {one}));
  text += answer.end(0, ended("", 6));
  for (const Json& event : named_events(text))
    if (event["type"] == "response.output_text.delta") told += spelt(event["logprobs"]);
  EXPECT_EQ(told, "Tea.");
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
