#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace sx::cli {
namespace {

constexpr size_t kColumns = 100, kIndent = 26;
constexpr std::string_view kRare = "; rare";   // how the group's name of a rare flag ends
constexpr const char* kUngrouped = "Options";  // CLI11's group of flags that were given none
constexpr const char* kRareUngrouped = "Options; rare";
constexpr std::string_view kShortWords[] = {"ctk",  "ctv",  "ub",   "ngl",  "fa", "tb", "hf", "mg",
                                            "sm",   "ts",   "dev",  "np",   "cb", "to", "md", "sys",
                                            "ctkd", "ctvd", "ngld", "devd", "cd", "td"};

// "  -n, --predict INT      what it does", wrapped at word boundaries.
void put_row(std::string& out, const std::string& left, const std::string& text) {
  std::string line = fmt::format("  {:<{}}", left, kIndent - 2);
  if (left.size() + 4 > kIndent) {
    out += "  " + left + "\n";
    line.assign(kIndent, ' ');
  }
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line.assign(kIndent, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
  }
  out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

// The short and the first long spelling; all of them for --help-all.
std::string spellings(const CLI::Option& option, bool all) {
  if (option.get_positional()) return option.get_name(true, false);
  std::string names;
  const auto add = [&](const char* dashes, const std::string& name) {
    names += (names.empty() ? "" : ", ") + (dashes + name);
  };
  for (const std::string& name : option.get_snames()) add("-", name);
  for (const std::string& name : option.get_lnames()) {
    add(takes_one_dash(name) ? "-" : "--", name);
    if (!all) break;
  }
  const std::string type = option.get_type_size() == 0 ? "" : option.get_type_name();
  return type.empty() ? names : names + " " + type.substr(0, type.find(':'));
}

std::string description(const CLI::Option& option, bool all) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += fmt::format(" (default {})", option.get_default_str());
  if (all && !option.get_envname().empty()) text += fmt::format(" [{}]", option.get_envname());
  return text;
}

// Headings in the order in which their flags were added. The flags of --help and --help-all themselves come last.
std::vector<std::pair<std::string, std::vector<const CLI::Option*>>> grouped(const CLI::App& app, bool all) {
  std::vector<std::pair<std::string, std::vector<const CLI::Option*>>> groups;
  const auto add = [&](const std::string& heading, const CLI::Option* option) {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == heading; });
    if (found == groups.end()) groups.push_back({heading, {option}});
    else found->second.push_back(option);
  };
  for (const CLI::Option* option : app.get_options()) {
    std::string heading = option->get_group();
    const bool hidden = heading.ends_with(kRare);
    if (hidden) heading.resize(heading.size() - kRare.size());
    const bool help = option == app.get_help_ptr() || option == app.get_help_all_ptr();
    if (!help && !option->get_positional() && (all || !hidden)) add(heading, option);
  }
  return groups;
}

size_t count_flags(const CLI::App& app) {
  const auto options = app.get_options([](const CLI::Option* option) { return !option->get_positional(); });
  return options.size() - (app.get_help_ptr() != nullptr) - (app.get_help_all_ptr() != nullptr);
}

std::string usage(const CLI::App& app, const std::string& name) {
  std::string line = "usage: " + name;
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional()) {
      const std::string word = option->get_name(true, false);
      line += option->get_required() ? " " + word : " [" + word + "]";
    }
  return line + " [flags]\n";
}

std::string command_help(const CLI::App& app, const std::string& name, bool all) {
  std::string out = fmt::format("{}: {}\n{}", name, app.get_description(), usage(app, name));
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional()) put_row(out, spellings(*option, all), description(*option, all));
  for (const auto& [heading, options] : grouped(app, all)) {
    out += fmt::format("\n{}\n", heading == kUngrouped ? "Flags" : heading);
    for (const CLI::Option* option : options) put_row(out, spellings(*option, all), description(*option, all));
  }
  if (!app.get_footer().empty()) out += "\n" + app.get_footer() + "\n";
  if (all)
    for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; }))
      out += "\n" + command_help(*below, name + " " + below->get_name(), true);
  if (!all) out += fmt::format("\n`{} --help-all` lists all {} flags.\n", name, count_flags(app));
  return out;
}

std::string program_help(const CLI::App& app, const std::string& name, bool all) {
  std::string out = fmt::format("{}\nusage: {} COMMAND [flags]\n", app.get_description(), name);
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App*) { return true; });
  std::string heading;
  if (!all) out += "\n";
  for (const CLI::App* command : commands) {
    if (all) {
      out += "\n" + command_help(*command, name + " " + command->get_name(), true);
      continue;
    }
    if (command->get_group() != heading) out += fmt::format("{}\n", heading = command->get_group());
    put_row(out, command->get_name(), command->get_description());
  }
  return out +
         fmt::format("\n`{0} COMMAND --help`: its common flags; `--help-all`: every flag; `{0} --version`\n", name);
}

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const bool all = mode != CLI::AppFormatMode::Normal, program = app->get_parent() == nullptr;
    return program ? program_help(*app, name, all) : command_help(*app, name, all);
  }
};

}  // namespace

HelpGroup::~HelpGroup() {
  for (CLI::Option* option : app_.get_options()) {
    if (option == app_.get_help_ptr() || option == app_.get_help_all_ptr()) continue;
    if (option->get_group() == kUngrouped) option->group(heading_);
    else if (option->get_group() == kRareUngrouped) option->group(heading_ + std::string(kRare));
  }
}

bool takes_one_dash(std::string_view word) { return std::ranges::count(kShortWords, word) > 0; }

CLI::Option* rare(CLI::Option* option) { return option->group(kRareUngrouped); }

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace sx::cli
