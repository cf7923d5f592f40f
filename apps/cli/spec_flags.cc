#include "cli/spec_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/suggest.h"

namespace sx::cli {
namespace {

constexpr const char* kGroup = "Speculation";

// Other spellings of a setting, beside --spec-NAME.
struct Alias {
  const char* setting;
  const char* spellings;
};
constexpr Alias kAliases[] = {
    {"draft-model", "--md,--model-draft,--draft-model"},
    {"accept", "--accept"},
    {"nodes", "--draft,--draft-n,--draft-max,--spec-draft-n-max"},
    {"min-prob", "--draft-p-min,--spec-draft-p-min"},
    {"draft-kv-type", "--ctkd,--cache-type-k-draft,--spec-draft-type-k"},
};

// llama.cpp's words for --spec-type. Empty preset: refused, for this reason.
struct Word {
  const char* word;
  const char* preset;
  const char* why = "";
};
constexpr const char* kHead = "drafts with a head of a kind that is not supported yet";
constexpr Word kWords[] = {
    {"none", "off"},           {"draft", "sd"},
    {"draft-simple", "sd"},    {"ngram-simple", "ngram"},
    {"ngram-mod", "suffix"},   {"ngram-cache", "suffix"},
    {"ngram-map-k", "suffix"}, {"ngram-map-k4v", "suffix"},
    {"draft-eagle3", "eagle3"},
    {"mtp", "", kHead},        {"draft-mtp", "", kHead},
    {"dflash", "", kHead},     {"draft-dflash", "", kHead},
};

std::string preset_of(const std::string& word) {
  std::vector<std::string> names;
  for (const SpecPreset& preset : spec_presets()) {
    if (word == preset.name) return word;
    names.push_back(preset.name);
  }
  for (const Word& known : kWords) {
    names.push_back(known.word);
    if (word != known.word) continue;
    if (!*known.preset)
      throw Error(fmt::format("--spec {}: {}; `specextend methods` lists what there is", word, known.why));
    return known.preset;
  }
  if (const std::string nearest = nearest_word(word, names); !nearest.empty())
    throw Error(fmt::format("there is no preset '{}'; did you mean {}? `specextend methods` lists what there is", word, nearest));
  return word;  // the library says that there is none, and what there is
}

// One preset, or a list as in llama.cpp: a draft model and a look-up in the text make fuse.
void take_preset(const std::string& given, SpecOptions& options) {
  std::vector<std::string> presets;
  std::istringstream words(given);
  for (std::string word; std::getline(words, word, ',');) presets.push_back(preset_of(word));
  const auto has = [&](const char* name) { return std::find(presets.begin(), presets.end(), name) != presets.end(); };
  if (presets.size() == 1) {
    options.preset = presets[0];
  } else if (presets.size() == 2 && has("sd") && (has("ngram") || has("suffix"))) {
    options.preset = "fuse";
    options.settings.emplace_back("fuse-index", has("ngram") ? "ngram" : "suffix");
  } else {
    throw Error(
        fmt::format("--spec '{}': expected one preset, or a draft model and a look-up, e.g. draft,ngram-mod", given));
  }
}

void ignore(CLI::App& app, const char* spellings, const char* why) {
  app.add_option_function<std::string>(
         spellings, [](const std::string&) {}, fmt::format("accepted for compatibility: {}", why))
      ->group(kGroup);
}

}  // namespace

void add_spec_flags(CLI::App& app, SpecFlags& flags) {
  app.add_option("--spec,--spec-type", flags.spec,
                 "how to speculate: a preset (`specextend methods` lists them) or off; the text stays the same")
      ->group(kGroup);
  app.add_option("--speculative-config", flags.json,
                 "vLLM's speculative configuration, instead of --spec: '{\"method\": \"suffix\"}'")
      ->group(kGroup);
  app.add_flag("--allow-lossy", flags.allow_lossy, "allow rules that change the text")->group(kGroup);
  for (const SpecSetting& setting : spec_settings()) {
    std::string spellings = "--spec-" + setting.name;
    for (const Alias& alias : kAliases)
      if (setting.name == alias.setting) spellings += std::string(",") + alias.spellings;
    const auto take = [&flags, name = setting.name](const std::string& value) { flags.settings[name] = value; };
    app.add_option_function<std::string>(spellings, take, setting.what)->group(kGroup);
  }
  app.add_option("--ctvd,--cache-type-v-draft,--spec-draft-type-v", flags.value_type,
                 "the same as -ctkd: K and V share one type")
      ->group(kGroup);
  ignore(app, "--draft-min,--draft-n-min,--spec-draft-n-min", "short drafts are verified too");
  ignore(app, "--ngld,--gpu-layers-draft,--n-gpu-layers-draft,--spec-draft-ngl",
         "the draft model runs where the target runs");
  ignore(app, "--devd,--device-draft,--spec-draft-device", "the draft model runs where the target runs");
  ignore(app, "--cd,--ctx-size-draft,--spec-draft-ctx-size", "the draft model's context is the target's");
  ignore(app, "--td,--threads-draft,--spec-draft-threads", "drafts use the same threads");
}

bool promises_bytes(const SpecRule& rule, const SamplingOptions& sampling) {
  return rule.promise == SpecPromise::kBytes || (rule.promise == SpecPromise::kDistribution && sampling.temperature == 0);
}

SpecOptions resolve(const SpecFlags& flags) {
  SpecOptions options;
  std::map<std::string, std::string> given = flags.settings;
  if (!flags.value_type.empty() && !given.emplace("draft-kv-type", flags.value_type).second &&
      given["draft-kv-type"] != flags.value_type)
    throw Error(fmt::format("-ctkd {} and -ctvd {}: K and V share one type", given["draft-kv-type"], flags.value_type));
  if (flags.allow_lossy) given["allow-lossy"] = "on";
  if (const auto model = given.extract("draft-model")) options.draft_model = model.mapped();
  if (!flags.json.empty() && !flags.spec.empty())
    throw Error(fmt::format("--spec {} and --speculative-config exclude each other: give one of them", flags.spec));
  options.json = flags.json;
  if (!flags.spec.empty()) take_preset(flags.spec, options);
  else if (flags.json.empty() && !options.draft_model.empty()) options.preset = "sd";
  else if (flags.json.empty() && !given.empty())
    throw Error(fmt::format(
        "setting {} of speculation is given, but no method: add --spec PRESET, or -md FILE for a draft model",
        given.begin()->first));
  // In the library's order, in which none depends on one that comes later.
  for (const SpecSetting& setting : spec_settings())
    if (const auto value = given.find(setting.name); value != given.end()) options.settings.push_back(*value);
  return options;
}

}  // namespace sx::cli
