// `specextend eval`: runs data sets with several ways to speculate and writes what each of them costs and gains;
// `specextend eval diff`: what moved between two such runs.
#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "cli/commands.h"
#include "cli/eval_page.h"
#include "cli/eval_run.h"
#include "cli/eval_suite.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/spec_flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct EvalArgs {
  EngineOptions engine;
  EvalOptions eval;
  SpecFlags spec;
  std::vector<std::string> data;
  std::vector<int> answers, lengths, batches;
  std::vector<double> temperatures;
  std::string chat_template_file;
  std::string suite;
  int limit = 0;
  bool quiet = false, quick = false;
  CLI::Option* repetitions = nullptr;
  std::string before, after;  // of diff
  double noise = 100 * kLeastNoise;
};

std::vector<EvalPrompt> data_of(const EvalArgs& a) {
  std::vector<std::vector<EvalPrompt>> sets;
  for (const std::string& path : a.data) sets.push_back(parse_eval_data(read_file(path), path == "-" ? "input" : path));
  if (sets.empty()) sets.push_back(parse_eval_data(builtin_eval_data(), "built-in prompts"));
  return joined(std::move(sets), a.limit);
}

std::string time_left(double seconds) {
  if (!(seconds > 0)) return "";
  if (seconds < 90) return fmt::format(", {:.0f} s left", seconds);
  return seconds < 5400 ? fmt::format(", {:.0f} min left", seconds / 60)
                        : fmt::format(", {:.1f} h left", seconds / 3600);
}

void fill_grid(EvalArgs& a) {
  EvalGrid& grid = a.eval.grid;
  resolve_all(a.spec);  // errors of --spec, by name
  if (!a.spec.json.empty()) throw Error("--speculative-config: eval runs methods by name: --spec NAME:key=value,…");
  for (const auto& [key, value] : a.spec.settings)
    if (key != "draft-model") throw Error(fmt::format("give key {} to its method: --spec NAME:{}={}", key, key, value));
  if (a.quick && a.suite.empty()) throw Error("--quick makes a suite small: add --suite paper");
  if (!a.suite.empty()) {
    if (a.data.empty()) throw Error("--suite paper needs DATA: JSON lines with long texts (docs/eval.md)");
    const int asked = grid.repetitions;
    grid = paper_grid(a.quick);
    if (a.repetitions && a.repetitions->count() > 0) grid.repetitions = asked;
    if (a.quick && a.limit == 0) a.limit = 1;
    grid.methods.insert(grid.methods.end(), a.spec.specs.begin(), a.spec.specs.end());
  } else {
    grid.methods = a.spec.specs;
    if (grid.methods.empty()) grid.methods = {"suffix"};
  }
  if (!a.lengths.empty()) grid.lengths = a.lengths;
  if (!a.temperatures.empty()) grid.temperatures = a.temperatures;
  if (!a.answers.empty()) grid.answers = a.answers;
  if (!a.batches.empty()) grid.batches = a.batches;
  grid = checked(grid);
}

// A store of earlier responses finds its own answer in the second repetition.
void warn_of_stores(const EvalGrid& grid) {
  for (const std::string& method : grid.methods)
    for (const auto& [key, value] : parse_spec(method).settings)
      if (key == "store" && value != "0" && grid.repetitions > 1)
        fmt::print(stderr, "warning: {}: repetitions find their own answer in the store; take --repetitions 1\n",
                   method);
}

int run_diff(const EvalArgs& a) {
  const EvalResults before = read_eval_results(a.before), after = read_eval_results(a.after);
  const EvalDiff d = diff(summarise(before.runs), summarise(after.runs), a.noise / 100);
  if (d.cells.empty()) throw Error(fmt::format("'{}' and '{}' have no cell in common", a.before, a.after));
  write_out(diff_table(d));
  return d.worse() ? 1 : 0;
}

int run(EvalArgs& a) {
  fill_grid(a);
  const std::vector<EvalPrompt> data = data_of(a);
  warn_of_stores(a.eval.grid);
  watch_interrupt();
  const auto start = std::chrono::steady_clock::now();
  const auto draft = a.spec.settings.find("draft-model");
  const auto engine =
      open_engine(eval_engine_options(a.engine, a.eval.grid, draft == a.spec.settings.end() ? "" : draft->second),
                  a.chat_template_file, a.quiet);
  a.eval.startup_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  ProgressLine line("eval", a.quiet);
  a.eval.cancelled = interrupted;
  a.eval.on_progress = [&](const EvalProgress& p) {
    line.update(double(p.done) / std::max(1, p.jobs),
                fmt::format("{} / {} runs{}: {}", p.done, p.jobs, time_left(p.seconds_left), p.now));
  };
  a.eval.on_note = [&](const std::string& note) {
    if (!a.quiet) fmt::print(stderr, "{}\n", note);
  };
  const EvalOutcome outcome = evaluate(*engine, data, a.eval);
  line.clear();
  if (outcome.results.runs.empty()) return 130;
  write_out(eval_table(outcome.results));
  if (!a.quiet) {
    if (outcome.skipped > 0) fmt::print(stderr, "{} runs were there already\n", outcome.skipped);
    fmt::print(stderr, "{}/report.html, results.csv, results.jsonl{}\n", a.eval.out,
               outcome.finished ? "" : "; interrupted: the same command goes on");
  }
  if (outcome.different > 0)
    throw Error(fmt::format("{} runs differ from plain decoding: please report this", outcome.different));
  return outcome.finished ? 0 : 130;
}

void add_diff(CLI::App& app, EvalArgs& args) {
  CLI::App* const diff = app.add_subcommand("diff", "say what moved beyond noise; exit status 1: something got slower");
  diff->footer("");
  diff->add_option("BEFORE", args.before, "folder of an evaluation")->required();
  diff->add_option("AFTER", args.after, "folder of another one with the same cells")->required();
  diff->add_option("--noise", args.noise, "changes up to so many percent are noise; more where repetitions differ more")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
}

}  // namespace

Command add_eval(CLI::App& app) {
  auto args = std::make_shared<EvalArgs>();
  args->eval.out = "eval";
  app.add_option("DATA", args->data, "files of JSON lines (docs/eval.md); without any, a few built-in prompts");
  {
    const HelpGroup group(app, "What is run");
    app.add_option("-o,--out", args->eval.out, "folder for the results; one that has some goes on")
        ->capture_default_str();
    app.add_flag("--restart", args->eval.restart, "throw away results that are in the folder");
    app.add_option("--length", args->lengths, "prompts cut to N tokens; a list; 0: as they are")->delimiter(',');
    app.add_option("-n,--predict", args->answers, "most new tokens; a list (default 64)")->delimiter(',');
    app.add_option("--temp,--temperature", args->temperatures, "temperatures; a list (default 0)")->delimiter(',');
    app.add_option("--batch", args->batches, "requests at a time; a list (default 1)")->delimiter(',');
    args->repetitions =
        app.add_option("--repetitions", args->eval.grid.repetitions, "runs of each cell")->capture_default_str();
    app.add_option("--suite", args->suite, "paper: the SpecExtend paper's experiments, and its figures beside ours")
        ->check(CLI::IsMember({"paper"}));
    app.add_flag("--quick", args->quick, "with --suite: one length, one prompt, one run of each cell");
    app.add_option("--limit", args->limit, "use only the first N prompts");
    app.add_flag("--chat", args->eval.prompts.chat, "send prompts and texts through the chat template");
    app.add_option("--instruction", args->eval.prompts.instruction, "before texts that bring none of their own");
    app.add_flag("-q,--quiet", args->quiet, "no progress, no messages");
  }
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  {
    const HelpGroup group(app, "Sampling");
    SamplingOptions& s = args->eval.generate.sampling;
    rare(app.add_option("--top-k", s.top_k, "sample from the K most likely tokens; 0: all"))->capture_default_str();
    rare(app.add_option("--top-p", s.top_p, "sample from the smallest set of this probability; 1: all"))
        ->capture_default_str();
    rare(app.add_option("--min-p", s.min_p, "drop tokens below this share of the likeliest; 0: none"))
        ->capture_default_str();
    rare(app.add_option("--repeat-penalty", s.repeat_penalty, "divide the logits of recent tokens by this; 1: off"))
        ->capture_default_str();
    rare(app.add_option("-s,--seed", s.seed, "seed; equal seeds give equal texts"))->capture_default_str();
    rare(app.add_flag("--ignore-eos", args->eval.generate.ignore_end, "go on after end-of-text tokens"));
  }
  app.footer("`specextend eval diff BEFORE AFTER` says what moved beyond noise between two folders.");
  add_diff(app, *args);
  return [args] { return args->before.empty() ? run(*args) : run_diff(*args); };
}

}  // namespace sx::cli
