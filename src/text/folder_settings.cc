#include "text/folder_settings.h"

#include <algorithm>
#include <string_view>

namespace sx {
namespace {

// Reads "bos_token" and the like: a string, or an object with "content". kNoToken when absent or not a token.
Token named(const char* key, const JsonView* config, const JsonView* special, const TokenTable& vocabulary) {
  for (const JsonView* source : {config, special}) {
    if (!source || !source->has(key)) continue;
    const JsonView value = source->at(key);
    return vocabulary.find(value.node().is_object() ? value.at("content").string() : value.string());
  }
  return kNoToken;
}

}  // namespace

std::string place_of(const TokenizerData& data, const char* name) {
  for (const char* own : {"tokenizer.json", "tokenizer.model"}) {
    if (data.file.ends_with(std::string("/") + own))
      return data.file.substr(0, data.file.size() - std::string_view(own).size()) + name;
  }
  return data.file.ends_with(name) ? data.file : data.file + ": " + name;
}

nlohmann::json parse_settings(const std::string& text, const std::string& where) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) { fail("{}: {}", where, error.what()); }
}

void FolderSettings::Source::load(const TokenizerData& data, const std::string& text, const char* name) {
  if (text.empty()) return;
  const std::string where = place_of(data, name);
  json_ = parse_settings(text, where);
  view_.emplace(json_, where, true);
  if (!json_.is_object()) view_->wrong("is {}, expected an object", json_.type_name());
}

FolderSettings::FolderSettings(const TokenizerData& data) : data_(data) {
  config_.load(data, data.tokenizer_config_json, "tokenizer_config.json");
  special_.load(data, data.special_tokens_map_json, "special_tokens_map.json");
  generation_.load(data, data.generation_config_json, "generation_config.json");
  added_.load(data, data.added_tokens_json, "added_tokens.json");
}

void FolderSettings::apply(TokenizerParts& parts, int64_t limit) const {
  const TokenTable& vocabulary = parts.vocabulary;
  const auto take = [&](const char* key, Token& id) {
    if (const Token found = named(key, config(), special(), vocabulary); found != kNoToken) id = found;
  };
  take("bos_token", parts.bos);
  take("eos_token", parts.eos);
  if (parts.unk == kNoToken) take("unk_token", parts.unk);
  read_generation(parts, limit);
  if (parts.bos == kNoToken && !parts.prefix.empty()) parts.bos = parts.prefix.front();
  for (Token t = 0; t < vocabulary.size(); ++t) {
    const bool added = vocabulary.type[t] == TokenType::kControl || vocabulary.type[t] == TokenType::kUserDefined;
    if (added && is_end_token_name(vocabulary.text[t], vocabulary)) parts.ends.push_back(t);
  }
  read_template(parts);
}

// Reads generation_config.json, and config.json for what the former does not set.
void FolderSettings::read_generation(TokenizerParts& parts, int64_t limit) const {
  const JsonView* generation = generation_.get();
  const auto id = [&](const JsonView& value) { return value.index(std::max<int64_t>(limit, 1)); };
  Token bos = data_.bos;
  if (generation && generation->has("bos_token_id") && generation->at("bos_token_id").node().is_number()) {
    bos = id(generation->at("bos_token_id"));
  }
  if (parts.bos == kNoToken && parts.vocabulary.contains(bos)) parts.bos = bos;
  if (!generation || !generation->has("eos_token_id")) {
    parts.ends.insert(parts.ends.end(), data_.ends.begin(), data_.ends.end());
  } else if (const JsonView eos = generation->at("eos_token_id"); eos.node().is_array()) {
    for (size_t i = 0; i < eos.size(); ++i) parts.ends.push_back(id(eos.at(i)));
  } else {
    parts.ends.push_back(id(eos));
  }
  if (parts.eos == kNoToken && !parts.ends.empty() && parts.vocabulary.contains(parts.ends.front())) {
    parts.eos = parts.ends.front();
  }
}

void FolderSettings::read_template(TokenizerParts& parts) const {
  if (!data_.chat_template.empty()) parts.chat_template = data_.chat_template;
  if (!parts.chat_template.empty() || !config() || !config()->has("chat_template")) return;
  const JsonView value = config()->at("chat_template");
  if (!value.node().is_array()) {
    parts.chat_template = value.string();
    return;
  }
  for (size_t i = 0; i < value.size(); ++i) {  // There are several templates by name; the default one counts.
    if (value.at(i).string("name", "") == "default") parts.chat_template = value.at(i).at("template").string();
  }
}

std::optional<bool> FolderSettings::adds(const char* key) const {
  if (!config() || !config()->has(key)) return std::nullopt;
  return config()->at(key).boolean();
}

}  // namespace sx
