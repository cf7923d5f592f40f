// Thoughts apart from answers: which marks templates have, how texts are divided in any pieces, grammars behind
// thoughts, and answers that go on with what the assistant has begun.
#include "server/reasoning.h"

#include <gtest/gtest.h>
#include <specextend/grammar.h>

#include "server_answer.h"
#include "server_tokenizer.h"
#include "server/request_parts.h"
#include "text/grammar_support.h"

namespace sx::server {
namespace {

const ReasoningStyle kThink{"<think>", "</think>"};
const ReasoningStyle kControl{"<|START_THINKING|>", "<|END_THINKING|>", true};

// "thought|answer" in pieces of every size up to 7, which must all be the same; ";" between parts that follow.
std::string divided(const ReasoningStyle& style, ReasoningStart start, const std::string& text) {
  std::string first;
  for (size_t piece = 1; piece <= 7; ++piece) {
    ReasoningSplitter splitter(style, start);
    std::string thought, answer;
    const auto take = [&](const ReasoningSplitter::Pieces& pieces) {
      for (const auto& [reasoning, said] : pieces) (reasoning ? thought : answer) += said;
    };
    for (size_t i = 0; i < text.size(); i += piece) {
      take(splitter.add(text.substr(i, piece)));
      EXPECT_LE(splitter.taken(), std::min(text.size(), i + piece));
    }
    take(splitter.finish());
    EXPECT_EQ(splitter.taken(), text.size());
    const std::string all = thought + "|" + answer;
    if (piece == 1) first = all;
    EXPECT_EQ(all, first) << "pieces of " << piece;
  }
  return first;
}

TEST(ServerReasoning, Divides) {
  using S = ReasoningStart;
  EXPECT_EQ(divided(kThink, S::kMaybe, "<think>\nSo.\n</think>\n\nYes. "), "So.|Yes. ");
  EXPECT_EQ(divided(kThink, S::kMaybe, "\n<think>a < b </thin</think>c"), "a < b </thin|c");
  EXPECT_EQ(divided(kThink, S::kMaybe, "<thing> is not it"), "|<thing> is not it");
  EXPECT_EQ(divided(kThink, S::kMaybe, " Use <think> here"), "| Use <think> here");
  EXPECT_EQ(divided(kThink, S::kMaybe, "<think>\n\n</think>\n\nYes"), "|Yes");
  EXPECT_EQ(divided(kThink, S::kMaybe, "<think>never ended  "), "never ended|");
  EXPECT_EQ(divided(kThink, S::kMaybe, "<thi"), "|<thi");
  EXPECT_EQ(divided(kThink, S::kOpened, "So.\n</think>\n\nYes"), "So.|Yes");
  EXPECT_EQ(divided(kThink, S::kOpened, "<think>\nSo.</think>Yes"), "So.|Yes");  // the model repeats the mark
  EXPECT_EQ(divided(kThink, S::kOver, "<think>So</think>"), "|<think>So</think>");
  EXPECT_EQ(divided({}, S::kMaybe, "<think>So</think>"), "|<think>So</think>");
  // Control tokens cannot be meant otherwise: the model may think again.
  EXPECT_EQ(divided(kControl, S::kMaybe, "<|START_THINKING|>a<|END_THINKING|>b <|START_THINKING|>c<|END_THINKING|> d"),
            "ac|b d");
}

TEST(ServerReasoning, MarksOfTemplates) {
  EXPECT_EQ(reasoning_style("{{ content.split('</think>') }}").open, "<think>");
  EXPECT_EQ(reasoning_style("[THINK]{{ m }}[/THINK]").close, "[/THINK]");
  EXPECT_EQ(reasoning_style("<|channel|>analysis<|message|>").close, "<|end|>");
  EXPECT_EQ(reasoning_style("<|START_THINKING|>").close, "<|END_THINKING|>");
  EXPECT_FALSE(reasoning_style("{{ messages }}").any());
}

bool fulfils(const std::string& grammar, const std::string& text) {
  static const TestVocabulary kBytes;
  GrammarMatcher matcher(grammar, kBytes.trie);
  return matches(matcher, text);
}

TEST(ServerReasoning, GrammarsBindWhatFollows) {
  const std::string bound = "root ::= \"root\" other [root] # root\nother ::= \"x\" | root";
  const std::string maybe = after_reasoning(bound, kThink, ReasoningStart::kMaybe);
  EXPECT_TRUE(fulfils(maybe, "rootxr"));
  EXPECT_TRUE(fulfils(maybe, "<think>\nany < text </thin </think>\n\nrootxr"));
  EXPECT_FALSE(fulfils(maybe, "any text"));
  EXPECT_FALSE(fulfils(maybe, "<think>not ended"));
  const std::string opened = after_reasoning(bound, kThink, ReasoningStart::kOpened);
  EXPECT_TRUE(fulfils(opened, "hm</think>rootxo"));
  EXPECT_FALSE(fulfils(opened, "rootxo"));
  EXPECT_EQ(after_reasoning(bound, kThink, ReasoningStart::kOver), bound);
  EXPECT_EQ(after_reasoning("", kThink, ReasoningStart::kOpened), "");
  EXPECT_TRUE(fulfils(after_reasoning(bound, {"[THINK]", "[/THINK]"}, ReasoningStart::kMaybe),
                      "[THINK]a [b] ^-[/T[/THINK]rootxt"));
  const std::string schema =
      json_schema_to_gbnf(R"({"type": "object", "properties": {"root": {"type": "boolean"}}, "required": ["root"]})");
  EXPECT_TRUE(fulfils(after_reasoning(schema, kThink, ReasoningStart::kOpened), "So.</think>{\"root\": true}"));
}

TEST(ServerReasoning, GrammarsOfEither) {
  const std::string either = either_grammar("root ::= \"a\" x{1,2} # a\nx ::= [x\\]]", "root ::= \"b\" x\nx ::= \"y\"");
  for (const char* text : {"ax", "ax]", "by"}) EXPECT_TRUE(fulfils(either, text)) << text << either;
  for (const char* text : {"ay", "bx", "a", "axxx"}) EXPECT_FALSE(fulfils(either, text)) << text;
}

Limits with_marks() {
  Limits limits;
  limits.vocab = 300;
  limits.reasoning = kThink;
  return limits;
}

TEST(ServerReasoning, Prefill) {
  const FakeTokenizer words({});
  const auto parsed = [&](const std::string& more) {
    return read_chat_request(parse_object(R"({"messages": [{"role": "user", "content": "a"}, )" + more + "}"),
                             with_marks());
  };
  const CompletionRequest r = parsed(R"({"role": "assistant", "content": "The answer is"}])");
  EXPECT_EQ(r.messages, R"([{"role":"user","content":"a"}])");
  EXPECT_TRUE(chat_prompt(words, r).ends_with("The answer is"));
  EXPECT_EQ(parsed(R"({"role": "assistant", "content": "b"}], "continue_final_message": false)").prefill, "");
  EXPECT_EQ(parsed(R"({"role": "assistant", "content": "b"}], "add_generation_prompt": false)").prefill, "");
  EXPECT_EQ(parsed(R"({"role": "user", "content": "b"}])").prefill, "");
  EXPECT_EQ(parsed(R"({"role": "assistant", "content": "b", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}])")
                .prefill,
            "");
  std::string prompt = "<assistant><think>\n";
  append_prefill(prompt, "", "Yes", kThink);
  EXPECT_EQ(prompt, "<assistant><think>\n\n</think>\n\nYes");
  prompt = "<assistant>";
  append_prefill(prompt, "hm", "", kThink);
  EXPECT_EQ(prompt, "<assistant><think>\nhm");
  append_prefill(prompt, "", "plain", {});
  EXPECT_EQ(prompt, "<assistant><think>\nhmplain");
}

TEST(ServerReasoning, ThoughtsThatNobodyWants) {
  std::string prompt = "<assistant><think>\n";
  close_thought(prompt, kThink);
  EXPECT_EQ(prompt, "<assistant><think>\n</think>");
  close_thought(prompt, kThink);
  EXPECT_EQ(prompt, "<assistant><think>\n</think>");
  prompt = "<assistant><think>";
  close_thought(prompt, {});
  EXPECT_EQ(prompt, "<assistant><think>");
  Limits l = with_marks();
  const auto parsed = [&](const std::string& more) {
    return read_chat_request(parse_object(R"({"messages": [{"role": "user", "content": "a"}])" + more + "}"), l);
  };
  EXPECT_FALSE(parsed("").no_thoughts);
  EXPECT_FALSE(parsed(R"(, "reasoning_effort": "none")").no_thoughts);  // the template's own way to say so is taken
  l.thinks = false;
  EXPECT_TRUE(parsed(R"(, "reasoning_effort": "none")").no_thoughts);
  l.splits_thoughts = false;
  EXPECT_TRUE(parsed("").no_thoughts);
  EXPECT_FALSE(parsed("").reasoning.any());
  EXPECT_TRUE(parsed(R"(, "reasoning_format": "auto")").reasoning.any());
  EXPECT_FALSE(parsed(R"(, "chat_template_kwargs": {"enable_thinking": true})").no_thoughts);
  l.thinks = true;
  EXPECT_EQ(parsed("").template_variables, R"({"enable_thinking":true,"thinking":true})");
}

TEST(ServerReasoning, Requests) {
  const auto parsed = [&](const std::string& more) {
    return read_chat_request(parse_object(R"({"messages": [{"role": "user", "content": "a"}])" + more + "}"),
                             with_marks());
  };
  EXPECT_TRUE(parsed("").reasoning.any());
  EXPECT_FALSE(parsed(R"(, "reasoning_format": "none")").reasoning.any());
  EXPECT_THROW(parsed(R"(, "reasoning_format": "odd")"), ApiError);
  EXPECT_EQ(parsed(R"(, "reasoning_effort": "low")").template_variables, R"({"reasoning_effort":"low"})");
  EXPECT_EQ(parsed(R"(, "reasoning_effort": "none")").template_variables,
            R"({"enable_thinking":false,"thinking":false})");
  EXPECT_THROW(parsed(R"(, "reasoning_effort": "odd")"), ApiError);
}

TEST(ServerReasoning, Answers) {
  CompletionRequest r = request(Api::kChat);
  r.reasoning = kThink;
  const auto message = nlohmann::ordered_json::parse(
      Answer(r, facts()).whole({ended("<think>\nSo.\n</think>\n\nYes")}))["choices"][0]["message"];
  EXPECT_EQ(message.dump(), R"({"role":"assistant","content":"Yes","reasoning_content":"So."})");
  r.stream = true;
  Answer a(r, facts());
  std::string thought, content;
  for (const auto& e : events({a.delta(0, piece("<think>So")), a.delta(0, piece(".</think>")),
                               a.delta(0, piece("\nYes")), a.end(0, ended(""))})) {
    thought += e["choices"][0]["delta"].value("reasoning_content", "");
    content += e["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(thought + "|" + content, "So.|Yes");
}

// Of thoughts that are not to be told neither tokens nor shares of the text are.
TEST(ServerReasoning, UntoldThoughts) {
  CompletionRequest r = request(Api::kChat);
  r.reasoning = kThink, r.token_ids = true, r.logprobs = 0;
  const std::string text = "<think>\nSo.\n</think>\n\nYes!";
  ChoiceEnd end = ended(text);
  end.rest.tokens = {until(token(1, "<think>"), 7),   until(token(2, "\nSo"), 10), until(token(3, ".\n"), 12),
                     until(token(4, "</think>"), 20), until(token(5, "\n\n"), 22), until(token(6, "Yes"), 25),
                     until(token(7, "!"), 26)};
  end.result.tokens = {1, 2, 3, 4, 5, 6, 7};
  const auto labels = [](const nlohmann::ordered_json& choice) {
    std::string all;
    for (const auto& one : choice["logprobs"]["content"]) all += one["token"].get<std::string>();
    return all;
  };
  AnswerFacts with_ids = facts();
  with_ids.prompt_ids = {{1, 2}};
  const auto told = [&] { return nlohmann::ordered_json::parse(Answer(r, with_ids).whole({end}))["choices"][0]; };
  EXPECT_EQ(labels(told()), text);
  EXPECT_EQ(told()["token_ids"].dump(), "[1,2,3,4,5,6,7]");
  r.tells_thoughts = false;
  EXPECT_EQ(labels(told()), "Yes!");
  EXPECT_EQ(told()["token_ids"].dump(), "[6,7]");
  EXPECT_EQ(told()["message"].dump(), R"({"role":"assistant","content":"Yes!"})");
  r.stream = r.spec_details = true;
  Answer a(r, with_ids);
  std::string content, tokens, ids, shares;
  const auto& t = end.rest.tokens;
  std::string all = a.delta(0, piece("<think>\nSo", {t[0], t[1]}));
  all += a.delta(0, piece(".\n</think>", {t[2], t[3]}));
  all += a.delta(0, piece("\n\nYes", {t[4], t[5]}, 2));
  all += a.delta(0, piece("!", {t[6]}));
  all += a.end(0, ended(""));
  EXPECT_EQ(all.find("So"), std::string::npos) << all;
  for (const auto& e : events(all)) {
    const auto& choice = e["choices"][0];
    content += choice["delta"].value("content", "");
    if (!choice["logprobs"].is_null()) tokens += labels(choice);
    if (choice.contains("token_ids")) ids += choice["token_ids"].dump();
    if (e.contains("specextend"))
      for (const auto& share : e["specextend"]["tokens"]) shares += share["text"].get<std::string>();
  }
  EXPECT_EQ(content + "|" + tokens + "|" + ids + "|" + shares, "Yes!|Yes!|[6][7]|Yes!");
}

// Thoughts and the marks around them count as reasoning, whole and streamed.
TEST(ServerReasoning, Usage) {
  CompletionRequest r = request(Api::kChat);
  ChoiceEnd end = ended("<think>So.</think>Yes", 5);
  end.rest.tokens = {until(token(1, "<think>"), 7), until(token(2, "So"), 9), until(token(3, "."), 10),
                     until(token(4, "</think>"), 18), until(token(5, "Yes"), 21)};
  EXPECT_FALSE(
      nlohmann::ordered_json::parse(Answer(r, facts()).whole({end}))["usage"].contains("completion_tokens_details"));
  r.reasoning = kThink;
  const auto whole = nlohmann::ordered_json::parse(Answer(r, facts()).whole({end}))["usage"];
  EXPECT_EQ(whole["completion_tokens_details"].dump(), R"({"reasoning_tokens":4})");
  r.stream = r.include_usage = true;
  r.tells_thoughts = false;  // they were made all the same
  Answer a(r, facts());
  std::string text;
  for (const AnswerToken& one : end.rest.tokens) text += a.delta(0, piece(one.bytes, {one}));
  text += a.end(0, ended("", 5)) + a.finish();
  const auto all = events(text);
  EXPECT_EQ(all[all.size() - 2]["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
}

}  // namespace
}  // namespace sx::server
