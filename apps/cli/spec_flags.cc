#include "cli/spec_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "cli/help.h"
#include "cli/suggest.h"

namespace sx::cli {
namespace {

// llama.cpp's flags that set a key of the default preset.
struct KeyFlag {
  const char* key;
  const char* spellings;
  const char* variable;  // environment
  const char* what;
};
constexpr KeyFlag kKeyFlags[] = {
    {"nodes", "--draft-max,--draft,--draft-n,--spec-draft-n-max", "LLAMA_ARG_DRAFT_MAX",
     "key nodes: most drafted tokens"},
    {"min-prob", "--draft-p-min,--spec-draft-p-min", "LLAMA_ARG_DRAFT_P_MIN", "key min-prob, which suffix drafts read"},
    {"draft-kv-type", "--ctkd,--cache-type-k-draft,--spec-draft-type-k", "LLAMA_ARG_CACHE_TYPE_K_DRAFT",
     "key draft-kv-type: type of the draft model's KV cache"},
};

// llama.cpp's names of presets (--spec-type). An empty preset is rejected for the reason `why`.
struct Word {
  const char* word;
  const char* preset;
  const char* why = "";
};
constexpr const char* kHead = "drafts with a head of a kind that is not supported yet";
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
    {"mtp", "", kHead},
    {"draft-mtp", "", kHead},
    {"dflash", "", kHead},
    {"draft-dflash", "", kHead},
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
  const auto settings = spec_settings();
  return std::any_of(settings.begin(), settings.end(),
                     [&](const SpecSetting& setting) { return setting.name == name; });
}

std::string today(std::string_view key) {
  for (const auto& [old_name, new_name] : kRenamed)
    if (key == old_name) return new_name;
  return std::string(key);
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
    if (!*known.preset)
      throw Error(fmt::format("--spec {}: {}; `specextend methods` lists the presets", word, known.why));
    return known.preset;
  }
  throw Error(fmt::format("--spec: there is no preset {}; `specextend methods` explains them",
                          known_names(word, names, did_you_mean(word, words))));
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
  } else if (presets.size() == 2 && has("sd") && (has("ngram") || has("suffix"))) {
    options.preset = "fuse";
    values.emplace("fuse-index", has("ngram") ? "ngram" : "suffix");
  } else {
    throw Error(
        fmt::format("--spec '{}': expected one preset, or a draft model and a look-up, e.g. draft,ngram-mod", given));
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
    if (equals == piece.npos) throw Error(fmt::format("--spec {}: '{}' is not key=value", spec, piece));
    if (!is_key(key)) {
      const std::string renamed = today(key);
      throw Error(
          fmt::format("--spec {}: there is no key {}; `specextend methods NAME` explains them", spec,
                      known_names(key, key_names(),
                                  renamed != key ? "; it is now " + renamed + "." : did_you_mean(key, key_names()))));
    }
    const auto [at, added] = values.emplace(key, piece.substr(equals + 1));
    if (!added) throw Error(fmt::format("--spec {}: key {} is given twice", spec, key));
    last = at;
  }
  if (values.empty()) throw Error(fmt::format("--spec {}: key=value is expected after the colon", spec));
  return values;
}

// The settings in the library's order, in which none depends on a later one.
void put_values(SpecOptions& options, Values values) {
  if (const auto model = values.extract("draft-model")) options.draft_model = model.mapped();
  for (const SpecSetting& setting : spec_settings())
    if (const auto value = values.find(setting.name); value != values.end()) options.settings.push_back(*value);
}

// What llama.cpp's flags say goes to the default preset.
void merge(Values& into, const Values& from, const std::string& spec) {
  for (const auto& [key, value] : from)
    if (!into.emplace(key, value).second)
      throw Error(fmt::format("--spec {}: key {} is also given by a flag of its own: give one of them", spec, key));
}

bool needs_draft(const std::string& preset) {
  const auto presets = spec_presets();
  return std::any_of(presets.begin(), presets.end(),
                     [&](const SpecPreset& p) { return p.name == preset && p.needs_draft; });
}

void ignore(CLI::App& app, const char* spellings, const char* why) {
  rare(app.add_option_function<std::string>(
      spellings, [](const std::string&) {}, fmt::format("ignored, as in llama.cpp's scripts: {}", why)));
}

}  // namespace

void add_spec_flags(CLI::App& app, SpecFlags& flags) {
  const HelpGroup group(app, "Speculation (the text stays the same)");
  app.add_option("--spec,--spec-type", flags.specs,
                 "NAME or NAME:key=value,…, e.g. sd:nodes=8; listed by `specextend methods`")
      ->allow_extra_args(false)
      ->envname("SPECEXTEND_SPEC");
  const auto take = [&flags](const char* key) {
    return [&flags, key](const std::string& value) { flags.settings[key] = value; };
  };
  app.add_option_function<std::string>("--md,--model-draft,--draft-model,--spec-draft-model", take("draft-model"),
                                       "draft model or head; without it a shipped one that fits")
      ->envname("LLAMA_ARG_MODEL_DRAFT");
  rare(
      app.add_option("--speculative-config", flags.json, "vLLM's JSON, instead of --spec: '{\"method\": \"suffix\"}'"));
  for (const KeyFlag& flag : kKeyFlags)
    rare(app.add_option_function<std::string>(flag.spellings, take(flag.key), flag.what))->envname(flag.variable);
  rare(app.add_option("--ctvd,--cache-type-v-draft,--spec-draft-type-v", flags.value_type,
                      "the same as -ctkd: K and V share one type"));
  ignore(app, "--draft-min,--draft-n-min,--spec-draft-n-min", "short drafts are verified too");
  ignore(app, "--ngld,--gpu-layers-draft,--n-gpu-layers-draft,--spec-draft-ngl",
         "the draft model runs where the target runs");
  ignore(app, "--devd,--device-draft,--spec-draft-device", "the draft model runs where the target runs");
  ignore(app, "--cd,--ctx-size-draft,--spec-draft-ctx-size", "the draft model's context is the target's");
  ignore(app, "--td,--threads-draft,--spec-draft-threads", "drafts use the same threads");
}

std::vector<SpecOptions> resolve_all(const SpecFlags& flags) {
  Values extra = flags.settings;
  if (!flags.value_type.empty() && !extra.emplace("draft-kv-type", flags.value_type).second &&
      extra["draft-kv-type"] != flags.value_type)
    throw Error(fmt::format("-ctkd {} and -ctvd {}: K and V share one type", extra["draft-kv-type"], flags.value_type));
  if (!flags.json.empty() && !flags.specs.empty())
    throw Error(
        fmt::format("--spec {} and --speculative-config exclude each other: give one of them", flags.specs.front()));
  std::vector<SpecOptions> all;
  if (flags.specs.empty()) {
    SpecOptions only;
    only.json = flags.json;
    if (flags.json.empty() && extra.contains("draft-model")) only.preset = "sd";
    else if (flags.json.empty() && !extra.empty())
      throw Error(
          fmt::format("key {} of speculation is given, but no preset: add --spec NAME, or -md FILE for a draft model",
                      extra.begin()->first));
    put_values(only, std::move(extra));
    return {only};
  }
  for (const std::string& spec : flags.specs) {
    const size_t colon = spec.find(':');
    Values values = colon == spec.npos ? Values() : read_values(spec, spec.substr(colon + 1));
    SpecOptions options = take_preset(spec.substr(0, colon), values);
    if (all.empty()) merge(values, extra, spec);
    else if (const auto model = extra.find("draft-model"); model != extra.end() && needs_draft(options.preset))
      values.emplace(*model);
    put_values(options, std::move(values));
    all.push_back(std::move(options));
  }
  return all;
}

SpecOptions resolve(const SpecFlags& flags) {
  if (flags.specs.size() > 1)
    throw Error(fmt::format(
        "--spec {} and --spec {}: this command runs one preset; `specextend serve` takes several, for requests to name",
        flags.specs[0], flags.specs[1]));
  return resolve_all(flags).front();
}

std::string replaced_flag(std::string_view flag, std::string_view value) {
  constexpr std::string_view kPrefix = "--spec-";
  const std::string given = value.empty() ? std::string(flag) : fmt::format("{} {}", flag, value);
  if (flag == "--more-spec") return fmt::format("{} is now a further --spec {}", given, value.empty() ? "NAME" : value);
  std::string key;
  if (flag == "--accept" || flag == "--allow-lossy") key = flag.substr(2);
  else if (flag.starts_with(kPrefix)) key = today(flag.substr(kPrefix.size()));
  if (!is_key(key)) return {};
  return fmt::format("{} is now --spec NAME:{}={}", given, key,
                     !value.empty()            ? value
                     : flag == "--allow-lossy" ? "on"
                                               : "VALUE");
}

bool promises_bytes(const SpecRule& rule, const SamplingOptions& sampling) {
  return rule.promise == SpecPromise::kBytes ||
         (rule.promise == SpecPromise::kDistribution && sampling.temperature == 0);
}

std::string allowed_difference(const SpecRule& rule) {
  if (rule.promise == SpecPromise::kNothing) return fmt::format("rule {} changes the text", rule.name);
  return fmt::format("rule {} keeps the distribution, not the bytes: texts may differ", rule.name);
}

}  // namespace sx::cli
