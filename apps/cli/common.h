// What the subcommands share: flags for the engine and for sampling, reading prompts, and the table at the end.
// Text goes to standard output and nothing else does; progress, tables and messages go to standard error.
#pragma once
#include <specextend/specextend.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace sx::cli {

// A subcommand registers its flags and returns what to run after parsing; the result is the exit code.
using Command = std::function<int()>;
Command add_generate(CLI::App& app);
Command add_chat(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_perplexity(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_tokenize(CLI::App& app);
Command add_methods(CLI::App& app);
Command add_verify_lossless(CLI::App& app);
Command add_quantize(CLI::App& app);
Command add_convert(CLI::App& app);
Command add_explain(CLI::App& app);

// Commands that need a library which may not have been there when the program was built.
struct OptionalCommand {
  const char* name;
  const char* what;
  Command (*add)(CLI::App& app);
};
std::vector<OptionalCommand> optional_commands();

void add_model_flag(CLI::App& app, std::string& model);
void add_engine_flags(CLI::App& app, EngineOptions& options, std::string& chat_template_file);
void add_sampling_flags(CLI::App& app, GenerateOptions& options, std::vector<std::string>& bias);

// Where a prompt comes from and what becomes of it.
struct PromptFlags {
  std::string prompt, file, prefix, suffix, system;
  bool chat = false, escape = false, raw = false;
};
void add_prompt_flags(CLI::App& app, PromptFlags& flags);
std::vector<Token> prompt_tokens(const PromptFlags& flags, const Engine& engine);

// Prints what a user should know about the model, on standard error.
void print_warnings(std::span<const std::string> warnings);
// Opens the engine with a progress line on standard error (unless quiet).
std::unique_ptr<Engine> open_engine(EngineOptions options, const std::string& chat_template_file, bool quiet);
// Says on standard error that there is no chat template, if so, and what is used in its place.
void warn_without_template(const Engine& engine);
// Resolves "--logit-bias TOKEN+VALUE" (or -VALUE) into the options.
void apply_bias(GenerateOptions& options, const std::vector<std::string>& bias);

// The same prompt again without speculation; shows nothing.
GenerateResult decode_plainly(Session& session, std::span<const Token> prompt, GenerateOptions options);

// The prompt for one user's message, after a system message unless that is empty, through the chat template.
std::string chat_prompt(const Engine& engine, const std::string& system, const std::string& text);
std::string read_file(const std::string& path);   // "-": standard input
std::string unescape(const std::string& text);    // \n \t \r \" \\ as -e asks
std::string to_json(const std::string& text);     // a JSON string literal; invalid UTF-8 becomes U+FFFD

// Writes to standard output at once; false when nobody reads any more (a closed pipe). Any other failure, such as a full
// disk, throws.
bool write_out(std::string_view text);
void print_timings(const GenerateResult& result);

// True after the user pressed Ctrl-C (installed by watch_interrupt; a second Ctrl-C ends the program).
void watch_interrupt();
bool interrupted();
void clear_interrupt();

}  // namespace sx::cli
