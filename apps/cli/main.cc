// specextend: the command line program. Each subcommand lives in a file of its own name.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/suggest.h"

namespace {

// llama.cpp's flags of several letters after one dash ("-ngl 0"), which the parser would read as single letters.
std::vector<std::string> with_long_dashes(int argc, char** argv) {
  constexpr const char* kWords[] = {"ctk", "ctv", "ub", "ngl", "fa", "tb", "hf", "mg", "sm", "ts", "dev",
                                    "np", "cb", "to", "md", "sys", "ctkd", "ctvd",
                                    "ngld", "devd", "cd", "td"};
  std::vector<std::string> args(argv + 1, argv + argc);
  for (auto& arg : args)
    for (const char* word : kWords)
      if (arg == std::string("-") + word) arg = std::string("--") + word;
  std::reverse(args.begin(), args.end());  // CLI11 takes them back to front
  return args;
}

// What to say of arguments that a command does not know: the first flag among them, else the first of them.
std::string unknown_argument(const CLI::App& command) {
  const std::vector<std::string> rest = command.remaining();
  const auto flag = std::find_if(rest.begin(), rest.end(), [](const std::string& arg) { return arg.starts_with("-"); });
  if (flag == rest.end()) return fmt::format("argument '{}' is one too many", rest.empty() ? "" : rest.front());
  const std::string name = flag->substr(0, flag->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& word : option->get_lnames()) known.push_back("--" + word);
    for (const std::string& letter : option->get_snames()) known.push_back("-" + letter);
  }
  return fmt::format("unknown flag '{}'{}", name, sx::cli::did_you_mean(name, known));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sx::cli;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows up as a failed write
  CLI::App app("SpecExtend: language models on long inputs, fast, and never a byte different.", "specextend");
  app.set_version_flag("--version", SPECEXTEND_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  struct Entry { CLI::App* app; Command run; };
  std::vector<Entry> commands;
  const auto add = [&](const char* name, const char* what, Command (*make)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name, what);
    commands.push_back({sub, make(*sub)});
  };
  add("generate", "continue a prompt; the text goes to standard output", add_generate);
  add("chat", "talk with the model; earlier turns stay in the cache", add_chat);
  for (const OptionalCommand& command : optional_commands()) add(command.name, command.what, command.add);
  add("bench", "measure prefill and decode at several depths", add_bench);
  add("perplexity", "how well the model predicts a text", add_perplexity);
  add("explain", "continue a prompt and write a page that shows speculation at work", add_explain);
  add("methods", "the methods of speculation there are, and their settings", add_methods);
  add("verify-lossless", "run prompts with and without speculation and compare every byte and bit", add_verify_lossless);
  add("inspect", "what is in a model file, and the memory it needs", add_inspect);
  add("tokenize", "turn text into tokens", add_tokenize);
  add("quantize", "write a model in another type, as GGUF; a draft head as a folder", add_quantize);
  add("convert", "write a Hugging Face folder as GGUF, or a GGUF file as a folder", add_convert);
  std::vector<std::string> names;
  for (const Entry& entry : commands) names.push_back(entry.app->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    fmt::print(stderr, "specextend: unknown command '{}'{}\n`specextend --help` lists them\n", argv[1], did_you_mean(argv[1], names));
    return 2;
  }
  try {
    app.parse(with_long_dashes(argc, argv));
    for (const Entry& entry : commands)
      if (entry.app->parsed()) return entry.run();
  } catch (const CLI::ExtrasError& e) {
    const auto parsed = std::find_if(commands.begin(), commands.end(), [](const Entry& entry) { return entry.app->parsed(); });
    const CLI::App& of = parsed == commands.end() ? app : *parsed->app;
    const std::string name = &of == &app ? "specextend" : "specextend " + of.get_name();
    fmt::print(stderr, "{}: {}\n`{} --help` lists what there is\n", name, unknown_argument(of), name);
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
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
  return 0;
}
