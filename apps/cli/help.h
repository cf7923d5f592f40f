// Help screens. `--help` shows the common flags of a command, grouped by purpose, on one screen; `--help-all` shows
// every flag with all its spellings, its default and its environment variable.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace sx::cli {

// Puts the flags that are added to a command during its lifetime under one heading.
class HelpGroup {
 public:
  HelpGroup(CLI::App& app, std::string heading) : app_(app), heading_(std::move(heading)) {}
  HelpGroup(const HelpGroup&) = delete;
  HelpGroup& operator=(const HelpGroup&) = delete;
  ~HelpGroup();

 private:
  CLI::App& app_;
  std::string heading_;
};

// Leaves a flag to --help-all. It must be called while the flag's HelpGroup lives.
CLI::Option* rare(CLI::Option* option);

// Whether llama.cpp writes this flag with one dash: -md, -ngl. Both spellings work here.
bool takes_one_dash(std::string_view word);

// Must be set on the program before its commands are added: they inherit it.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace sx::cli
