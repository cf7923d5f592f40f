// `specextend chat`: a conversation in the terminal. Each turn renders the whole conversation; the session reuses the
// longest common prefix of its KV cache, so only the new turn is processed.
#include <fmt/format.h>
#include <poll.h>
#include <specextend/costs.h>
#include <unistd.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/spec_flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct ChatArgs {
  EngineOptions engine;
  GenerateOptions generate;
  SpecFlags spec;
  std::vector<std::string> bias;
  std::string system, chat_template_file, first;
  bool quiet = false;
};

// Measures what passes take until there is a line to read.
void wait_for_line(Engine& engine) {
  constexpr int kIdleMs = 300, kPauseMs = 5000;
  pollfd input{.fd = 0, .events = POLLIN, .revents = 0};
  for (int pause = kIdleMs; ::poll(&input, 1, pause) == 0;) pause = measure_when_idle(engine) ? 0 : kPauseMs;
}

// Reads one turn; a line that ends with a backslash goes on in the next. False at the end of input.
bool read_turn(Engine& engine, std::string& text, bool prompt) {
  text.clear();
  std::string line;
  while (true) {
    if (prompt) fmt::print(stderr, "{}", text.empty() ? "> " : "… ");
    if (prompt) wait_for_line(engine);
    if (!std::getline(std::cin, line)) return !text.empty();
    if (line.empty() || line.back() != '\\') {
      text += line;
      return true;
    }
    line.back() = '\n';
    text += line;
  }
}

int run(ChatArgs& a) {
  apply_bias(a.generate, a.bias);
  a.engine.spec = resolve(a.spec, kDefaultSpec);
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  warn_without_template(*engine);
  auto session = engine->start();
  const bool terminal = ::isatty(0) && ::isatty(2) && !a.quiet;
  if (terminal)
    fmt::print(stderr,
               "{}; a line ending in \\ goes on; /reset forgets, /quit or Ctrl-D ends, Ctrl-C stops an answer\n",
               engine->backend());
  watch_interrupt();
  std::vector<Message> start, conversation;
  if (!a.system.empty()) start.push_back({"system", a.system});
  conversation = start;
  std::string turn = a.first;
  bool closed = false;  // nobody reads standard output any more
  a.generate.on_text = [&](std::string_view text) { closed = !write_out(text); };
  a.generate.cancelled = [&] { return closed || interrupted(); };
  while (!turn.empty() || read_turn(*engine, turn, terminal)) {
    if (turn == "/quit" || turn == "/exit") break;
    if (turn == "/reset") conversation = start, turn.clear();
    if (turn.empty()) {
      clear_interrupt();
      if (std::cin.eof()) break;
      continue;
    }
    conversation.push_back({"user", std::exchange(turn, {})});
    ProgressLine line("prefill", a.quiet);
    a.generate.on_prefill = [&](int done, int total) {
      if (total - done > 0) line.update(total ? double(done) / total : 1, fmt::format("{} / {} tokens", done, total));
      else line.clear();
    };
    const GenerateResult result = session->chat(conversation, a.generate);
    line.clear();
    write_out("\n");
    conversation.push_back({"assistant", result.text});
    if (!a.quiet) print_timings(result);
    clear_interrupt();
  }
  return 0;
}

}  // namespace

Command add_chat(CLI::App& app) {
  auto args = std::make_shared<ChatArgs>();
  {
    const HelpGroup group(app, "Conversation");
    app.add_option("--system,--sys", args->system, "system message");
    app.add_option("-p,--prompt", args->first, "the first message");
    app.add_flag("-q,--quiet", args->quiet, "no progress, no tables, no prompt sign");
  }
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  add_sampling_flags(app, args->generate, args->bias);
  return [args] { return run(*args); };
}

}  // namespace sx::cli
