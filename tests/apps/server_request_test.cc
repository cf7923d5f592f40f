// Requests to the server as JSON: what is taken, what it becomes, and that whatever is wrong is a 400 that names the
// field.
#include "server/request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/response.h"
#include "text/grammar/matcher.h"
#include "server_tokenizer.h"
#include "server_refusal.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

const Limits kLimits = [] {
  Limits limits;
  limits.vocab = 100, limits.stops = 2, limits.stop_bytes = 8, limits.biases = 2, limits.prompts = 3, limits.jobs = 20;
  limits.presets = {"off", "suffix"}, limits.grammar_bytes = 40, limits.schema_bytes = 80;
  return limits;
}();

CompletionRequest completion(const std::string& fields) {
  return parse_completion(R"({"prompt": "Hi")" + (fields.empty() ? "" : ", " + fields) + "}", kLimits);
}

std::string refused(const std::string& fields) {
  return culprit([&] { completion(fields); });
}

TEST(ServerRequest, DefaultsAreOpenAis) {
  const CompletionRequest r = completion("");
  EXPECT_EQ(r.prompts.at(0).at(0).text, "Hi");
  EXPECT_EQ(r.options.max_tokens, 16);
  EXPECT_EQ(r.options.sampling.temperature, 1);
  EXPECT_EQ(r.options.sampling.top_p, 1);
  EXPECT_EQ(r.options.sampling.top_k, 0);
  EXPECT_EQ(r.options.sampling.min_p, 0);
  EXPECT_TRUE(r.options.speculate);
  EXPECT_FALSE(r.seeded);
  EXPECT_FALSE(r.stream);
  EXPECT_EQ(parse_chat(R"({"messages":[{"role":"user","content":"a"}]})", kLimits).options.max_tokens, -1);
}

TEST(ServerRequest, FieldsArriveWhereTheyBelong) {
  const CompletionRequest r =
      completion(R"("max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125,
      "presence_penalty": -1, "frequency_penalty": 2, "repeat_penalty": 1.5, "repeat_last_n": -1, "seed": 18446744073709551615,
      "stop": ["a", "b"], "logit_bias": {"7": -100, "99": 1.5}, "stream": true, "stream_options": {"include_usage": true},
      "speculate": false, "ignore_eos": true, "user": "somebody", "n": 1, "echo": false, "tools": [], "logprobs": null)");
  const SamplingOptions& s = r.options.sampling;
  EXPECT_EQ(r.options.max_tokens, 7);
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.presence_penalty, -1);
  EXPECT_EQ(s.frequency_penalty, 2);
  EXPECT_EQ(s.repeat_penalty, 1.5f);
  EXPECT_EQ(s.repeat_last_n, -1);
  EXPECT_EQ(s.seed, ~uint64_t(0));
  EXPECT_TRUE(r.seeded);
  EXPECT_EQ(r.options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<Token, float>>{{7, -100.f}, {99, 1.5f}}));
  EXPECT_TRUE(r.stream && r.include_usage && r.options.ignore_end);
  EXPECT_FALSE(r.options.speculate);
  EXPECT_EQ(completion(R"("max_completion_tokens": 5, "max_tokens": 9)").options.max_tokens, 5);
  EXPECT_EQ(completion(R"("logit_bias": [[3, 2]])").options.sampling.logit_bias.at(0).first, 3);
  EXPECT_FALSE(completion(R"("seed": -1)").seeded);
  EXPECT_EQ(parse_completion(R"({"prompt": [1, 2, 99]})", kLimits).prompts.at(0).at(0).tokens,
            (std::vector<Token>{1, 2, 99}));
  EXPECT_EQ(parse_completion(R"({"prompt": ["one"]})", kLimits).prompts.at(0).at(0).text, "one");
  EXPECT_EQ(parse_completion(R"({"prompt": "x"})", kLimits).api, Api::kText);
}

TEST(ServerRequest, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("max_tokens": "7")", "max_tokens"},
      {R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_tokens": -2)", "max_tokens"},
      {R"("max_tokens": 99999999999999999999)", "max_tokens"},
      {R"("max_tokens": 18446744073709551615)", "max_tokens"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("temperature": 2.1)", "temperature"},
      {R"("temperature": true)", "temperature"},
      {R"("temperature": [])", "temperature"},
      {R"("top_p": 1.5)", "top_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("top_k": 1e300)", "top_k"},
      {R"("min_p": 2)", "min_p"},
      {R"("presence_penalty": 3)", "presence_penalty"},
      {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("repeat_penalty": 0)", "repeat_penalty"},
      {R"("seed": "x")", "seed"},
      {R"("seed": 0.5)", "seed"},
      {R"("stop": 5)", "stop"},
      {R"("stop": "")", "stop"},
      {R"("stop": ["a", 1])", "stop"},
      {R"("stop": ["a", "b", "c"])", "stop"},
      {R"("stop": "123456789")", "stop"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"100": 1})", "logit_bias"},
      {R"("logit_bias": {"-1": 1})", "logit_bias"},
      {R"("logit_bias": {"1": 101})", "logit_bias"},
      {R"("logit_bias": {"1": null})", "logit_bias"},
      {R"("logit_bias": 3)", "logit_bias"},
      {R"("logit_bias": [[1]])", "logit_bias"},
      {R"("logit_bias": {"1": 1, "2": 1, "3": 1})", "logit_bias"},
      {R"("logit_bias": {"99999999999999999999": 1})", "logit_bias"},
      {R"("n": 17)", "n"},
      {R"("n": 0)", "n"},
      {R"("n": "2")", "n"},
      {R"("best_of": 3)", "best_of"},
      {R"("n": 2, "best_of": 1)", "best_of"},
      {R"("logprobs": 21)", "logprobs"},
      {R"("logprobs": -1)", "logprobs"},
      {R"("logprobs": true)", "logprobs"},
      {R"("logprobs": "1")", "logprobs"},
      {R"("echo": 1)", "echo"},
      {R"("tools": [{}])", "tools"},
      {R"("tools": 1)", "tools"},
      {R"("functions": [{}])", "functions"},
      {R"("response_format": {"type": "xml"})", "response_format"},
      {R"("response_format": "text")", "response_format"},
      {R"("response_format": {"type": "json_schema"})", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": 5}})", "response_format"},
      {R"("response_format": {"type": "json_object", "schema": {"type": "nonsense"}})", "response_format"},
      {R"("json_schema": "x")", "json_schema"},
      {R"("json_schema": {"type": "nonsense"})", "json_schema"},
      {R"("json_schema": {"description": "0123456789012345678901234567890123456789012345678901234567890123456789"})",
       "json_schema"},
      {R"("grammar": 5)", "grammar"},
      {R"("grammar": "root ::= \"01234567890123456789012345678901234567890123456789\"")", "grammar"},
      {R"("grammar": "root ::= \"x\"", "json_schema": {})", "grammar"},
      {R"("response_format": {"type": "json_object"}, "json_schema": {})", "json_schema"},
      {R"("guided_json": 1)", "guided_json"},
      {R"("suffix": "end")", "suffix"},
      {R"("stream": 1)", "stream"},
      {R"("spec_preset": "magic")", "spec_preset"},
      {R"("spec_preset": 5)", "spec_preset"},
      {R"("spec_nodes": 0)", "spec_nodes"},
      {R"("spec_depth": 1025)", "spec_depth"},
      {R"("spec_details": 1)", "spec_details"},
      {R"("spec_topk": 4)", "spec_topk"},
      {R"("return_progress": "x")", "return_progress"},
      {R"("cache_prompt": 0)", "cache_prompt"},
      {R"("timings_per_token": 0)", "timings_per_token"},
      {R"("logit_bias": [[18446744073709551615, 1]])", "logit_bias"},
      {R"("logit_bias": [[1, true]])", "logit_bias"},
      {R"("stream_options": {})", "stream_options"},
      {R"("stream": true, "stream_options": 1)", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "include_usage"},
      {R"("speculate": "no")", "speculate"},
      {R"("model": 4)", "model"},
  };
  for (const auto& [fields, name] : cases) EXPECT_EQ(refused(fields), name) << fields;
}

// Whatever the table says is missing: refused by name, unless it asks for nothing.
TEST(ServerRequest, WhatIsMissingIsRefused) {
  EXPECT_GE(missing_fields().size(), 36u);
  for (const auto& [name, neutral] : missing_fields()) {
    const std::string field = "\"" + std::string(name) + "\": ";
    for (const char* value : {"0.37", "[\"x\"]", "{\"x\": 1}", "\"x\"", "true"})
      EXPECT_EQ(refused(field + value), name) << value;
    for (const char* value : {"null", "false", "[]", "{}", "\"\""})
      EXPECT_EQ(refused(field + value), "none") << name << value;
    for (const Json& value : Json::parse(neutral)) EXPECT_EQ(refused(field + value.dump()), "none") << name << value;
    EXPECT_EQ(culprit([&] { parse_native("{\"prompt\": \"a\", " + field + "0.37}", kLimits); }), name);
    EXPECT_EQ(culprit([&] {
                parse_chat("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], " + field + "0.37}", kLimits);
              }),
              name);
  }
  // The ones that clients of other servers send most.
  for (const char* fields :
       {R"("use_beam_search": true)", R"("mirostat": 2)", R"("typical_p": 0.9)", R"("dry_multiplier": 0.8)",
        R"("xtc_probability": 0.5)", R"("bad_words": ["x"])", R"("length_penalty": 0.5)", R"("dynatemp_range": 0.5)",
        R"("top_n_sigma": 1)", R"("early_stopping": true)"})
    EXPECT_NE(refused(fields), "none") << fields;
  // As llama.cpp's own clients send everything that is off.
  EXPECT_EQ(
      refused(
          R"("mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "typical_p": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75,
      "dry_allowed_length": 2, "xtc_probability": 0, "xtc_threshold": 0.1, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "min_keep": 0)"),
      "none");
}

// vLLM's ways to bind a text, new and old; whatever is wrong names the field.
TEST(ServerRequest, StructuredOutputs) {
  const auto grammar = [](const std::string& fields) { return completion(fields).options.grammar; };
  EXPECT_EQ(grammar(R"("structured_outputs": {"choice": ["yes", "n\"o"]})"), "root ::= \"yes\" | \"n\\\"o\"");
  EXPECT_EQ(grammar(R"("structured_outputs": {"grammar": "root ::= \"a\"", "json": null})"), "root ::= \"a\"");
  EXPECT_EQ(grammar(R"("structured_outputs": {"regex": "[ab]+"})"), regex_to_gbnf("[ab]+"));
  const std::string schema = json_schema_to_gbnf(R"({"type":"integer"})");
  EXPECT_EQ(grammar(R"("structured_outputs": {"json": {"type": "integer"}})"), schema);
  EXPECT_EQ(grammar(R"("guided_json": "{\"type\": \"integer\"}")"), schema);
  EXPECT_EQ(grammar(R"("structured_outputs": {"json_object": true})"),
            grammar(R"("response_format": {"type": "json_object"})"));
  EXPECT_EQ(grammar(R"("guided_choice": ["a"])"), grammar(R"("structured_outputs": {"choice": ["a"]})"));
  EXPECT_EQ(grammar(R"("guided_regex": "a")"), grammar(R"("structured_outputs": {"regex": "a"})"));
  EXPECT_EQ(grammar(R"("guided_grammar": "root ::= \"a\"")"), "root ::= \"a\"");
  EXPECT_EQ(grammar(R"("structured_outputs": {"disable_any_whitespace": false})"), "");
  for (const char* wrong :
       {R"({"regex": "[.*"})", R"({"regex": ""})", R"({"regex": {"1": "a"}})", R"({"grammar": ""})",
        R"({"grammar": 1})", R"({"choice": []})", R"({"choice": [1]})", R"({"choice": "a"})", R"({"json": "{"})",
        R"({"json": 1})", R"({"json": {"type": "no"}})", R"({"regex": "a", "choice": ["a"]})",
        R"({"structural_tag": "x"})", R"({"disable_any_whitespace": true})", R"([1])", R"("x")",
        R"({"choice": ["0123456789012345678901234567890123456789"]})", R"({"json_object": "no"})",
        R"({"json_object": 0})"})
    EXPECT_EQ(refused(R"("structured_outputs": )" + std::string(wrong)), "structured_outputs") << wrong;
  EXPECT_EQ(refused(R"("guided_regex": "(")"), "guided_regex");
  EXPECT_EQ(refused(R"("guided_choice": [])"), "guided_choice");
  EXPECT_EQ(grammar(R"("guided_json": {})"), grammar(R"("structured_outputs": {"json": {}})"));
  EXPECT_NE(grammar(R"("guided_json": {})"), "");
  EXPECT_EQ(grammar(R"("guided_json": null, "guided_regex": "", "structured_outputs": {"json_object": false})"), "");
  EXPECT_EQ(refused(R"("grammar": "root ::= \"a\"", "guided_choice": ["a"])"), "guided_choice");
}

// The field that binds the text is known where its grammar turns out to be wrong later.
TEST(ServerRequest, TheFieldOfTheGrammarIsKept) {
  const auto kept = [](const std::string& fields) { return completion(fields).grammar_field; };
  EXPECT_EQ(kept(""), "");
  EXPECT_EQ(kept(R"("grammar": "root ::= x")"), "grammar");
  EXPECT_EQ(kept(R"("structured_outputs": {"grammar": "root ::= x"})"), "structured_outputs");
  EXPECT_EQ(kept(R"("guided_grammar": "root ::= x")"), "guided_grammar");
  EXPECT_EQ(kept(R"("response_format": {"type": "json_object"})"), "response_format");
}

// As many choices as may be given are a grammar that can be followed.
TEST(ServerRequest, TheLongestListOfChoices) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, char(b));
  for (int i = 0; i < 100; ++i) bytes.push_back("choice " + std::to_string(i));
  bytes.emplace_back("</s>");
  const Token end = Token(bytes.size()) - 1;
  const auto trie = std::make_shared<const TokenTrie>(bytes, std::span(&end, 1), int(bytes.size()));
  const auto parsed = [](int choices) {
    Json list = Json::array();
    for (int i = 0; i < choices; ++i) list.push_back("choice " + std::to_string(i) + (i % 3 ? "" : " of many"));
    return parse_completion(Json{{"prompt", "a"}, {"structured_outputs", {{"choice", list}}}}.dump(), {});
  };
  GrammarMatcher matcher(parsed(2048).options.grammar, trie);
  EXPECT_EQ((*matcher.mask(matcher.start()))['c' / 32], 1u << ('c' % 32));
  EXPECT_TRUE(matcher.can_end(matcher.advance(matcher.start(), std::string_view("choice 2046 of many"))));
  EXPECT_EQ(culprit([&] { parsed(2049); }), "structured_outputs");
}

// What vLLM's clients ask of tokens.
TEST(ServerRequest, FieldsOfTokens) {
  const CompletionRequest r = completion(
      R"("min_tokens": 3, "return_token_ids": true, "return_tokens_as_token_ids": true, "prompt_logprobs": 2,
      "truncate_prompt_tokens": 4, "truncation_side": "right", "max_tokens": 5)");
  EXPECT_TRUE(r.token_ids && r.labels_are_ids && r.keeps_beginning && r.scores_prompt());
  EXPECT_TRUE(r.scores_prompt(0) && !r.scores_prompt(1));
  EXPECT_EQ(r.options.min_tokens, 3);
  EXPECT_EQ(r.prompt_logprobs, 2);
  EXPECT_EQ(r.most_prompt_tokens, 4);
  EXPECT_TRUE(completion(R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})")
                  .usage_each);
  EXPECT_FALSE(completion(R"("stream": true, "stream_options": {"continuous_usage_stats": true})").usage_each);
  EXPECT_EQ(refused(R"("min_tokens": 17)"), "min_tokens");
  EXPECT_EQ(refused(R"("prompt_logprobs": -1)"), "prompt_logprobs");
  EXPECT_EQ(refused(R"("prompt_logprobs": 1, "stream": true)"), "prompt_logprobs");
  EXPECT_EQ(refused(R"("truncate_prompt_tokens": 0)"), "truncate_prompt_tokens");
  EXPECT_EQ(refused(R"("truncation_side": "middle")"), "truncation_side");
  EXPECT_EQ(refused(R"("truncate_prompt_tokens": 4, "echo": true)"), "echo");
  EXPECT_EQ(culprit([] { parse_native(R"({"prompt": "a", "prompt_logprobs": 1})", kLimits); }), "prompt_logprobs");
  const auto chat = [](const std::string& fields) {
    return parse_chat(
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])" + fields + "}",
        kLimits);
  };
  EXPECT_EQ(chat(R"(, "echo": true)").prefill, "b");
  EXPECT_FALSE(chat(R"(, "include_reasoning": false)").tells_thoughts);
  try {
    completion(R"("logit_bias": {"bad1": 50, "bad2": 20})");
    ADD_FAILURE();
  } catch (const ApiError& error) {  // all of them
    EXPECT_NE(error.message.find("\"bad1\", \"bad2\""), std::string::npos) << error.message;
  }
}

TEST(ServerRequest, WholeNumbersHoweverTheyAreWritten) {
  EXPECT_EQ(completion(R"("seed": 42.0)").options.sampling.seed, 42u);
  EXPECT_EQ(completion(R"("seed": 9223372036854775808)").options.sampling.seed, uint64_t(1) << 63);
  EXPECT_EQ(completion(R"("seed": -2)").options.sampling.seed, ~uint64_t(0) - 1);
  EXPECT_FALSE(completion(R"("seed": -1.0)").seeded);
  for (const char* seed : {"18446744073709551616", "99999999999999999999", "-9223372036854775809", "1e300", "-1e300",
                           "0.5", "\"42\"", "true", "[]"})
    EXPECT_EQ(refused("\"seed\": " + std::string(seed)), "seed") << seed;
  EXPECT_EQ(completion(R"("logit_bias": [[3.0, 2]], "top_k": 5.0, "n": 2.0)").options.sampling.logit_bias.at(0).first,
            3);
  EXPECT_EQ(parse_completion(R"({"prompt": [1.0, 2]})", kLimits).prompts.at(0).at(0).tokens,
            (std::vector<Token>{1, 2}));
}

// What the documents promise: 256 KiB, of a schema or of all tools together, also where a call is forced.
TEST(ServerRequest, LargeSchemas) {
  const auto schema = [](size_t size) {
    return R"({"type": "object", "properties": {"a": {"type": "integer", "description": ")" + std::string(size, 'x') +
           "\"}}}";
  };
  const auto whole = [&](size_t size) {
    return culprit(
        [&] { parse_completion(R"({"prompt": "a", "json_schema": )" + schema(size) + "}", {.vocab = 100}); });
  };
  EXPECT_EQ(whole(255 << 10), "none");
  EXPECT_EQ(whole(256 << 10), "json_schema");
  const auto tools = [&](size_t size) {
    std::string list;
    for (int i = 0; i < 128; ++i)
      list += fmt::format("{}{{\"type\": \"function\", \"function\": {{\"name\": \"f{}\", \"parameters\": {}}}}}",
                          i ? ", " : "", i, schema(size / 128));
    const std::string body =
        R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required", "tools": [)" + list + "]}";
    return culprit([&] { parse_chat(body, {.vocab = 100}); });
  };
  EXPECT_EQ(tools(235 << 10), "none");
  EXPECT_EQ(tools(256 << 10), "tools");
}

TEST(ServerRequest, StopTokens) {
  EXPECT_EQ(completion(R"("stop_token_ids": [7, 9.0])").options.stop_tokens, (std::vector<Token>{7, 9}));
  EXPECT_TRUE(completion(R"("stop_token_ids": [])").options.stop_tokens.empty());
  for (const char* wrong : {"[100]", "[-1]", "5", "[\"a\"]", "[1.5]", "[1, 2, 3]"})
    EXPECT_EQ(refused("\"stop_token_ids\": " + std::string(wrong)), "stop_token_ids") << wrong;
  EXPECT_TRUE(completion(R"("skip_special_tokens": false)").options.show_special);
  EXPECT_FALSE(completion(R"("skip_special_tokens": true)").options.show_special);
}

TEST(ServerRequest, FurtherFields) {
  const CompletionRequest r =
      completion(R"("n": 3, "best_of": 3, "logprobs": 4, "spec_preset": "suffix", "spec_nodes": 8, "spec_depth": 4,
      "spec_details": true, "return_progress": true, "cache_prompt": false, "grammar": "root ::= \"x\"", "suffix": "", "max_tokens": 5.0)");
  EXPECT_EQ(r.n, 3);
  EXPECT_EQ(r.choices(), 3u);
  EXPECT_EQ(r.logprobs, 4);
  EXPECT_TRUE(r.options.token_logits);
  EXPECT_EQ(r.options.preset, "suffix");
  EXPECT_EQ(r.options.draft_nodes, 8);
  EXPECT_EQ(r.options.draft_depth, 4);
  EXPECT_EQ(r.options.grammar, "root ::= \"x\"");
  EXPECT_EQ(r.options.max_tokens, 5);
  EXPECT_TRUE(r.spec_details && r.return_progress && !r.cache_prompt);
  const CompletionRequest plain = completion("");
  EXPECT_TRUE(plain.n == 1 && plain.logprobs == -1 && !plain.options.token_logits && plain.cache_prompt && !plain.echo);
  EXPECT_TRUE(plain.options.preset.empty() && plain.options.grammar.empty() && plain.options.draft_nodes == -1);
  EXPECT_FALSE(plain.spec_details || plain.return_progress || plain.options.show_special);
  const CompletionRequest keyed = completion(R"("prompt_cache_key": "doc-1", "cache_salt": "s")");
  EXPECT_TRUE(keyed.prompts.at(0).at(0).text == "Hi" && keyed.cache_salt == "s" && plain.cache_salt.empty());
  EXPECT_EQ(completion(R"("prompt_cache_key": "doc-1")").cache_salt, "");
  EXPECT_EQ(refused(R"("prompt_cache_key": 7)"), "prompt_cache_key");
  EXPECT_EQ(completion(R"("logprobs": 0)").logprobs, 0);
  EXPECT_EQ(completion(R"("logprobs": false)").logprobs, -1);
  const CompletionRequest echo = completion(R"("echo": true)"),
                          scored = completion(R"("echo": true, "logprobs": 0, "max_tokens": 0)");
  EXPECT_TRUE(echo.echo && !echo.scores_prompt() && !r.scores_prompt());
  EXPECT_TRUE(scored.scores_prompt() && scored.options.max_tokens == 0);
  EXPECT_TRUE(scored.scores_prompt(0) && scored.scores_prompt(1));  // each has its own echo
  EXPECT_EQ(completion(R"("logit_bias": [[3, false]])").options.sampling.logit_bias.at(0).second, -1e9f);
  EXPECT_EQ(completion(R"("response_format": {"type": "text"})").options.grammar, "");
  EXPECT_EQ(completion(R"("json_schema": "", "grammar": "")").options.grammar, "");
  const std::string object = completion(R"("response_format": {"type": "json_object"})").options.grammar;
  EXPECT_EQ(object, json_schema_to_gbnf(R"({"type":"object"})"));
  EXPECT_EQ(completion(R"("json_schema": {"type": "object"})").options.grammar, object);
  EXPECT_EQ(
      completion(
          R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "integer"}}})")
          .options.grammar,
      json_schema_to_gbnf(R"({"type":"integer"})"));
}

TEST(ServerRequest, PromptsAreChecked) {
  for (const char* body :
       {"{}", R"({"prompt": null})", R"({"prompt": 5})", R"({"prompt": []})", R"({"prompt": ["a", 1]})",
        R"({"prompt": [1, "a"]})", R"({"prompt": [100]})", R"({"prompt": [-1]})", R"({"prompt": [1.5]})",
        R"({"prompt": [[]]})", R"({"prompt": [[1], [100]]})", R"({"prompt": [[[1]]]})", R"({"prompt": {"a": 1}})",
        R"({"prompt": [18446744073709551615]})", R"({"prompt": ["a", "b", "c", "d"]})", R"({"prompt": [null]})"})
    EXPECT_EQ(culprit([&] { parse_completion(body, kLimits); }), "prompt") << body;
  try {
    parse_completion(R"({"prompt": [1, 100]})", kLimits);
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(std::string(error.what()), "'prompt' must hold token ids from 0 to 99: 100 is out of vocabulary");
  }
  EXPECT_EQ(culprit([&] { parse_completion(R"({"prompt": ["a", "b"], "n": 11})", kLimits); }), "n");
  EXPECT_EQ(culprit([&] { parse_completion(R"({"prompt": ["a", "b"], "n": 10})", kLimits); }), "none");
}

TEST(ServerRequest, PromptsBecomeTokens) {
  const FakeTokenizer words(std::vector<std::string>(100, "w"));
  const auto tokens = [&](const char* body) { return prompt_tokens(words, parse_completion(body, kLimits)); };
  using Lists = std::vector<std::vector<Token>>;
  EXPECT_EQ(tokens(R"({"prompt": "AB"})"), (Lists{{0, 65, 66}}));
  EXPECT_EQ(tokens(R"({"prompt": [5, 6]})"), (Lists{{5, 6}}));
  EXPECT_EQ(tokens(R"({"prompt": ["A", [7], "B"]})"), (Lists{{0, 65}, {7}, {0, 66}}));
  EXPECT_EQ(parse_completion(R"({"prompt": ["A", [7], "B"], "n": 2})", kLimits).choices(), 6u);
  const CompletionRequest echo = parse_completion(R"({"prompt": ["A", [7]], "echo": true})", kLimits);
  EXPECT_EQ(echo_text(words, echo.prompts[0]), "A");
  EXPECT_EQ(echo_text(words, echo.prompts[1]), "w");
  const FakeTokenizer few({"w"});
  EXPECT_EQ(culprit([&] { echo_text(few, echo.prompts[1]); }), "prompt");
  const auto native = [&](const char* body) { return prompt_tokens(words, parse_native(body, kLimits)); };
  EXPECT_EQ(native(R"({"prompt": [1, 2, "A", 3, "B", "C"]})"), (Lists{{1, 2, 65, 3, 66, 67}}));
  EXPECT_EQ(native(R"({"prompt": ["A", 3]})"), (Lists{{0, 65, 3}}));
  EXPECT_EQ(culprit([&] { prompt_tokens(words, parse_native(R"({"prompt": [1, ""]})", kLimits)); }), "none");
  for (const char* body :
       {R"({"prompt": [1, null]})", R"({"prompt": [1, [1]]})", "{}", R"({"prompt": []})", R"({"prompt": [100]})",
        R"({"prompt": {"prompt_string": "A", "multimodal_data": ["x"]}})", R"({"prompt": [["A", null]]})"})
    EXPECT_EQ(culprit([&] { native(body); }), "prompt") << body;
  EXPECT_EQ(culprit([&] { native(R"({"prompt": {}})"); }), "prompt_string");
  // A list without a token id has a prompt in each place, and the answer is a list.
  EXPECT_EQ(native(R"({"prompt": ["A", [1, "B"], {"prompt_string": "C"}]})"), (Lists{{0, 65}, {1, 66}, {0, 67}}));
  EXPECT_TRUE(parse_native(R"({"prompt": [[1]]})", kLimits).in_list);
  EXPECT_FALSE(parse_native(R"({"prompt": [1, "A"]})", kLimits).in_list);
}

TEST(ServerRequest, DefaultsOfTheServer) {
  Limits limits = kLimits;
  limits.seed = 42;
  limits.temperature = 0.25;
  const CompletionRequest plain = parse_completion(R"({"prompt": "a"})", limits);
  EXPECT_TRUE(plain.seeded && plain.options.sampling.seed == 42 && plain.options.sampling.temperature == 0.25f);
  const CompletionRequest own = parse_native(R"({"prompt": "a", "seed": 7, "temperature": 1.5})", limits);
  EXPECT_TRUE(own.seeded && own.options.sampling.seed == 7 && own.options.sampling.temperature == 1.5f);
  EXPECT_FALSE(parse_native(R"({"prompt": "a", "seed": -1})", limits).seeded);
}

TEST(ServerRequest, TextsInLogitBias) {
  Limits limits = kLimits;
  limits.biases = 4;
  limits.tokenize = [](const std::string& text) { return std::vector<Token>(text.begin(), text.end()); };
  using Biases = std::vector<std::pair<Token, float>>;
  const auto biases = [&](const std::string& bias) {
    return parse_native(R"({"prompt": "a", "logit_bias": )" + bias + "}", limits).options.sampling.logit_bias;
  };
  EXPECT_EQ(biases(R"([["AB", -2], [7, 1]])"), (Biases{{65, -2.f}, {66, -2.f}, {7, 1.f}}));
  EXPECT_EQ(biases(R"({"A": -2, "7": 1})"), (Biases{{65, -2.f}, {7, 1.f}}));
  for (const char* bias : {R"([["ABCDE", -2]])", R"([["", -2]])", R"([["A"]])", R"({"A": "x"})"})
    EXPECT_EQ(culprit([&] { biases(bias); }), "logit_bias") << bias;
}

TEST(ServerRequest, NativeFields) {
  const CompletionRequest r = parse_native(
      R"({"prompt": "a", "n_predict": 9, "n_probs": 3, "return_tokens": true, "id_slot": 2, "temperature": 5})",
      kLimits);
  EXPECT_EQ(r.api, Api::kNative);
  EXPECT_EQ(r.options.max_tokens, 9);
  EXPECT_EQ(r.logprobs, 3);
  EXPECT_EQ(r.slot, 2);
  EXPECT_EQ(r.options.sampling.temperature, 5);
  EXPECT_TRUE(r.return_tokens);
  const CompletionRequest plain = parse_native(R"({"prompt": "a", "n_probs": 0})", kLimits);
  const SamplingOptions& s = plain.options.sampling;
  EXPECT_EQ(plain.options.max_tokens, -1);
  EXPECT_EQ(plain.logprobs, -1);
  EXPECT_EQ(plain.slot, -1);
  EXPECT_TRUE(s.temperature == 0.8f && s.top_k == 40 && s.top_p == 0.95f && s.min_p == 0.05f && s.repeat_last_n == 64);
  const std::pair<const char*, const char*> cases[] = {{R"("n": 2)", "n"},
                                                       {R"("n_probs": 21)", "n_probs"},
                                                       {R"("id_slot": -2)", "id_slot"},
                                                       {R"("return_tokens": 1)", "return_tokens"},
                                                       {R"("echo": true)", "echo"},
                                                       {R"("response_fields": "a")", "response_fields"},
                                                       {R"("response_fields": [1])", "response_fields"},
                                                       {R"("tools": [1])", "tools"},
                                                       {R"("n_predict": -2)", "n_predict"},
                                                       {R"("temperature": 101)", "temperature"}};
  for (const auto& [fields, name] : cases)
    EXPECT_EQ(culprit([&] { parse_native(R"({"prompt": "a", )" + std::string(fields) + "}", kLimits); }), name)
        << fields;
}

TEST(ServerRequest, BrokenJsonIsRefused) {
  const std::string good = R"({"prompt": "Hé\u00e9", "stop": ["a"], "logit_bias": {"1": 2}, "temperature": 0.5})";
  EXPECT_EQ(culprit([&] { parse_completion(good, kLimits); }), "none");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(culprit([&] { parse_completion(good.substr(0, size), kLimits); }), "") << good.substr(0, size);
  for (const std::string& body :
       {std::string("null"), std::string("[]"), std::string("\"x\""), std::string("{\"prompt\": \"\xff\"}"),
        std::string("{\"prompt\": \"\\ud800\"}"), std::string("{\"prompt\": NaN}"), std::string("{} {}"),
        std::string("\0", 1), std::string(100000, '['),
        R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}"})
    EXPECT_EQ(culprit([&] { parse_completion(body, kLimits); }), "") << body.substr(0, 40);
  // Any one byte replaced: taken or refused, nothing else.
  for (size_t i = 0; i < good.size(); ++i)
    for (const char byte : {'\0', '"', '{', ']', ',', '9', '-', '\x80', '\\'}) {
      std::string changed = good;
      changed[i] = byte;
      culprit([&] { parse_completion(changed, kLimits); });
    }
}

TEST(ServerRequest, TheServersCapOnTokens) {
  Limits limits = kLimits;
  limits.max_tokens = 8;
  const auto most = [&](const char* body) { return parse_completion(body, limits).options.max_tokens; };
  EXPECT_EQ(most(R"({"prompt": "a"})"), 8);
  EXPECT_EQ(most(R"({"prompt": "a", "max_tokens": -1})"), 8);
  EXPECT_EQ(most(R"({"prompt": "a", "max_tokens": 8})"), 8);
  EXPECT_EQ(culprit([&] { most(R"({"prompt": "a", "max_tokens": 9})"); }), "max_tokens");
}

TEST(ServerResponse, ErrorsHaveOpenAisBody) {
  EXPECT_EQ(error_body(bad_request("no \"good\"", "n")),
            R"({"error":{"message":"no \"good\"","type":"invalid_request_error","param":"n","code":null}})");
  EXPECT_EQ(
      error_body(bad_request("no", "n"), "req_1"),
      R"({"error":{"message":"no","type":"invalid_request_error","param":"n","code":null,"request_id":"req_1"}})");
}

// Short to write, large to hold: refused before it is held.
TEST(Request, ManyValuesAreRefused) {
  const auto repeated = [](const std::string& value, size_t count) {
    std::string body = "{\"x\": [";
    for (size_t i = 0; i < count; ++i) body += value + ",";
    return body + value + "]}";
  };
  for (const char* value : {"[]", "{}", "\"\"", "{\"\":1}", "[[1]]"})
    EXPECT_THROW(parse_object(repeated(value, 140000)), ApiError) << value;
  EXPECT_EQ(parse_object(repeated("{\"\":1}", 40000))["x"].size(),
            40001u);  // a callback of the parser makes this quadratic
  EXPECT_THROW(parse_object(repeated("1", 2100000)), ApiError);
  EXPECT_EQ(parse_object(repeated("1", 300000))["x"].size(), 300001u);
  for (const int names : {4096, 4097}) {
    std::string body = "{\"0\": 0";
    for (int i = 1; i < names; ++i) body += ", \"" + std::to_string(i) + "\": 0";
    if (names > 4096) EXPECT_THROW(parse_object(body + "}"), ApiError);
    else EXPECT_EQ(parse_object(body + "}").size(), 4096u);
  }
}

}  // namespace
}  // namespace sx::server
