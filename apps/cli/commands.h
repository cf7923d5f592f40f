// The subcommands of the program. Each adds its flags to a parser and returns what to run after parsing.
// Text goes to standard output and nothing else does; progress, tables and messages go to standard error.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace sx::cli {

using Command = std::function<int()>;  // returns the exit code
Command add_generate(CLI::App& app);
Command add_chat(CLI::App& app);
Command add_eval(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_perplexity(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_tokenize(CLI::App& app);
Command add_methods(CLI::App& app);
Command add_verify_lossless(CLI::App& app);
Command add_quantize(CLI::App& app);
Command add_convert(CLI::App& app);
Command add_explain(CLI::App& app);

// Commands that need a library which may have been missing when the program was built.
struct OptionalCommand {
  const char* name;
  const char* what;
  Command (*add)(CLI::App& app);
};
std::vector<OptionalCommand> optional_commands();

}  // namespace sx::cli
