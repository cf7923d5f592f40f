#include "cli/spec_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/flags.h"
#include "cli/help.h"

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

bool is_key(std::string_view name) {
  const auto settings = spec_settings();
  return std::any_of(settings.begin(), settings.end(),
                     [&](const SpecSetting& setting) { return setting.name == name; });
}

// The library's errors begin with "spec", as the flag does behind its dashes.
SpecOptions parse_flag(const std::string& spec, const std::map<std::string, std::string>& more) {
  try {
    return parse_spec(spec, more);
  } catch (const Error& error) { throw Error(std::string("--") + error.what()); }
}

bool needs_draft(const std::string& preset) {
  const auto presets = spec_presets();
  return std::any_of(presets.begin(), presets.end(),
                     [&](const SpecPreset& p) { return p.name == preset && p.needs_draft; });
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
                      "type of the values alone in the draft's cache; without it that of -ctkd"));
  ignore(app, "--draft-min,--draft-n-min,--spec-draft-n-min", "short drafts are verified too");
  ignore(app, "--ngld,--gpu-layers-draft,--n-gpu-layers-draft,--spec-draft-ngl",
         "the draft model runs where the target runs");
  ignore(app, "--devd,--device-draft,--spec-draft-device", "the draft model runs where the target runs");
  ignore(app, "--cd,--ctx-size-draft,--spec-draft-ctx-size", "the draft model's context is the target's");
  ignore(app, "--td,--threads-draft,--spec-draft-threads", "drafts use the same threads");
}

std::vector<SpecOptions> resolve_all(const SpecFlags& flags, const char* without) {
  std::map<std::string, std::string> extra = flags.settings;
  if (!flags.value_type.empty()) {
    std::string& types = extra["draft-kv-type"];
    if (types.find('/') != types.npos)
      throw Error(fmt::format("-ctkd {} and -ctvd {}: the type of values is given twice", types, flags.value_type));
    types += "/" + flags.value_type;
  }
  if (!flags.json.empty() && !flags.specs.empty())
    throw Error(
        fmt::format("--spec {} and --speculative-config exclude each other: give one of them", flags.specs.front()));
  std::vector<SpecOptions> all;
  if (flags.specs.empty()) {
    const bool draft = flags.json.empty() && extra.contains("draft-model");
    if (flags.json.empty() && !draft && !extra.empty())
      throw Error(
          fmt::format("key {} of speculation is given, but no preset: add --spec NAME, or -md FILE for a draft model",
                      extra.begin()->first));
    SpecOptions only = parse_flag(draft ? "sd" : flags.json.empty() ? without : "off", extra);
    only.json = flags.json;
    return {only};
  }
  for (const std::string& spec : flags.specs) {
    all.push_back(parse_flag(spec, all.empty() ? extra : std::map<std::string, std::string>()));
    SpecOptions& options = all.back();
    if (const auto model = extra.find("draft-model");
        model != extra.end() && options.draft_model.empty() && needs_draft(options.preset))
      options.draft_model = model->second;
  }
  return all;
}

SpecOptions resolve(const SpecFlags& flags, const char* without) {
  if (flags.specs.size() > 1)
    throw Error(fmt::format(
        "--spec {} and --spec {}: this command runs one preset; `specextend serve` takes several, for requests to name",
        flags.specs[0], flags.specs[1]));
  return resolve_all(flags, without).front();
}

std::string replaced_flag(std::string_view flag, std::string_view value) {
  constexpr std::string_view kPrefix = "--spec-";
  const std::string given = value.empty() ? std::string(flag) : fmt::format("{} {}", flag, value);
  if (flag == "--more-spec") return fmt::format("{} is now a further --spec {}", given, value.empty() ? "NAME" : value);
  std::string key;
  if (flag == "--accept" || flag == "--allow-lossy") key = flag.substr(2);
  else if (flag.starts_with(kPrefix)) key = current_spec_setting(flag.substr(kPrefix.size()));
  if (!is_key(key)) return {};
  return fmt::format("{} is now --spec NAME:{}={}", given, key,
                     !value.empty()            ? value
                     : flag == "--allow-lossy" ? "on"
                                               : "VALUE");
}

}  // namespace sx::cli
