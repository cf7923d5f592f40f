// Requests to the server as JSON: what is taken, what it becomes, and that whatever is wrong is a 400 that names the field.
#include "server/request.h"

#include <gtest/gtest.h>

#include <string>

#include "server/keys.h"
#include "server/response.h"

namespace sx::server {
namespace {

const Limits kLimits{.vocab = 100, .stops = 2, .stop_bytes = 8, .biases = 2};

CompletionRequest completion(const std::string& fields) {
  return parse_completion(R"({"prompt": "Hi")" + (fields.empty() ? "" : ", " + fields) + "}", kLimits);
}

// The field an error names, or "none".
template <typename Parse>
std::string culprit(const Parse& parse) {
  try {
    parse();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.type, "invalid_request_error");
    EXPECT_STRNE(e.what(), "");
    return e.param;
  }
  return "none";
}
std::string refused(const std::string& fields) {
  return culprit([&] { completion(fields); });
}

TEST(ServerRequest, DefaultsAreOpenAis) {
  const CompletionRequest r = completion("");
  EXPECT_EQ(r.text, "Hi");
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
  const CompletionRequest r = completion(R"("max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125,
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
  EXPECT_EQ(parse_completion(R"({"prompt": [1, 2, 99]})", kLimits).tokens, (std::vector<Token>{1, 2, 99}));
  EXPECT_EQ(parse_completion(R"({"prompt": ["one"]})", kLimits).text, "one");
}

TEST(ServerRequest, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("max_tokens": "7")", "max_tokens"}, {R"("max_tokens": 1.5)", "max_tokens"}, {R"("max_tokens": -2)", "max_tokens"},
      {R"("max_tokens": 99999999999999999999)", "max_tokens"}, {R"("max_tokens": 18446744073709551615)", "max_tokens"},
      {R"("temperature": -0.1)", "temperature"}, {R"("temperature": 2.1)", "temperature"}, {R"("temperature": true)", "temperature"},
      {R"("temperature": [])", "temperature"}, {R"("top_p": 1.5)", "top_p"}, {R"("top_k": -2)", "top_k"}, {R"("top_k": 1e3)", "top_k"},
      {R"("min_p": 2)", "min_p"}, {R"("presence_penalty": 3)", "presence_penalty"}, {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("repeat_penalty": 0)", "repeat_penalty"}, {R"("seed": "x")", "seed"}, {R"("seed": 0.5)", "seed"},
      {R"("stop": 5)", "stop"}, {R"("stop": "")", "stop"}, {R"("stop": ["a", 1])", "stop"}, {R"("stop": ["a", "b", "c"])", "stop"},
      {R"("stop": "123456789")", "stop"}, {R"("logit_bias": {"x": 1})", "logit_bias"}, {R"("logit_bias": {"100": 1})", "logit_bias"},
      {R"("logit_bias": {"-1": 1})", "logit_bias"}, {R"("logit_bias": {"1": 101})", "logit_bias"},
      {R"("logit_bias": {"1": null})", "logit_bias"}, {R"("logit_bias": 3)", "logit_bias"}, {R"("logit_bias": [[1]])", "logit_bias"},
      {R"("logit_bias": {"1": 1, "2": 1, "3": 1})", "logit_bias"}, {R"("logit_bias": {"99999999999999999999": 1})", "logit_bias"},
      {R"("n": 2)", "n"}, {R"("n": 0)", "n"}, {R"("best_of": 3)", "best_of"}, {R"("echo": true)", "echo"},
      {R"("logprobs": 0)", "logprobs"}, {R"("logprobs": true)", "logprobs"}, {R"("tools": [{}])", "tools"}, {R"("tools": 1)", "tools"},
      {R"("response_format": {"type": "json_object"})", "response_format"}, {R"("response_format": "text")", "response_format"},
      {R"("grammar": "root ::= x")", "grammar"}, {R"("suffix": "end")", "suffix"}, {R"("stream": 1)", "stream"},
      {R"("stream_options": {})", "stream_options"}, {R"("stream": true, "stream_options": 1)", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "include_usage"}, {R"("speculate": "no")", "speculate"},
      {R"("model": 4)", "model"},
  };
  for (const auto& [fields, name] : cases) EXPECT_EQ(refused(fields), name) << fields;
}

TEST(ServerRequest, PromptsAreChecked) {
  for (const char* body : {"{}", R"({"prompt": null})", R"({"prompt": 5})", R"({"prompt": []})", R"({"prompt": ["a", "b"]})",
                           R"({"prompt": [1, "a"]})", R"({"prompt": [100]})", R"({"prompt": [-1]})", R"({"prompt": [1.5]})",
                           R"({"prompt": [[1]]})", R"({"prompt": {"a": 1}})", R"({"prompt": [18446744073709551615]})"})
    EXPECT_EQ(culprit([&] { parse_completion(body, kLimits); }), "prompt") << body;
}

TEST(ServerRequest, MessagesAreChecked) {
  for (const char* messages : {"null", "[]", "{}", "5", "[5]", "[[]]", R"([{}])", R"([{"role": "user"}])", R"([{"content": "a"}])",
                               R"([{"role": 1, "content": "a"}])", R"([{"role": "user", "content": 1}])",
                               R"([{"role": "user", "content": [{"type": "image_url"}]}])", R"([{"role": "user", "content": ["a"]}])",
                               R"([{"role": "assistant", "content": "a", "tool_calls": [{}]}])"})
    EXPECT_EQ(culprit([&] { parse_chat(std::string(R"({"messages": )") + messages + "}", kLimits); }), "messages") << messages;
  const CompletionRequest r = parse_chat(
      R"({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content":
          [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "x"}]})", kLimits);
  EXPECT_EQ(r.messages, R"([{"role":"system","content":"s"},{"role":"user","content":"ab"}])");
}

TEST(ServerRequest, BrokenJsonIsRefused) {
  const std::string good = R"({"prompt": "Hé\u00e9", "stop": ["a"], "logit_bias": {"1": 2}, "temperature": 0.5})";
  EXPECT_EQ(culprit([&] { parse_completion(good, kLimits); }), "none");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(culprit([&] { parse_completion(good.substr(0, size), kLimits); }), "") << good.substr(0, size);
  for (const std::string& body : {std::string("null"), std::string("[]"), std::string("\"x\""), std::string("{\"prompt\": \"\xff\"}"),
                                  std::string("{\"prompt\": \"\\ud800\"}"), std::string("{\"prompt\": NaN}"), std::string("{} {}"),
                                  std::string("\0", 1), std::string(100000, '['), R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}"})
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
}

TEST(ServerKeys, CompareWholeTexts) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const char* given : {"", "s", "secre", "secreT", "secrets", "secretsecret"}) EXPECT_FALSE(equal_in_constant_time(given, "secret")) << given;
  const std::vector<std::string> keys{"one", "two"};
  EXPECT_TRUE(accepted({}, "", ""));
  EXPECT_TRUE(accepted(keys, "Bearer one", "") && accepted(keys, "Bearer two", "") && accepted(keys, "", "two"));
  EXPECT_FALSE(accepted(keys, "", "") || accepted(keys, "one", "") || accepted(keys, "Bearer ", "") || accepted(keys, "bearer one", ""));
}

}  // namespace
}  // namespace sx::server
