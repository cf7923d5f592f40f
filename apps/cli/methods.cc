// `specextend methods`: the presets of speculation, the shipped drafts, and the keys of one preset with their values.
#include <fmt/format.h>
#include <specextend/drafts.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/spec_flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

using Json = nlohmann::ordered_json;

struct MethodsArgs {
  SpecFlags spec;
  std::string name;
  bool json = false, drafts = false;
};

std::string drafts_json() {
  Json list = Json::array();
  for (const ShippedDraft& d : shipped_drafts()) {
    const DraftTarget& t = d.target;
    list.push_back({{"name", d.name},
                    {"kind", d.kind},
                    {"path", d.path},
                    {"size", d.bytes},
                    {"sha256", d.sha256},
                    {"target",
                     {{"architecture", t.architecture},
                      {"layers", t.layers},
                      {"width", t.width},
                      {"vocab", t.vocab},
                      {"vocabulary", t.vocabulary}}}});
  }
  return list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string drafts_text() {
  const auto drafts = shipped_drafts();
  if (drafts.empty()) return "shipped drafts: none found\n";
  size_t width = 0;
  for (const ShippedDraft& d : drafts) width = std::max(width, d.name.size());
  std::string out =
      fmt::format("shipped drafts in {}, used without -md where the target fits:\n", shipped_drafts_folder());
  for (const ShippedDraft& d : drafts)
    out +=
        fmt::format("  {:<{}}  {:<6}  {:>5.1f} MB  for {}, {} layers of width {}, {} tokens\n", d.name, width, d.kind,
                    double(d.bytes) / 1e6, d.target.architecture, d.target.layers, d.target.width, d.target.vocab);
  return out;
}

std::string all_json() {
  Json list = Json::array();
  for (const SpecPreset& preset : spec_presets())
    list.push_back({{"name", preset.name}, {"needs_draft", preset.needs_draft}, {"what", preset.what}});
  return list.dump(2) + "\n";
}

std::string all_text() {
  size_t width = 0;
  for (const SpecPreset& preset : spec_presets()) width = std::max(width, preset.name.size());
  std::string out = fmt::format("{:<{}}  draft model  what it does\n", "method", width);
  for (const SpecPreset& preset : spec_presets())
    out +=
        fmt::format("{:<{}}  {:<11}  {}\n", preset.name, width, preset.needs_draft ? "-md FILE" : "none", preset.what);
  return out + "\n" + drafts_text() +
         "\n`specextend methods NAME` shows its keys and values; --spec NAME, or NAME:key=value,…, uses it. The text is the "
         "same as without speculation.\n";
}

std::string one_text(const Json& values) {
  std::string out = "--spec NAME:key=value,key=value changes these:\n";
  for (const SpecSetting& setting : spec_settings()) {
    const std::string value = values.at(setting.name).get<std::string>();
    out += fmt::format("  {:<15}{:<18}  {}\n", setting.name, value.empty() ? "-" : value, setting.what);
  }
  return out;
}

int run(const MethodsArgs& a) {
  if (a.drafts) return write_out(a.json ? drafts_json() : drafts_text()) ? 0 : 1;
  SpecFlags flags = a.spec;
  if (!a.name.empty()) flags.specs.insert(flags.specs.begin(), a.name);
  if (!flags.given()) return write_out(a.json ? all_json() : all_text()) ? 0 : 1;
  const Json values = Json::parse(spec_describe(resolve(flags)));
  return write_out(a.json ? values.dump(2) + "\n" : one_text(values)) ? 0 : 1;
}

}  // namespace

Command add_methods(CLI::App& app) {
  auto args = std::make_shared<MethodsArgs>();
  app.add_option("NAME", args->name, "show the keys and values of this preset; NAME:key=value,… as for --spec");
  {
    const HelpGroup group(app, "Output");
    app.add_flag("--drafts", args->drafts, "show only the shipped drafts");
    app.add_flag("--json", args->json, "print JSON");
  }
  add_spec_flags(app, args->spec);
  for (CLI::Option* option : app.get_options()) option->envname("");  // the list does not depend on the environment
  return [args] { return run(*args); };
}

}  // namespace sx::cli
