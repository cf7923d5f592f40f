// `specextend explain`: continues a prompt and writes a page that shows how drafts, verification and retrieval went.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/explain_page.h"
#include "cli/explain_run.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/spec_flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct ExplainArgs {
  EngineOptions engine;
  GenerateOptions generate;
  SpecFlags spec;
  std::vector<std::string> bias;
  PromptFlags source;
  std::string chat_template_file, page, json;
  bool quiet = false, compare = false;
};

void write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    write_out(text);
    return;
  }
  std::ofstream out(path, std::ios::binary);
  if (!out || !(out << text).flush()) throw Error(fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
}

int run(ExplainArgs& a) {
  if (a.source.prompt.empty() == a.source.file.empty())
    throw Error("give a prompt with -p TEXT or -f FILE (- is standard input), and only one of them");
  if (a.page.empty() && a.json.empty()) throw Error("say where to write: -o PAGE.html, --json FILE, or both");
  if (a.page == "-" && a.json == "-") throw Error("-o - and --json -: only one of them can be standard output");
  apply_bias(a.generate, a.bias);
  a.engine.spec = resolve(a.spec);
  watch_interrupt();
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  const auto prompt = prompt_tokens(a.source, *engine);

  ProgressLine line("prefill", a.quiet);
  ProgressLine tokens("decode", a.quiet);
  a.generate.on_prefill = [&](int done, int total) {
    line.update(total ? double(done) / total : 1, fmt::format("{} / {} tokens", done, total));
    if (done == total) line.clear();
  };
  a.generate.cancelled = interrupted;
  int made = 0;
  a.generate.on_round = [&](const RoundInfo& info) {
    made += info.accepted + 1;
    if (a.generate.max_tokens > 0)
      tokens.update(double(made) / a.generate.max_tokens, fmt::format("{} / {} tokens", made, a.generate.max_tokens));
  };
  const auto session = engine->start();
  GenerateResult result;
  const Explanation e = explain(*engine, *session, prompt, a.generate, a.compare, &result);
  line.clear();
  tokens.clear();
  if (!a.page.empty()) write_file(a.page, explain_page(e));
  if (!a.json.empty()) write_file(a.json, explain_json(e));
  if (!a.quiet) print_timings(result);
  if (e.compared && !e.equal && promises_bytes(spec_rule(a.engine.spec), a.generate.sampling))
    throw Error("the text with speculation differs from the text without: please report this");
  return result.reason == FinishReason::kCancelled ? 130 : 0;
}

}  // namespace

Command add_explain(CLI::App& app) {
  auto args = std::make_shared<ExplainArgs>();
  add_prompt_flags(app, args->source);
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  add_sampling_flags(app, args->generate, args->bias);
  const HelpGroup group(app, "Output");
  app.add_option("-o,--output", args->page, "write the page here, one self-contained HTML file; -: standard output");
  app.add_option("--json", args->json, "write the data as JSON here; -: standard output");
  app.add_flag("--compare", args->compare,
               "run again without speculation: time of a plain step, and whether the tokens are equal");
  app.add_flag("-q,--quiet,--no-display-progress", args->quiet, "no progress, no closing table");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
