// Ways to speculate as text: NAME[:key=value,...], with the names that llama.cpp has for some of them.
#include <fmt/ranges.h>
#include <specextend/speculation.h>
#include <specextend/suggest.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"

namespace sx {
namespace {

// llama.cpp's names of presets (--spec-type).
struct Word {
  const char* word;
  const char* preset;
};
constexpr Word kWords[] = {
    {"none", "off"},
    {"draft", "sd"},
    {"draft-simple", "sd"},
    {"ngram-simple", "ngram"},
    {"ngram-mod", "suffix"},
    {"ngram-cache", "suffix"},
    {"ngram-map-k", "suffix"},
    {"ngram-map-k4v", "suffix"},
    {"draft-eagle3", "eagle3"},
    {"draft-mtp", "mtp"},
    {"draft-dflash", "dflash"},
};

// Keys that had another name in earlier versions.
constexpr std::pair<const char*, const char*> kRenamed[] = {{"price", "cost-model"}, {"lazy", "defer-prefill"}};

using Values = std::map<std::string, std::string>;  // by key

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const SpecSetting& setting : spec_settings()) names.push_back(setting.name);
  return names;
}

bool is_key(std::string_view name) {
  const auto names = key_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "'node'; did you mean nodes? There are drafter, nodes, ..."
std::string known_names(std::string_view word, const std::vector<std::string>& names, std::string_view suggestion) {
  return fmt::format("'{}'{} There are {}", word.substr(0, 60), suggestion.empty() ? "." : suggestion,
                     fmt::join(names, ", "));
}

std::string preset_of(const std::string& word) {
  std::vector<std::string> names, words;
  for (const SpecPreset& preset : spec_presets()) {
    if (word == preset.name) return word;
    names.push_back(preset.name);
  }
  words = names;
  for (const Word& known : kWords) {
    words.push_back(known.word);
    if (word != known.word) continue;
    return known.preset;
  }
  fail("spec: there is no preset {}; `specextend methods` explains them",
       known_names(word, names, did_you_mean(word, words)));
}

// One preset, or a list as in llama.cpp: a draft model and a look-up in the text make fuse.
SpecOptions take_preset(const std::string& given, Values& values) {
  std::vector<std::string> presets;
  std::istringstream words(given);
  for (std::string word; std::getline(words, word, ',');) presets.push_back(preset_of(word));
  const auto has = [&](const char* name) { return std::find(presets.begin(), presets.end(), name) != presets.end(); };
  SpecOptions options;
  if (presets.size() == 1) {
    options.preset = presets[0];
  } else if (presets.size() == 2 && (has("sd") || has("mtp")) && (has("ngram") || has("suffix"))) {
    options.preset = "fuse";
    if (has("mtp")) values.emplace("fuse-model", "mtp");
    values.emplace("fuse-index", has("ngram") ? "ngram" : "suffix");
  } else {
    fail("spec '{}': expected one preset, or a draft model and a look-up, e.g. draft,ngram-mod", given);
  }
  return options;
}

// "key=value,key=value"; a piece without '=' continues the value before it: "widths=1,1,3,nodes=4".
Values read_values(const std::string& spec, const std::string& text) {
  Values values;
  Values::iterator last = values.end();
  std::istringstream pieces(text);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    const size_t equals = piece.find('=');
    if (equals == piece.npos && last != values.end()) {
      last->second += "," + piece;
      continue;
    }
    const std::string key = piece.substr(0, equals);
    if (equals == piece.npos) fail("spec {}: '{}' is not key=value", spec, piece);
    if (!is_key(key)) {
      const std::string renamed = current_spec_setting(key);
      fail("spec {}: there is no key {}; `specextend methods NAME` explains them", spec,
           known_names(key, key_names(),
                       renamed != key ? "; it is now " + renamed + "." : did_you_mean(key, key_names())));
    }
    const auto [at, added] = values.emplace(key, piece.substr(equals + 1));
    if (!added) fail("spec {}: key {} is given twice", spec, key);
    last = at;
  }
  if (values.empty()) fail("spec {}: key=value is expected after the colon", spec);
  return values;
}

// The settings in the library's order, in which none depends on a later one.
void put_values(SpecOptions& options, Values values) {
  if (const auto model = values.extract("draft-model")) options.draft_model = model.mapped();
  for (const SpecSetting& setting : spec_settings())
    if (const auto value = values.find(setting.name); value != values.end()) options.settings.push_back(*value);
}

void merge(Values& into, const Values& from, const std::string& spec) {
  for (const auto& [key, value] : from)
    if (!into.emplace(key, value).second)
      fail("spec {}: key {} is also given by a flag of its own: give one of them", spec, key);
}

}  // namespace

std::string current_spec_setting(std::string_view key) {
  for (const auto& [old_name, new_name] : kRenamed)
    if (key == old_name) return new_name;
  return std::string(key);
}

SpecOptions parse_spec(const std::string& text, const std::map<std::string, std::string>& more) {
  const size_t colon = text.find(':');
  Values values = colon == text.npos ? Values() : read_values(text, text.substr(colon + 1));
  SpecOptions options = take_preset(text.substr(0, colon), values);
  merge(values, more, text);
  put_values(options, std::move(values));
  return options;
}

}  // namespace sx
