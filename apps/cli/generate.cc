// `specextend generate`: one prompt in, its continuation out.
#include <fmt/format.h>
#include <specextend/inspect.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/beside.h"
#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/eval_store.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/spec_flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct GenerateArgs {
  EngineOptions engine;
  GenerateOptions generate;
  SpecFlags spec;
  std::vector<std::string> bias;
  PromptFlags source;
  std::string chat_template_file;
  std::string explain, report;
  std::vector<std::string> beside;
  bool quiet = false, json = false, compare = false;
};

// One line for each decision of preset auto: what was decided and why, what was expected, and what came of it.
void print_decision(const RoundInfo& round) {
  const RoundDecision& d = round.decision;
  const PhaseTimes& t = round.times;
  const double ms = t.draft + t.verify + t.accept + t.commit + t.score + t.host;
  fmt::print(
      stderr,
      "auto: token {}: {}{} ({}); expected {:.2f} tokens in {:.2f} steps; {} drafted, {} verified, {} accepted, {:.1f} ms",
      round.timings.generated_tokens, d.kind.empty() ? "plain" : d.kind,
      d.levels > 0 ? fmt::format(", {} levels", d.levels) : "", d.kind.empty() ? "no draft" : d.why, d.tokens, d.steps,
      round.drafted, round.verified, round.accepted, ms);
  fmt::print(stderr, "{}\n", round.plain_ms > 0 ? fmt::format(" = {:.2f} steps", ms / round.plain_ms) : "");
}

bool same(const GenerateResult& plain, const GenerateResult& drafted) {
  return plain.reason == FinishReason::kCancelled || (plain.tokens == drafted.tokens && plain.text == drafted.text);
}

// The same prompt without speculation, and how the two runs compare.
struct Compared {
  GenerateResult plain;
  AnswerTime plain_time, drafted_time;
  Speedup ratio;
  double distinct = 1;  // 8-grams of the text
};

void print_compared(const Compared& c, const GenerateResult& drafted, const std::string& name,
                    const std::string& different) {
  const auto row = [](const char* what, double plain, double with, double ratio) {
    fmt::print(stderr, "  {:<34}{:>14.1f}{:>28.1f}{}\n", what, plain, with,
               ratio > 0 ? fmt::format("   {:.2f}x", ratio) : "");
  };
  fmt::print(stderr, "\n  {:<34}{:>14}{:>28}\n", "the same prompt, ms", "--spec off", "--spec " + name);
  row("whole answer", c.plain_time.whole(), c.drafted_time.whole(), c.ratio.whole);
  row("  prompt", c.plain_time.prompt, c.drafted_time.prompt, 0);
  row("  draft reads the prompt", 0, c.drafted_time.draft_prompt, 0);
  row("  decode only", c.plain_time.decode, c.drafted_time.decode, c.ratio.decode);
  row("answer after the prompt", c.plain_time.after_prompt(), c.drafted_time.after_prompt(), c.ratio.after_prompt);
  fmt::print(stderr, "  {:<34}{:>14}{:>28}   {}\n", "bytes", c.plain.text.size(), drafted.text.size(),
             same(c.plain, drafted) ? "equal" : different);
  fmt::print(stderr, "  {:<34}{:>13.0f}%   (a text that loops is easy to draft)\n", "distinct 8-grams of the text",
             100 * c.distinct);
}

nlohmann::ordered_json timings_json(const GenerateResult& r) {
  return {{"prompt_n", r.timings.prompt_tokens}, {"cache_n", r.timings.cached_tokens},
          {"prompt_ms", r.timings.prompt_ms},    {"predicted_n", r.timings.generated_tokens},
          {"predicted_ms", r.timings.decode_ms}, {"draft_prompt_ms", r.timings.draft_prompt_ms}};
}

void print_json(const GenerateResult& r, const Compared* compared, double startup_ms) {
  nlohmann::ordered_json j;
  j["text"] = r.text;
  j["tokens"] = r.tokens;
  j["finish_reason"] = finish_reason_name(r.reason);
  j["timings"] = timings_json(r);
  j["timings"]["startup_ms"] = startup_ms;
  j["distinct_8grams"] = distinct_ngrams(r.tokens);
  if (compared) {
    j["plain"] = {{"timings", timings_json(compared->plain)}, {"equal", same(compared->plain, r)}};
    j["speedup"] = to_object(compared->ratio);
  }
  if (r.spec.drafted_rounds > 0) {
    j["speculation"] = nlohmann::ordered_json::parse(spec_stats_json(r.spec));
    j["metrics"] = nlohmann::ordered_json::parse(spec_metrics_json(r.spec));
  }
  write_out(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// Generates again without speculation, from an empty cache, so that prefill is part of the comparison.
Compared compare(Session& session, std::span<const Token> prompt, const GenerateOptions& options,
                 const GenerateResult& drafted) {
  Compared c;
  session.truncate(0);
  c.plain = decode_plainly(session, prompt, options);
  PromptTimes times;
  c.drafted_time = times.of(drafted, true), c.plain_time = times.of(c.plain, false);
  c.ratio = speedup(c.plain_time, c.drafted_time);
  c.distinct = distinct_ngrams(drafted.tokens);
  return c;
}

// Plain decoding, the presets of --beside and that of --spec, one after the other.
int show_beside(const GenerateArgs& a, const Engine& engine, Session& session, std::span<const Token> prompt) {
  std::vector<std::string> methods = a.beside;
  methods.push_back(a.engine.spec.name);
  PassTimes passes;
  const auto say = [&](const std::string& method) {
    if (!a.quiet) fmt::print(stderr, "\n--- {}\n", method);
  };
  GenerateOptions options = a.generate;
  options.on_text = [&](std::string_view text) {
    if (!a.quiet) write_out(text);
  };
  const std::string& draft = engine.options().spec.draft_model;
  const bool head = !draft.empty() && is_head(draft);
  const auto runs = run_beside(session, prompt, options, methods, head ? a.engine.spec.name : "", passes, say);
  write_out("\n" + beside_table(runs, passes));
  if (!a.report.empty()) {
    write_eval_file(a.report, beside_page(runs, passes, engine.backend()));
    fmt::print(stderr, "page: {}\n", a.report);
  }
  for (const BesideRun& r : runs)
    if (!r.equal && promises_bytes(spec_rule(parse_spec(r.method)), a.generate.sampling))
      throw Error(fmt::format("the text with --spec {} differs from the text without: please report this", r.method));
  return runs.size() == methods.size() + 1 ? 0 : 130;
}

int run(GenerateArgs& a) {
  const PromptFlags& from = a.source;
  if (from.prompt.empty() == from.file.empty() && !(from.prompt.empty() && !from.prefix.empty()))
    throw Error("give a prompt with -p TEXT or -f FILE (- is standard input), and only one of them");
  apply_bias(a.generate, a.bias);
  a.engine.spec = resolve(a.spec, kDefaultSpec);
  if (!a.report.empty() && a.beside.empty()) throw Error("--report is the page of --beside: add --beside NAME");
  if (!a.beside.empty()) {
    if (a.json || a.compare) throw Error("--beside prints a table of its own: leave --json and --compare out");
    a.engine.spec.name = a.spec.specs.empty() ? kDefaultSpec : a.spec.specs.front();
    for (const std::string& method : a.beside) {
      a.engine.more_specs.push_back(parse_spec(method));
      a.engine.more_specs.back().name = method;
    }
  }
  watch_interrupt();
  const auto start = std::chrono::steady_clock::now();
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  const double startup_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const auto prompt = prompt_tokens(from, *engine);
  ProgressLine line("prefill", a.quiet);
  a.generate.on_prefill = [&](int done, int total) {
    line.update(total ? double(done) / total : 1, fmt::format("{} / {} tokens", done, total));
    if (done == total) line.clear();
  };
  bool closed = false;  // nobody reads standard output any more
  if (!a.json) a.generate.on_text = [&](std::string_view text) { closed = !write_out(text); };
  a.generate.cancelled = [&] { return closed || interrupted(); };
  if (a.explain == "auto") a.generate.on_round = print_decision;
  const auto session = engine->start();
  if (!a.beside.empty()) return show_beside(a, *engine, *session, prompt);
  const GenerateResult result = session->generate(prompt, a.generate);
  line.clear();
  if (!a.json) write_out("\n");
  if (!a.quiet) print_timings(result);
  std::optional<Compared> compared;
  if (a.compare && result.reason != FinishReason::kCancelled) compared = compare(*session, prompt, a.generate, result);
  if (a.json) print_json(result, compared ? &*compared : nullptr, startup_ms);
  const SpecRule rule = spec_rule(a.engine.spec);
  const bool equals = promises_bytes(rule, a.generate.sampling);
  if (compared && !a.quiet && compared->plain.reason != FinishReason::kCancelled) {
    print_compared(*compared, result, a.engine.spec.preset, equals ? "DIFFERENT" : allowed_difference(rule));
    fmt::print(stderr, "  {:<34}{:>42.1f}   (loading, probing, costs; once, not in the above)\n", "start-up",
               startup_ms);
  }
  if (compared && equals && !same(compared->plain, result))
    throw Error("the text with speculation differs from the text without: please report this");
  return result.reason == FinishReason::kCancelled ? 130 : 0;
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto args = std::make_shared<GenerateArgs>();
  add_prompt_flags(app, args->source);
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  add_sampling_flags(app, args->generate, args->bias);
  const HelpGroup group(app, "Output");
  app.add_flag("--compare", args->compare, "run again without speculation; show times, compare bytes");
  rare(app.add_option("--beside", args->beside,
                      "answer without speculation, with this preset (repeatable) and with --spec; one table"))
      ->allow_extra_args(false);
  rare(app.add_option("--report", args->report, "with --beside: write the table as a page, FILE.html"));
  rare(app.add_option("--explain", args->explain, "auto: one line on standard error for each decision of --spec auto"))
      ->check(CLI::IsMember({"auto"}));
  app.add_flag("--json", args->json, "print one JSON object instead of the text");
  app.add_flag("-q,--quiet,--no-display-progress", args->quiet, "no progress, no closing table");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
