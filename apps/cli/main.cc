// specextend: the command line program. Each subcommand lives in a file of its own name.
#include <fmt/format.h>
#include <specextend/ranks.h>
#include <specextend/suggest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/spec_flags.h"

namespace sx::cli {
namespace {

struct Entry {
  CLI::App* app;
  Command run;
};

// Gives a second dash to llama.cpp's flags of several letters ("-ngl 0"), which CLI11 would read as single letters.
std::vector<std::string> with_two_dashes(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  for (auto& arg : args)
    if (arg.starts_with("-") && takes_one_dash(std::string_view(arg).substr(1))) arg.insert(0, "-");
  return args;
}

// The value of a flag that the parser does not know: behind '=', or the next argument.
std::string value_of(const std::string& flag, const std::vector<std::string>& args) {
  if (const size_t equals = flag.find('='); equals != flag.npos) return flag.substr(equals + 1);
  const auto at = std::find(args.begin(), args.end(), flag);
  return at == args.end() || at + 1 == args.end() || (at + 1)->starts_with("--") ? "" : *(at + 1);
}

// What to say of arguments that a command does not know: of the first flag among them, else of the first argument.
std::string unknown_argument(const CLI::App& command, const std::vector<std::string>& args) {
  const std::vector<std::string> rest = command.remaining();
  const auto flag = std::find_if(rest.begin(), rest.end(), [](const std::string& arg) { return arg.starts_with("-"); });
  if (flag == rest.end()) return fmt::format("argument '{}' is one too many", rest.empty() ? "" : rest.front());
  const std::string name = flag->substr(0, flag->find('='));
  if (const std::string replaced = replaced_flag(name, value_of(*flag, args)); !replaced.empty()) return replaced;
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& word : option->get_lnames()) known.push_back("--" + word);
    for (const std::string& letter : option->get_snames()) known.push_back("-" + letter);
  }
  return fmt::format("unknown flag '{}'{}", name, did_you_mean(name, known));
}

std::vector<Entry> add_commands(CLI::App& app) {
  std::vector<Entry> commands;
  std::string heading;
  const auto add = [&](const char* name, const char* what, Command (*make)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->group(heading);
    commands.push_back({sub, make(*sub)});
  };
  heading = "Generate";
  add("generate", "continue a prompt; the text goes to standard output", add_generate);
  add("chat", "talk with the model in the terminal", add_chat);
  for (const OptionalCommand& command : optional_commands()) add(command.name, command.what, command.add);
  heading = "Speculation";
  add("methods", "list the presets of speculation and their keys", add_methods);
  add("draft-info", "show what can draft for a model, whether it fits, and how much is accepted", add_draft_info);
  add("explain", "continue a prompt and write a page that shows drafts and retrieval", add_explain);
  add("verify-lossless", "compare runs with and without speculation, byte by byte and bit by bit", add_verify_lossless);
  heading = "Measure";
  add("eval", "run data sets with several presets; writes a report of speed and texts", add_eval);
  add("bench", "measure prefill and decode at several depths", add_bench);
  add("perplexity", "measure how well the model predicts a text", add_perplexity);
  heading = "Models";
  add("inspect", "show what is in a model file, and the memory it needs", add_inspect);
  add("tokenize", "turn text into tokens, or tokens into text", add_tokenize);
  add("quantize", "write a model in another type, as GGUF; a draft head as a folder", add_quantize);
  add("convert", "write a Hugging Face folder as GGUF, or a GGUF file as a folder", add_convert);
  return commands;
}

// Runs a command on rank 0 of several, and follows it on the others. Other ranks must not begin with the command: they
// have no standard input, and what it prints is rank 0's to print.
int run_on_ranks(const EngineOptions& options, const Command& command) {
  const RankPlace place = join_ranks(options.split, [](const std::string& why) {
    fmt::print(stderr, "specextend: {}\n", why);
    std::_Exit(1);
  });
  struct Leave {
    ~Leave() { leave_ranks(); }
  } leave;
  if (place.rank == 0) return command();
  follow_ranks(options.threads, options.device);
  return 0;
}

// Runs the command that the arguments name. Errors are exceptions, but for those of arguments.
int run(int argc, char** argv) {
  CLI::App app("SpecExtend: fast LLM inference on long inputs, with the bytes of plain decoding", "specextend");
  app.set_version_flag("--version", SPECEXTEND_VERSION);
  app.set_help_flag("-h,--help", "the common flags");
  app.set_help_all_flag("--help-all", "every flag");
  app.formatter(help_formatter());
  app.require_subcommand(1);
  app.fallthrough(false);
  const std::vector<Entry> commands = add_commands(app);
  std::vector<std::string> names;
  for (const Entry& entry : commands) names.push_back(entry.app->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    fmt::print(stderr, "specextend: unknown command '{}'{}\n`specextend --help` lists them\n", argv[1],
               did_you_mean(argv[1], names));
    return 2;
  }
  const std::vector<std::string> args = with_two_dashes(argc, argv);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them back to front
  } catch (const CLI::ExtrasError& e) {
    const auto parsed =
        std::find_if(commands.begin(), commands.end(), [](const Entry& entry) { return entry.app->parsed(); });
    const CLI::App& of = parsed == commands.end() ? app : *parsed->app;
    const std::string name = &of == &app ? "specextend" : "specextend " + of.get_name();
    fmt::print(stderr, "{}: {}\n`{} --help-all` lists every flag\n", name, unknown_argument(of, args), name);
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) { return app.exit(e); }
  const auto parsed =
      std::find_if(commands.begin(), commands.end(), [](const Entry& entry) { return entry.app->parsed(); });
  if (parsed == commands.end()) return 0;
  // Several devices of one process need no launcher.
  const EngineOptions* const split = split_options();
  const bool ranks = split && (started_by_mpi() || split->device.find(',') == std::string::npos);
  return ranks ? run_on_ranks(*split, parsed->run) : parsed->run();
}

}  // namespace
}  // namespace sx::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows up as a failed write
  try {
    return sx::cli::run(argc, argv);
  } catch (const sx::Error& e) {
    fmt::print(stderr, "specextend: {}\n", e.what());
    return 1;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "specextend: out of memory\n");
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "specextend: {}\n", e.what());
    return 3;
  }
}
