#include "server/openapi.h"

#include <nlohmann/json.hpp>

namespace sx::server {

using Json = nlohmann::ordered_json;

std::string openapi_json(const Limits& limits, const std::string& version) {
  Json document = Json::parse(openapi_source());
  document.at("info").at("version") = version;
  Json& schemas = document.at("components").at("schemas");
  // at(): a place that the description does not have is a fault of ours.
  const auto set = [&](const char* place, Json value) { schemas.at(Json::json_pointer(place)) = std::move(value); };
  if (limits.vocab > 0) set("/Token/maximum", limits.vocab - 1);
  if (limits.max_tokens >= 0) set("/Length/maximum", limits.max_tokens);
  if (!limits.presets.empty()) {
    Json names = limits.presets;
    names.push_back(nullptr);
    schemas.at("Preset")["enum"] = std::move(names);
  }
  set("/Stop/anyOf/0/maxLength", limits.stop_bytes);
  set("/Stop/anyOf/1/items/maxLength", limits.stop_bytes);
  set("/Stop/anyOf/1/maxItems", limits.stops);
  set("/LogitBias/anyOf/0/maxProperties", limits.biases);
  set("/LogitBias/anyOf/1/maxItems", limits.biases);
  set("/SamplingOptions/properties/grammar/maxLength", limits.grammar_bytes);
  set("/SamplingOptions/properties/stop_token_ids/maxItems", limits.biases);
  for (const auto& [name, neutral] : missing_fields()) {
    Json values = Json::parse(neutral);
    for (Json& off : Json::array({nullptr, false, "", Json::array(), Json::object()})) values.push_back(std::move(off));
    schemas.at("SamplingOptions").at("properties")[name] = {{"enum", std::move(values)},
                                                            {"description", "Not supported: must ask for nothing."}};
  }
  set("/Messages/maxItems", limits.messages);
  set("/Tools/maxItems", limits.tools);
  set("/TextRequest/allOf/1/properties/prompt/anyOf/2/maxItems", limits.prompts);
  for (const char* request : {"ChatRequest", "TextRequest"})
    for (const char* field : {"n", "best_of"})
      schemas.at(request).at("allOf").at(1).at("properties").at(field).at("maximum") = limits.choices;
  return document.dump();
}

}  // namespace sx::server
