// The description of the API: every path, no loose ends, this server's limits, and examples that the parsers take.
#include "server/openapi.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "server/protocols.h"
#include "server/response_store.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

Limits limits() {
  Limits l;
  l.vocab = 1000, l.max_tokens = 24, l.stops = 3, l.stop_bytes = 33, l.biases = 5, l.choices = 4, l.prompts = 6,
  l.messages = 7, l.tools = 8;
  l.grammar_bytes = 900, l.presets = {"off", "suffix"};
  return l;
}

void walk(const Json& node, const std::function<void(const Json&)>& visit) {
  visit(node);
  if (node.is_structured())
    for (const Json& child : node) walk(child, visit);
}

TEST(ServerOpenapi, HasEveryPath) {
  const Json document = Json::parse(openapi_json(limits(), "1.2"));
  EXPECT_EQ(document["openapi"], "3.1.0");
  EXPECT_EQ(document["info"]["version"], "1.2");
  const std::pair<const char*, const char*> routes[] = {{"/v1/chat/completions", "post"},
                                                        {"/v1/completions", "post"},
                                                        {"/completion", "post"},
                                                        {"/v1/messages", "post"},
                                                        {"/v1/messages/count_tokens", "post"},
                                                        {"/v1/responses", "post"},
                                                        {"/v1/responses/{id}", "get"},
                                                        {"/api/chat", "post"},
                                                        {"/api/generate", "post"},
                                                        {"/api/show", "post"},
                                                        {"/api/tags", "get"},
                                                        {"/api/version", "get"},
                                                        {"/v1/models", "get"},
                                                        {"/v1/models/{id}", "get"},
                                                        {"/health", "get"},
                                                        {"/health/live", "get"},
                                                        {"/health/ready", "get"},
                                                        {"/v1/health", "get"},
                                                        {"/server_info", "get"},
                                                        {"/v1/loads", "get"},
                                                        {"/load", "get"},
                                                        {"/version", "get"},
                                                        {"/metrics", "get"},
                                                        {"/tokenize", "post"},
                                                        {"/detokenize", "post"},
                                                        {"/apply-template", "post"},
                                                        {"/v1/chat/completions/input_tokens", "post"},
                                                        {"/props", "get"},
                                                        {"/slots", "get"},
                                                        {"/slots/{id_slot}", "post"},
                                                        {"/openapi.json", "get"},
                                                        {"/", "get"}};
  EXPECT_EQ(document["paths"].size(), std::size(routes));
  for (const auto& [path, method] : routes) {
    ASSERT_TRUE(document["paths"].contains(path)) << path;
    const Json& operation = document["paths"][path];
    ASSERT_TRUE(operation.contains(method)) << path;
    const Json& answers = operation[method]["responses"];
    for (const char* status : {"200", "400", "401", "405", "503"})
      EXPECT_TRUE(answers.contains(status)) << path << status;
    EXPECT_EQ(answers.contains("413"), std::string(method) == "post") << path;
    EXPECT_FALSE(answers.contains("default")) << path;
  }
  EXPECT_TRUE(document["paths"]["/v1/responses/{id}"].contains("delete"));
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/completion", "/v1/messages", "/v1/responses"}) {
    EXPECT_TRUE(document["paths"][path]["post"]["responses"].contains("429"));
    EXPECT_TRUE(document["paths"][path]["post"]["responses"]["200"]["content"].contains("text/event-stream"));
  }
}

TEST(ServerOpenapi, ReferencesLeadSomewhere) {
  const Json document = Json::parse(openapi_source());
  size_t count = 0;
  std::set<std::string> used;
  walk(document, [&](const Json& node) {
    if (!node.is_object() || !node.contains("$ref")) return;
    const std::string to = node["$ref"];
    ++count;
    used.insert(to);
    ASSERT_EQ(to[0], '#') << to;
    EXPECT_TRUE(document.contains(Json::json_pointer(to.substr(1)))) << to;
  });
  EXPECT_GT(count, 100u);
  for (const auto& [name, schema] : document["components"]["schemas"].items())
    EXPECT_TRUE(used.count("#/components/schemas/" + name)) << name << " is not used";
}

TEST(ServerOpenapi, OperationsHaveNamesOfTheirOwn) {
  const Json document = Json::parse(openapi_source());
  std::set<std::string> names;
  for (const Json& path : document["paths"])
    for (const Json& operation : path)
      EXPECT_TRUE(names.insert(operation["operationId"]).second) << operation["operationId"];
}

TEST(ServerOpenapi, LimitsAreThisServers) {
  const Json s = Json::parse(openapi_json(limits(), "1"))["components"]["schemas"];
  EXPECT_EQ(s["Token"]["maximum"], 999);
  EXPECT_EQ(s["Length"]["maximum"], 24);
  EXPECT_EQ(s["Preset"]["enum"].dump(), R"(["off","suffix",null])");
  EXPECT_EQ(s["Stop"]["anyOf"][1]["maxItems"], 3);
  EXPECT_EQ(s["Stop"]["anyOf"][0]["maxLength"], 33);
  EXPECT_EQ(s["Messages"]["maxItems"], 7);
  EXPECT_EQ(s["Tools"]["maxItems"], 8);
  EXPECT_EQ(s["ChatRequest"]["allOf"][1]["properties"]["n"]["maximum"], 4);
  EXPECT_EQ(s["TextRequest"]["allOf"][1]["properties"]["best_of"]["maximum"], 4);
  EXPECT_EQ(s["TextRequest"]["allOf"][1]["properties"]["prompt"]["anyOf"][2]["maxItems"], 6);
  const Json plain = Json::parse(openapi_json({}, "1"))["components"]["schemas"];
  EXPECT_FALSE(plain["Preset"].contains("enum"));
  EXPECT_EQ(plain["Length"]["maximum"], 1 << 24);
}

// The description and the documents name what is refused.
TEST(ServerOpenapi, WhatIsMissingIsSaid) {
  const Json fields = Json::parse(openapi_json({}, "1"))["components"]["schemas"]["SamplingOptions"]["properties"];
  std::ifstream file(SX_SERVER_DOC);
  const std::string document((std::istreambuf_iterator<char>(file)), {});
  ASSERT_FALSE(document.empty());
  for (const auto& [name, neutral] : missing_fields()) {
    ASSERT_TRUE(fields.contains(name)) << name;
    EXPECT_TRUE(fields[name].contains("enum")) << name << " is described as a field that is there";
    EXPECT_NE(document.find("`" + std::string(name) + "`"), std::string::npos)
        << "docs/server.md does not name " << name;
  }
}

TEST(ServerOpenapi, ExamplesAreTaken) {
  const Json s = Json::parse(openapi_source())["components"]["schemas"];
  Limits l;
  l.vocab = 1000;
  size_t count = 0;
  for (const Json& e : s["ChatRequest"]["examples"]) {
    EXPECT_EQ(parse_chat(e.dump(), l).api, Api::kChat);
    ++count;
  }
  for (const Json& e : s["TextRequest"]["examples"]) {
    EXPECT_EQ(parse_completion(e.dump(), l).api, Api::kText);
    ++count;
  }
  for (const Json& e : s["NativeRequest"]["examples"]) {
    EXPECT_EQ(parse_native(e.dump(), l).api, Api::kNative);
    ++count;
  }
  for (const Json& e : s["TemplateRequest"]["examples"]) {
    EXPECT_FALSE(parse_template(e.dump(), l).messages.empty());
    ++count;
  }
  const auto store = std::make_shared<ResponseStore>();
  for (const Json& e : s["MessagesRequest"]["examples"]) {
    EXPECT_EQ(parse_messages(e.dump(), l).protocol, Protocol::kMessages);
    ++count;
  }
  for (const Json& e : s["ResponsesRequest"]["examples"]) {
    EXPECT_EQ(parse_responses(e.dump(), l, store, 0).protocol, Protocol::kResponses);
    ++count;
  }
  for (const Json& e : s["OllamaChatRequest"]["examples"]) {
    EXPECT_EQ(parse_ollama_chat(e.dump(), l).protocol, Protocol::kOllamaChat);
    ++count;
  }
  for (const Json& e : s["OllamaGenerateRequest"]["examples"]) {
    EXPECT_EQ(parse_ollama_generate(e.dump(), l).protocol, Protocol::kOllamaGenerate);
    ++count;
  }
  EXPECT_EQ(count, 16u);
}

// Bounds as they are written are those that the parsers keep.
TEST(ServerOpenapi, BoundsOfNumbersAreReal) {
  const Json s = Json::parse(openapi_source())["components"]["schemas"];
  Limits l;
  l.vocab = 1000;
  size_t count = 0;
  const auto taken = [&](const char* start, const std::string& name, const Json& value, auto parse) {
    Json body = Json::parse(start);
    body[name] = value;
    if (name == "top_logprobs") body["logprobs"] = true;
    if (name == "best_of") body["n"] = value;
    try {
      parse(body.dump(), l);
      return true;
    } catch (const ApiError& e) {
      EXPECT_EQ(e.param, name == "best_of" ? "n" : name);
      return false;
    }
  };
  const auto check = [&](const char* start, const Json& fields, auto parse) {
    for (const auto& [name, schema] : fields.items()) {
      if (!schema.contains("minimum") || !schema.contains("maximum") || name == "seed") continue;
      const Json low = schema["minimum"], high = schema["maximum"];
      const bool whole = schema["type"][0] == "integer";
      EXPECT_TRUE(taken(start, name, low, parse) && taken(start, name, high, parse) &&
                  taken(start, name, nullptr, parse))
          << name;
      EXPECT_FALSE(taken(start, name, whole ? Json(low.get<int>() - 1) : Json(low.get<double>() - 0.1), parse)) << name;
      EXPECT_FALSE(taken(start, name, whole ? Json(high.get<int>() + 1) : Json(high.get<double>() + 0.1), parse))
          << name;
      EXPECT_FALSE(taken(start, name, "1", parse)) << name;
      ++count;
    }
  };
  const char *text = R"({"prompt": "a"})", *chat = R"({"messages": [{"role": "user", "content": "a"}]})";
  check(text, s["SamplingOptions"]["properties"], parse_completion);
  check(chat, s["SamplingOptions"]["properties"], parse_chat);
  check(text, s["SamplingOptions"]["properties"], parse_native);
  check(text, s["TextRequest"]["allOf"][1]["properties"], parse_completion);
  check(chat, s["ChatRequest"]["allOf"][1]["properties"], parse_chat);
  check(text, s["NativeRequest"]["allOf"][1]["properties"], parse_native);
  EXPECT_GT(count, 30u);
}

}  // namespace
}  // namespace sx::server
