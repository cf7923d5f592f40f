// `specextend methods`: the presets of speculation, and the settings of one of them with their values.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/spec_flags.h"

namespace sx::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Args {
  SpecFlags spec;
  std::string name;
  bool json = false;
};

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
    out += fmt::format("{:<{}}  {:<11}  {}\n", preset.name, width, preset.needs_draft ? "-md FILE" : "none",
                       preset.what);
  return out + "\n`specextend methods NAME` shows the settings of one, --spec NAME uses it. Each keeps the text as it "
               "is without speculation.\n";
}

std::string one_text(const Json& values) {
  std::string out;
  for (const SpecSetting& setting : spec_settings()) {
    const std::string value = values.at(setting.name).get<std::string>();
    out += fmt::format("--spec-{:<15}{:<18}  {}\n", setting.name, value.empty() ? "-" : value, setting.what);
  }
  return out;
}

int run(const Args& a) {
  SpecFlags flags = a.spec;
  if (!a.name.empty()) {
    if (!flags.spec.empty()) throw Error(fmt::format("method {} and --spec {}: give one of them", a.name, flags.spec));
    flags.spec = a.name;
  }
  const bool one = !flags.spec.empty() || !flags.json.empty() || !flags.settings.empty();
  if (!one) return write_out(a.json ? all_json() : all_text()) ? 0 : 1;
  const Json values = Json::parse(spec_describe(resolve(flags)));
  return write_out(a.json ? values.dump(2) + "\n" : one_text(values)) ? 0 : 1;
}

}  // namespace

Command add_methods(CLI::App& app) {
  auto args = std::make_shared<Args>();
  app.add_option("NAME", args->name, "show the settings of this method");
  app.add_flag("--json", args->json, "print JSON");
  add_spec_flags(app, args->spec);
  return [args] { return run(*args); };
}

}  // namespace sx::cli
