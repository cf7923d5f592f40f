// Whole answers: their shapes, numbers, log-probabilities and tool calls.
#include "server/response.h"

#include <gtest/gtest.h>

#include "server_answer.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

Json whole(const CompletionRequest& r, const std::vector<ChoiceEnd>& ends, AnswerFacts f = facts()) {
  return Json::parse(Answer(r, std::move(f)).whole(ends));
}

TEST(ServerResponse, Chat) {
  const Json body = whole(request(Api::kChat), {ended("Hé\"llo")});
  EXPECT_EQ(body["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["system_fingerprint"], "fp");
  EXPECT_GT(body["created"].get<int64_t>(), 1700000000);
  EXPECT_EQ(
      body["choices"].dump(),
      R"([{"index":0,"message":{"role":"assistant","content":"Hé\"llo"},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}])");
  EXPECT_TRUE(body["prompt_logprobs"].is_null() && body["prompt_token_ids"].is_null());
  EXPECT_EQ(
      body["usage"].dump(),
      R"({"prompt_tokens":6,"completion_tokens":3,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":2}})");
  EXPECT_EQ(
      body["timings"].dump(),
      R"({"cache_n":2,"prompt_n":4,"prompt_ms":8.0,"prompt_per_token_ms":2.0,"prompt_per_second":500.0,"predicted_n":3,"predicted_ms":20.0,)"
      R"("predicted_per_token_ms":6.666666666666667,"predicted_per_second":150.0,"draft_n":5,"draft_n_accepted":2})");
  EXPECT_EQ(body["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"], 2);
  EXPECT_NE(whole(request(Api::kChat), {ended("")})["id"], body["id"]);
}

TEST(ServerResponse, SeveralPromptsAndChoices) {
  CompletionRequest r = request(Api::kText, 2);
  r.prompts.resize(2);
  r.echo = true;
  AnswerFacts f = facts({6, 10});
  f.echoes = {"P: ", "Q: "};
  std::vector<ChoiceEnd> ends{ended("a", 1), ended("b", 2), ended("c", 3, FinishReason::kLength),
                              ended("d", 4, FinishReason::kContext)};
  ends[2].result.spec.histogram = {1, 1, 1, 1};
  for (ChoiceEnd& end : ends) end.plain_per_second = 50;
  const Json body = whole(r, ends, f);
  EXPECT_EQ(body["object"], "text_completion");
  std::string all;
  for (const Json& c : body["choices"])
    all += std::to_string(c["index"].get<int>()) + c["text"].get<std::string>() +
           c["finish_reason"].get<std::string>() + " ";
  EXPECT_EQ(all, "0P: astop 1P: bstop 2Q: clength 3Q: dlength ");
  EXPECT_EQ(
      body["usage"].dump(),
      R"({"prompt_tokens":16,"completion_tokens":10,"total_tokens":26,"prompt_tokens_details":{"cached_tokens":4}})");
  EXPECT_EQ(body["timings"]["predicted_n"], 10);
  EXPECT_EQ(body["timings"]["predicted_ms"], 80.0);
  EXPECT_EQ(body["timings"]["plain_per_second"], 50.0);
  EXPECT_EQ(body["metrics"]["speculative_decoding"]["acceptance_histogram"].dump(), "[4,1,4,1]");
  EXPECT_EQ(body["metrics"]["speculative_decoding"]["num_draft_tokens"], 16);
  ends[3].plain_per_second = 0;
  EXPECT_FALSE(whole(r, ends, f)["timings"].contains("plain_per_second"));
}

TEST(ServerResponse, ChatLogprobs) {
  CompletionRequest r = request(Api::kChat);
  r.logprobs = 2;
  ChoiceEnd end = ended("hi");
  end.rest.tokens = {token(3, "h"), token(4, "\xE4", -0.5)};
  const Json content = whole(r, {end})["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content[0].dump(),
            R"({"token":"h","logprob":-1.0,"bytes":[104],"top_logprobs":[{"token":"h","logprob":-1.0,"bytes":[104]},)"
            R"({"token":"other","logprob":-2.0,"bytes":[111,116,104,101,114]}]})");
  EXPECT_EQ(content[1]["token"], "bytes:\\xe4");
  EXPECT_EQ(content[1]["bytes"].dump(), "[228]");
}

TEST(ServerResponse, TextLogprobs) {
  CompletionRequest r = request(Api::kText);
  r.logprobs = 1;
  ChoiceEnd end = ended("hé!");
  end.rest.tokens = {token(3, "hé"), token(4, "!")};
  end.rest.tokens[1].logprob.top.erase(
      end.rest.tokens[1].logprob.top.begin());  // the chosen one was not the most likely
  EXPECT_EQ(
      whole(r, {end})["choices"][0]["logprobs"].dump(),
      R"({"tokens":["hé","!"],"token_logprobs":[-1.0,-1.0],"top_logprobs":[{"hé":-1.0},{"!":-1.0,"other":-2.0}],"text_offset":[0,2]})");
  r.logprobs = 0;  // the chosen one
  EXPECT_EQ(whole(r, {end})["choices"][0]["logprobs"]["top_logprobs"].dump(), R"([{"hé":-1.0},{"!":-1.0}])");
  r.labels_are_ids = true;
  EXPECT_EQ(whole(r, {end})["choices"][0]["logprobs"]["tokens"].dump(), R"(["token_id:3","token_id:4"])");
}

// What vLLM tells of tokens.
TEST(ServerResponse, TokensAndThePrompt) {
  CompletionRequest r = request(Api::kText);
  r.token_ids = true, r.prompt_logprobs = 1;
  AnswerFacts f = facts({2});
  f.prompt_ids = {{5, 6}};
  ChoiceEnd end = ended("ab", 3, FinishReason::kStop);
  end.stopping_word = "c";
  end.prompt = {beginning(5, "x"), token(6, "y", -3)};
  end.prompt[1].logprob.rank = 4;
  const Json choice = whole(r, {end}, f)["choices"][0];
  EXPECT_EQ(choice["stop_reason"], "c");
  EXPECT_EQ(choice["token_ids"].dump(), "[7,8,9]");
  EXPECT_EQ(choice["prompt_token_ids"].dump(), "[5,6]");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const Json& prompt = choice["prompt_logprobs"];
  EXPECT_TRUE(prompt[0].is_null());
  EXPECT_EQ(prompt[1]["6"].dump(), R"({"logprob":-3.0,"rank":4,"decoded_token":"y"})");
  r.api = Api::kChat, r.prompts.clear();
  const Json chat = whole(r, {end}, f);
  EXPECT_EQ(chat["prompt_token_ids"].dump(), "[5,6]");
  EXPECT_EQ(chat["prompt_logprobs"], prompt);
  EXPECT_FALSE(chat["choices"][0].contains("prompt_token_ids"));
  r.stream = r.include_usage = r.usage_each = true, r.prompt_logprobs = -1, r.echo = true, r.prefill = "so ";
  Answer answer(r, f);
  end.rest.tokens = {token(9, "b")};
  end.rest.text = "b";
  const std::vector<Json> told =
      events({answer.delta(0, {.piece = {"a", {token(8, "a")}, {}}}), answer.end(0, end), answer.finish()});
  EXPECT_EQ(told[0]["prompt_token_ids"].dump(), "[5,6]");
  EXPECT_EQ(told[0]["choices"][0]["delta"]["content"], "so ");
  std::string counts, ids;
  for (size_t i = 0; i + 1 < told.size(); ++i) {
    counts += std::to_string(told[i]["usage"]["completion_tokens"].get<int>()) + " ";
    if (!told[i]["choices"].empty() && told[i]["choices"][0].contains("token_ids"))
      ids += told[i]["choices"][0]["token_ids"].dump();
  }
  EXPECT_EQ(counts, "0 1 2 2 3 ");  // of the last event: all generated ones
  EXPECT_EQ(ids, "[8][9]");
  EXPECT_EQ(told[3]["choices"][0]["stop_reason"], "c");
}

// The first choice of each prompt has them for all.
TEST(ServerResponse, ThePromptOfSeveralChoices) {
  CompletionRequest r = request(Api::kText, 2);
  r.prompts.resize(2), r.prompt_logprobs = 1;
  std::vector<ChoiceEnd> ends(4, ended("a"));
  ends[0].prompt = {beginning(5, "x"), token(6, "y", -3)};
  ends[2].prompt = {beginning(7, "z")};
  const Json texts = whole(r, ends, facts({2, 1}))["choices"];
  for (int i = 0; i < 2; ++i) EXPECT_EQ(texts[i]["prompt_logprobs"][1]["6"]["logprob"], -3) << i;
  for (int i = 2; i < 4; ++i) EXPECT_EQ(texts[i]["prompt_logprobs"].dump(), "[null]") << i;
  r.api = Api::kChat, r.prompts.clear();
  ends.resize(2);
  EXPECT_EQ(whole(r, ends, facts({2}))["prompt_logprobs"], texts[0]["prompt_logprobs"]);
}

TEST(ServerResponse, LogprobsOfThePrompt) {
  CompletionRequest r = request(Api::kText);
  r.logprobs = 1, r.echo = true;
  AnswerFacts f = facts({4});
  f.echoes = {"Hé du"};
  ChoiceEnd end = ended("!?");
  end.prompt = {beginning(1, "<s>"), token(2, " H", -3), token(3, "\xC3", -2), token(4, "\xA9 du", -4)};
  end.rest.tokens = {token(5, "!"), token(6, "?")};
  const Json choice = whole(r, {end}, f)["choices"][0];
  EXPECT_EQ(choice["text"], "Hé du!?");
  EXPECT_EQ(choice["logprobs"]["tokens"].dump(), R"(["<s>"," H","bytes:\\xc3","bytes:\\xa9\\x20\\x64\\x75","!","?"])");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"].dump(), "[null,-3.0,-2.0,-4.0,-1.0,-1.0]");
  EXPECT_EQ(choice["logprobs"]["text_offset"].dump(), "[0,0,1,2,5,6]");
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1].dump(), R"({" H":-3.0})");
  end.rest.tokens.clear();
  end.result.text.clear();
  EXPECT_EQ(whole(r, {end}, f)["choices"][0]["logprobs"]["token_logprobs"].dump(), "[null,-3.0,-2.0,-4.0]");
}

TEST(ServerResponse, ToolCalls) {
  CompletionRequest r = request(Api::kChat, 2);
  r.tool_names = {"f"};
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {"a": "\u00e9"}}</tool_call>)";
  const Json choices = whole(r, {ended(call + call), ended("Well. " + call, 3, FinishReason::kLength)})["choices"];
  const Json& message = choices[0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"].dump(), R"({"name":"f","arguments":"{\"a\":\"é\"}"})");
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  EXPECT_FALSE(message["tool_calls"][0].contains("index"));
  EXPECT_EQ(choices[0]["finish_reason"], "tool_calls");
  EXPECT_EQ(choices[1]["message"]["content"], "Well.");
  EXPECT_EQ(choices[1]["finish_reason"], "length");
  const Json plain = whole(r, {ended("Well."), ended("<tool_call>x")})["choices"];
  EXPECT_EQ(plain[0]["finish_reason"], "stop");
  EXPECT_EQ(plain[0]["message"].dump(), R"({"role":"assistant","content":"Well."})");
  EXPECT_EQ(plain[1]["message"]["content"], "<tool_call>x");
}

TEST(ServerResponse, Native) {
  CompletionRequest r = request(Api::kNative);
  r.options.max_tokens = 12;
  r.options.stop = {"X"};
  r.options.sampling.seed = 99;
  ChoiceEnd end = ended("hi", 3, FinishReason::kStop);
  end.stopping_word = "X";
  Json body = whole(r, {end});
  EXPECT_EQ(body["content"], "hi");
  EXPECT_EQ(body["tokens"].dump(), "[]");
  EXPECT_EQ(body["stop"], true);
  EXPECT_EQ(body["stop_type"], "word");
  EXPECT_EQ(body["stopping_word"], "X");
  EXPECT_EQ(body["id_slot"], 1);
  EXPECT_EQ(body["index"], 0);
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["tokens_predicted"], 3);
  EXPECT_EQ(body["tokens_evaluated"], 6);
  EXPECT_EQ(body["tokens_cached"], 9);
  EXPECT_EQ(body["truncated"], false);
  EXPECT_EQ(body["generation_settings"]["n_predict"], 12);
  EXPECT_EQ(body["generation_settings"]["seed"], 99);
  EXPECT_EQ(body["timings"]["predicted_n"], 3);
  EXPECT_FALSE(body.contains("completion_probabilities") || body.contains("choices"));
  const std::pair<FinishReason, const char*> reasons[] = {
      {FinishReason::kEnd, "eos"}, {FinishReason::kLength, "limit"}, {FinishReason::kContext, "limit"}};
  for (const auto& [reason, name] : reasons) {
    end.result.reason = reason;
    body = whole(r, {end});
    EXPECT_EQ(body["stop_type"], name);
    EXPECT_EQ(body["stopping_word"], "");
    EXPECT_EQ(body["truncated"], reason == FinishReason::kContext);
  }
  r.return_tokens = true;
  r.logprobs = 1;
  end.rest.tokens = {token(7, "h")};
  body = whole(r, {end});
  EXPECT_EQ(body["tokens"].dump(), "[7,8,9]");
  EXPECT_EQ(
      body["completion_probabilities"].dump(),
      R"([{"id":7,"token":"h","logprob":-1.0,"bytes":[104],"top_logprobs":[)"
      R"({"id":7,"token":"h","logprob":-1.0,"bytes":[104]},{"id":8,"token":"other","logprob":-2.0,"bytes":[111,116,104,101,114]}]}])");
}

TEST(ServerResponse, NumbersWithoutTime) {
  ChoiceEnd end = ended("");
  end.result.timings = {};
  EXPECT_EQ(whole(request(Api::kChat), {end})["timings"]["predicted_per_second"], 0.0);
}

TEST(ServerRounds, AreCollected) {
  RoundCollector c;
  EXPECT_EQ(c.times().plain_per_second, 0);
  RoundInfo round;
  const std::vector<int32_t> cells{0, 1, 2, 8, 9, 20};
  round.drafted = 5, round.verified = 4, round.accepted = 3, round.plain_ms = 10, round.refreshes = 1,
  round.cells = cells;
  round.times = {1, 2, 4, 8, 16, 32};
  c.on_round(round, 100);
  round.accepted = 0, round.plain_ms = 30, round.refreshes = 2, round.timings.generated_tokens = 5;
  round.decision = {.kind = "try", .why = "a try is due", .levels = 1, .tokens = 1.5, .steps = 1.25};
  c.on_round(round, 104);
  RoundNotes notes = c.take();
  ASSERT_EQ(notes.rounds.size(), 2u);
  EXPECT_EQ(notes.rounds[0].ms, 63);
  EXPECT_EQ(notes.rounds[0].verified, 4);
  EXPECT_EQ(notes.rounds[0].decision, "");
  EXPECT_EQ(notes.rounds[1].decision, "try");
  EXPECT_EQ(notes.rounds[1].why, "a try is due");
  EXPECT_EQ(notes.rounds[1].levels, 1);
  EXPECT_EQ(notes.rounds[1].expected_tokens, 1.5);
  EXPECT_EQ(notes.rounds[1].expected_steps, 1.25);
  EXPECT_EQ(notes.history, 104);
  EXPECT_EQ(notes.refreshes, 2);
  EXPECT_TRUE(notes.cells_changed);
  EXPECT_EQ(notes.cells, (std::vector<std::pair<int, int>>{{0, 3}, {8, 10}, {20, 21}}));
  EXPECT_NEAR(c.times().plain_per_second, 1000.0 * 5 / (4 * 10 + 30), 1e-9);
  EXPECT_EQ(c.times().drafted, 10);
  EXPECT_EQ(c.times().accepted, 3);
  EXPECT_EQ(c.times().timings.generated_tokens, 5);
  round.plain_ms = 0;
  c.on_round(round, 105);  // the same cells; a time that is not known does not count
  RoundNotes next = c.take();
  EXPECT_FALSE(next.cells_changed);
  EXPECT_NEAR(c.times().plain_per_second, 1000.0 * 5 / 70, 1e-9);
  EXPECT_TRUE(c.take().rounds.empty());
  round.cells = {};
  c.on_round(round, 106);
  EXPECT_TRUE(c.take().cells_changed);
  notes.append(std::move(next));
  EXPECT_EQ(notes.rounds.size(), 3u);
  EXPECT_EQ(notes.history, 105);
  EXPECT_EQ(notes.cells.size(), 3u);
  EXPECT_TRUE(notes.cells_changed);
  notes.append({});
  EXPECT_EQ(notes.history, 105);
}

}  // namespace
}  // namespace sx::server
