// Answers as streams: their events, in order, and that together they say what the whole answer says.
#include <gtest/gtest.h>

#include "server_answer.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

CompletionRequest streamed(Api api, int n = 1) {
  CompletionRequest r = request(api, n);
  r.stream = true;
  return r;
}

TEST(ServerStream, Chat) {
  CompletionRequest r = streamed(Api::kChat, 2);
  r.include_usage = true;
  Answer a(r, facts());
  const auto all = events({a.begin(0), a.begin(1), a.delta(1, piece("B")), a.delta(0, piece("A\n\n")),
                           a.end(1, ended("B")), a.end(0, ended("A\n\n", 5, FinishReason::kLength)), a.finish()});
  ASSERT_EQ(all.size(), 8u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(all[i]["object"], "chat.completion.chunk");
    EXPECT_EQ(all[i]["id"], all[0]["id"]);
    EXPECT_EQ(all[i]["system_fingerprint"], "fp");
    EXPECT_EQ(all[i]["usage"].is_null(), i < 6);
  }
  EXPECT_EQ(all[1]["choices"].dump(),
            R"([{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}])");
  EXPECT_EQ(all[2]["choices"].dump(), R"([{"index":1,"delta":{"content":"B"},"logprobs":null,"finish_reason":null}])");
  EXPECT_EQ(all[3]["choices"][0]["delta"]["content"], "A\n\n");
  EXPECT_EQ(all[4]["choices"].dump(),
            R"([{"index":1,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}])");
  EXPECT_EQ(all[4]["timings"]["predicted_n"], 3);
  EXPECT_TRUE(all[4]["metrics"].contains("speculative_decoding"));
  EXPECT_EQ(all[5]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(all[6]["choices"].dump(), "[]");
  EXPECT_EQ(
      all[6]["usage"].dump(),
      R"({"prompt_tokens":6,"completion_tokens":8,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":2}})");
  EXPECT_EQ(all[6]["timings"]["predicted_n"], 8);
  EXPECT_EQ(all[7], "[DONE]");
}

TEST(ServerStream, WithoutUsage) {
  Answer a(streamed(Api::kChat), facts());
  EXPECT_FALSE(events(a.begin(0))[0].contains("usage"));
  EXPECT_EQ(a.finish(), "data: [DONE]\n\n");
  EXPECT_EQ(a.delta(0, {}), "");
}

TEST(ServerStream, Text) {
  CompletionRequest r = streamed(Api::kText, 2);
  r.prompts.resize(2);
  Answer plain(r, facts({1, 2}));
  EXPECT_EQ(plain.begin(0), "");
  r.echo = true;
  AnswerFacts f = facts({1, 2});
  f.echoes = {"P", "Q"};
  Answer a(r, f);
  EXPECT_EQ(events(a.begin(3))[0]["choices"].dump(),
            R"([{"index":3,"text":"Q","logprobs":null,"finish_reason":null}])");
  EXPECT_EQ(events(a.begin(1))[0]["choices"][0]["text"], "P");
  const auto all = events({a.delta(3, piece("x")), a.end(3, ended("x"))});
  EXPECT_EQ(all[0]["object"], "text_completion");
  EXPECT_EQ(all[0]["choices"][0]["text"], "x");
  EXPECT_EQ(all[1]["choices"].dump(),
            R"([{"index":3,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}])");
}

TEST(ServerStream, LogprobsOfThePrompt) {
  CompletionRequest r = streamed(Api::kText, 2);
  r.logprobs = 0, r.echo = true;
  AnswerFacts f = facts({3});
  f.echoes = {"abc"};
  Answer a(r, f);
  EXPECT_EQ(a.begin(0) + a.begin(1), "");  // the text comes with its numbers
  const auto prompt = [](std::vector<AnswerToken> tokens, ChoiceDelta delta = {}) {
    delta.prompt = std::move(tokens);
    return delta;
  };
  EXPECT_EQ(a.delta(1, prompt({beginning(1, "a"), token(2, "b", -2)})), "");
  const auto all = events({a.delta(0, prompt({beginning(1, "a"), token(2, "b", -2), token(3, "c", -3)})),
                           a.delta(1, prompt({token(3, "c", -3)}, piece("x", {token(4, "x")}))), a.end(1, ended("x")),
                           a.end(0, ended(""))});
  ASSERT_EQ(all.size(), 5u);
  const std::string echo =
      R"("text":"abc","logprobs":{"tokens":["a","b","c"],"token_logprobs":[null,-2.0,-3.0],)"
      R"("top_logprobs":[null,{"b":-2.0},{"c":-3.0}],"text_offset":[0,1,2]},"finish_reason":null}])";
  EXPECT_EQ(all[0]["choices"].dump(), R"([{"index":0,)" + echo);
  EXPECT_EQ(all[1]["choices"].dump(), R"([{"index":1,)" + echo);
  EXPECT_EQ(all[2]["choices"][0]["text"], "x");
  EXPECT_EQ(all[2]["choices"][0]["logprobs"]["text_offset"].dump(), "[3]");
  EXPECT_EQ(all[3]["choices"][0]["finish_reason"], "stop");
}

TEST(ServerStream, Logprobs) {
  CompletionRequest r = streamed(Api::kText);
  r.logprobs = 1;
  Answer a(r, facts());
  ChoiceEnd end = ended("hé!");
  end.rest.tokens = {token(9, "STOP")};
  const auto all = events({a.delta(0, piece("hé", {token(1, "hé")})), a.delta(0, piece("", {token(2, "")})),
                           a.delta(0, piece("!", {token(3, "!")})), a.end(0, end)});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["choices"][0]["logprobs"]["text_offset"].dump(), "[0]");
  EXPECT_EQ(all[1]["choices"][0]["logprobs"]["tokens"].dump(), R"(["","!"])");
  EXPECT_EQ(all[1]["choices"][0]["logprobs"]["text_offset"].dump(), "[2,2]");
  EXPECT_EQ(all[2]["choices"][0]["logprobs"]["tokens"].dump(), R"(["STOP"])");
  EXPECT_EQ(all[2]["choices"][0]["logprobs"]["text_offset"].dump(), "[3]");
  CompletionRequest c = streamed(Api::kChat);
  c.logprobs = 0;
  Answer chat(c, facts());
  chat.begin(0);
  EXPECT_EQ(events(chat.delta(0, piece("a", {token(1, "a")})))[0]["choices"][0]["logprobs"]["content"][0]["token"],
            "a");
}

TEST(ServerStream, Progress) {
  CompletionRequest r = streamed(Api::kChat);
  ChoiceDelta delta;
  delta.progress = PromptProgress{100, 20, 60, 5.5};
  EXPECT_EQ(Answer(r, facts()).delta(0, delta), "");
  r.return_progress = true;
  const auto all = events(Answer(r, facts()).delta(0, delta));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["prompt_progress"].dump(), R"({"total":100,"cache":20,"processed":60,"time_ms":5.5})");
  EXPECT_EQ(all[0]["choices"][0]["delta"].dump(), "{}");
  r.api = Api::kText, r.prompts.resize(1);
  EXPECT_EQ(events(Answer(r, facts()).delta(0, delta))[0]["choices"][0]["text"], "");
}

TEST(ServerStream, TimingsWithEveryEvent) {
  ChoiceDelta begin, text = piece("ab", {token(1, "ab")}), late = piece("c");
  begin.progress = PromptProgress{100, 20, 60, 8};
  text.times = AnswerTimes{
      {.prompt_tokens = 80, .cached_tokens = 20, .generated_tokens = 2, .prompt_ms = 10, .decode_ms = 4}, 7, 1, 250};
  for (const Api api : {Api::kChat, Api::kText, Api::kNative}) {
    CompletionRequest r = streamed(api);
    r.return_progress = true;
    EXPECT_FALSE(events(Answer(r, facts()).delta(0, text))[0].contains("timings"));
    r.timings_per_token = true;
    Answer a(r, facts());
    a.begin(0);
    const auto all = events({a.delta(0, begin), a.delta(0, text), a.delta(0, late), a.end(0, ended("abc"))});
    ASSERT_EQ(all.size(), 4u);
    EXPECT_EQ(
        all[0]["timings"].dump(),
        R"({"cache_n":20,"prompt_n":40,"prompt_ms":8.0,"prompt_per_token_ms":0.2,"prompt_per_second":5000.0,"predicted_n":0,)"
        R"("predicted_ms":0.0,"predicted_per_token_ms":0.0,"predicted_per_second":0.0,"draft_n":0,"draft_n_accepted":0})");
    EXPECT_EQ(
        all[1]["timings"].dump(),
        R"({"cache_n":20,"prompt_n":80,"prompt_ms":10.0,"prompt_per_token_ms":0.125,"prompt_per_second":8000.0,"predicted_n":2,)"
        R"("predicted_ms":4.0,"predicted_per_token_ms":2.0,"predicted_per_second":500.0,"draft_n":7,"draft_n_accepted":1,)"
        R"("plain_per_second":250.0})");
    EXPECT_EQ(all[2]["timings"], all[1]["timings"]);  // nothing new is known
    EXPECT_EQ(all[3]["timings"]["predicted_n"], 3);
  }
}

TEST(ServerStream, Details) {
  CompletionRequest r = streamed(Api::kChat);
  r.spec_details = true;
  Answer a(r, facts());
  a.begin(0);
  ChoiceDelta delta = piece("ab", {}, 2);
  delta.piece.shares = {{"a", 2}, {"b", 0}};
  delta.rounds.rounds = {{5, 4, 1, 11.5, 9}, {0, 0, 0, 8, 0}};
  delta.rounds.rounds.push_back({.ms = 8,
                                 .decision = "model",
                                 .why = "it pays",
                                 .levels = 3,
                                 .expected_tokens = 2.12345,
                                 .expected_steps = 1.25});
  delta.rounds.history = 77, delta.rounds.refreshes = 2, delta.rounds.cells_changed = true,
  delta.rounds.cells = {{0, 4}, {9, 12}};
  auto all = events(a.delta(0, delta));
  EXPECT_EQ(
      all[0]["specextend"].dump(),
      R"({"tokens":[{"text":"a","depth":2},{"text":"b","depth":0}],"rounds":[{"drafted":5,"verified":4,"accepted":1,"ms":11.5,"plain_ms":9.0},)"
      R"({"drafted":0,"verified":0,"accepted":0,"ms":8.0},)"
      R"({"drafted":0,"verified":0,"accepted":0,"ms":8.0,"decision":"model","why":"it pays","levels":3,"expected_tokens":2.123,)"
      R"("expected_steps":1.25}],"history":77,"refreshes":2,"cells":[[0,4],[9,12]]})");
  all = events(a.delta(0, piece("c", {}, 1)));
  EXPECT_EQ(all[0]["specextend"].dump(),
            R"({"tokens":[{"text":"c","depth":1}],"rounds":[],"history":77,"refreshes":2})");
  ChoiceEnd end = ended("abc");
  end.rounds.rounds = {{1, 1, 0, 3, 0}};
  end.rounds.history = 80;
  all = events(a.end(0, end));
  EXPECT_EQ(all[0]["specextend"]["rounds"].size(), 1u);
  EXPECT_EQ(all[0]["specextend"]["history"], 80);
  Answer without(streamed(Api::kChat), facts());
  EXPECT_FALSE(events(without.delta(0, delta))[0].contains("specextend"));
}

TEST(ServerStream, ToolCalls) {
  CompletionRequest r = streamed(Api::kChat);
  r.tool_names = {"f"};
  r.spec_details = true;
  r.logprobs = 0;
  Answer a(r, facts());
  const std::string text =
      "Sure. <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>";
  std::string out, content, raw;
  int next = 0;
  for (const char c : text) out += a.delta(0, piece(std::string(1, c), {token(next++, std::string(1, c))}));
  out += a.end(0, ended(text));
  std::vector<Json> calls;
  size_t tokens = 0;
  for (const Json& e : events(out)) {
    const Json& delta = e["choices"][0]["delta"];
    if (delta.contains("content")) content += delta["content"].get<std::string>();
    for (const Json& call : delta.value("tool_calls", Json::array())) {  // a call, or more of one's arguments
      if (call.contains("id")) {
        calls.push_back(call);
        continue;
      }
      std::string& arguments = calls.at(call["index"].get<size_t>())["function"]["arguments"].get_ref<std::string&>();
      arguments += call["function"]["arguments"].get<std::string>();
    }
    if (e.contains("specextend"))
      for (const Json& share : e["specextend"]["tokens"]) raw += share["text"].get<std::string>();
    if (!e["choices"][0]["logprobs"].is_null()) tokens += e["choices"][0]["logprobs"]["content"].size();
  }
  EXPECT_EQ(content, "Sure.");
  EXPECT_EQ(raw, text);
  EXPECT_EQ(tokens, text.size());
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["index"], 0);
  EXPECT_EQ(calls[1]["index"], 1);
  EXPECT_EQ(calls[0]["function"].dump(), R"({"name":"f","arguments":"{\"a\":1}"})");
  EXPECT_EQ(events(out).back()["choices"][0]["finish_reason"], "tool_calls");
  // A call that never ends is content, and nothing is lost.
  Answer b(r, facts());
  b.begin(0);
  const auto all = events({b.delta(0, piece("<tool_call>{\"name\"")), b.end(0, ended("", 3, FinishReason::kLength))});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["choices"][0]["delta"]["content"], "<tool_call>{\"name\"");
  EXPECT_EQ(all[1]["choices"][0]["finish_reason"], "length");
}

TEST(ServerStream, DetailsWaitWithTheirText) {
  CompletionRequest r = streamed(Api::kChat);
  r.tool_names = {"f"};
  r.spec_details = true;
  Answer a(r, facts());
  a.begin(0);
  for (const auto& [text, told] :
       {std::pair("Hello <to", "Hello"), std::pair("ol box", " <tool box"), std::pair(" x <tool", " x")}) {
    const auto all = events(a.delta(0, piece(text)));
    ASSERT_EQ(all.size(), 1u);
    std::string raw;
    for (const Json& share : all[0]["specextend"]["tokens"]) raw += share["text"].get<std::string>();
    EXPECT_EQ(all[0]["choices"][0]["delta"]["content"], told);
    EXPECT_EQ(raw, told);
  }
}

TEST(ServerStream, Native) {
  CompletionRequest r = streamed(Api::kNative);
  r.return_tokens = true;
  r.logprobs = 1;
  r.return_progress = true;
  Answer a(r, facts());
  ChoiceDelta progress;
  progress.progress = PromptProgress{6, 2, 4, 1};
  const auto all = events({a.begin(0), a.delta(0, progress), a.delta(0, piece("hi", {token(7, "h"), token(8, "i")})),
                           a.end(0, ended("hi")), a.finish()});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["prompt_progress"]["processed"], 4);
  EXPECT_EQ(all[0]["content"], "");
  EXPECT_EQ(all[1]["content"], "hi");
  EXPECT_EQ(all[1]["stop"], false);
  EXPECT_EQ(all[1]["tokens"].dump(), "[7,8]");
  EXPECT_EQ(all[1]["tokens_predicted"], 2);
  EXPECT_EQ(all[1]["completion_probabilities"].size(), 2u);
  EXPECT_EQ(all[2]["stop"], true);
  EXPECT_EQ(all[2]["content"], "");
  EXPECT_EQ(all[2]["tokens"].dump(), "[]");
  EXPECT_EQ(all[2]["tokens_predicted"], 3);
}

// llama.cpp's form has no ids of vLLM's, and no event for them.
TEST(ServerStream, NativeWithoutTokenIds) {
  CompletionRequest r = streamed(Api::kNative);
  r.token_ids = true;
  AnswerFacts f = facts({2});
  f.prompt_ids = {{5, 6}};
  Answer a(r, f);
  const std::vector<Json> told = events(a.delta(0, piece("a", {token(7, "a")})));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0]["content"], "a");
}

TEST(ServerStream, Errors) {
  const ApiError error(503, "unavailable_error", "ends", "", "shutting_down");
  const std::string data =
      R"(data: {"error":{"message":"ends","type":"unavailable_error","param":null,"code":"shutting_down"}})";
  EXPECT_EQ(Answer(streamed(Api::kChat), facts()).error(error), data + "\n\ndata: [DONE]\n\n");
  EXPECT_EQ(Answer(streamed(Api::kNative), facts()).error(error), data + "\n\n");
}

// The role comes with the first token, not before the prompt was read: clients measure the time in between.
TEST(ServerStream, TheRoleComesWithTheFirstToken) {
  CompletionRequest request;
  request.api = Api::kChat, request.stream = true, request.return_progress = true;
  Answer a(request, {"m", "f", {4}, {}});
  ChoiceDelta progress;
  progress.progress = PromptProgress{4, 0, 2, 1.0};
  const auto early = events(a.delta(0, progress));
  ASSERT_EQ(early.size(), 1u);
  EXPECT_FALSE(early[0]["choices"][0]["delta"].contains("role"));
  const auto first = events(a.delta(0, piece("A")));
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0]["choices"][0]["delta"].dump(), R"({"role":"assistant","content":""})");
  EXPECT_EQ(first[1]["choices"][0]["delta"]["content"], "A");
  EXPECT_EQ(events(a.delta(0, piece("B"))).size(), 1u);
  EXPECT_EQ(events(a.end(0, ended("AB"))).size(), 1u);
  // An answer without a token has a role as well.
  Answer empty(request, {"m", "f", {4}, {}});
  EXPECT_EQ(events(empty.end(0, ended("")))[0]["choices"][0]["delta"]["role"], "assistant");
}

TEST(ServerStream, ErrorsNameTheirRequest) {
  CompletionRequest request;
  request.api = Api::kChat, request.stream = true;
  Answer a(request, {"m", "f", {4}, {}, "req_7"});
  EXPECT_NE(a.error({503, "timeout", "late"}).find(R"("request_id":"req_7")"), std::string::npos);
}

}  // namespace
}  // namespace sx::server
