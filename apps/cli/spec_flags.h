// The flags of speculation: --spec NAME[:key=value,…], and the spellings of llama.cpp and vLLM for some of the keys.
#pragma once
#include <specextend/specextend.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sx::cli {

// As given on the command line.
struct SpecFlags {
  std::vector<std::string> specs;               // NAME[:key=value,…] each; the first is the default
  std::string json;                             // vLLM's configuration
  std::map<std::string, std::string> settings;  // from llama.cpp's flags, by key
  std::string value_type;                       // -ctvd

  bool given() const { return !specs.empty() || !json.empty() || !settings.empty() || !value_type.empty(); }
};

void add_spec_flags(CLI::App& app, SpecFlags& flags);

// What the flags ask for together, the default first; throws on flags that exclude each other, and on presets and keys
// that do not exist. The library checks the values. `without`: the preset where no flag asks for one.
std::vector<SpecOptions> resolve_all(const SpecFlags& flags, const char* without = "off");
// For commands that run one method: throws where more than one --spec is given.
SpecOptions resolve(const SpecFlags& flags, const char* without = "off");

// The preset of commands that answer (generate, chat, serve) where no flag asks for one.
inline constexpr const char* kDefaultSpec = "auto";

// "--spec-depth 5 is now --spec NAME:depth=5", for a flag of earlier versions; empty for any other flag.
std::string replaced_flag(std::string_view flag, std::string_view value);

}  // namespace sx::cli
