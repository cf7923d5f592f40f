// `specextend verify-lossless`: runs prompts with and without speculation and compares every byte of the text and every
// bit of the logits. It is also the fair way to time a preset: both runs share one engine and process, one prompt at a
// time.
#include <fmt/format.h>
#include <specextend/inspect.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/spec_flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct VerifyLosslessArgs {
  EngineOptions engine;
  GenerateOptions generate;
  SpecFlags spec;
  std::vector<std::string> bias, prompts;
  std::string file, jsonl, field = "text", prefix, suffix, chat_template_file;
  int limit = 0, batch = 0, repetitions = 2;
  bool chat = false, all = false, json = false, quiet = false;
};

struct Run {
  GenerateResult result;
  std::vector<float> logits;  // of every token; may be larger than used
  size_t used = 0;
};

struct Named {
  std::string name;
  GenerateOptions options;
};

std::vector<std::string> texts_of(const VerifyLosslessArgs& a) {
  std::vector<std::string> texts = a.prompts;
  if (!a.file.empty()) texts.push_back(read_file(a.file));
  if (!a.jsonl.empty()) {
    std::istringstream lines(read_file(a.jsonl));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const auto j = nlohmann::json::parse(line, nullptr, false);
      if (!j.is_object() || !j.contains(a.field) || !j[a.field].is_string())
        throw Error(fmt::format("'{}' line {}: expected a JSON object with a string \"{}\"", a.jsonl, number, a.field));
      texts.push_back(j[a.field].get<std::string>());
    }
  }
  if (texts.empty())
    texts = {"Once upon a time", "List the numbers from one to fifty in words, separated by commas: one, two, three,",
             "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over",
             "def fibonacci(n):\n    if n < 2:\n        return n\n    return"};
  if (a.limit > 0 && texts.size() > size_t(a.limit)) texts.resize(size_t(a.limit));
  return texts;
}

// Sampling settings that exercise different parts of the sampler, or the one given by flags.
std::vector<Named> settings_of(const VerifyLosslessArgs& a) {
  if (!a.all) return {{a.generate.sampling.temperature > 0 ? "as given" : "greedy", a.generate}};
  std::vector<Named> all;
  Named greedy{"greedy", a.generate}, sampled{"T=0.7 top-p", a.generate}, penalties{"T=1.2 penalties", a.generate},
      bias{"bias, stop", a.generate};
  greedy.options.sampling.temperature = 0;
  sampled.options.sampling.temperature = 0.7f, sampled.options.sampling.top_p = 0.9f;
  penalties.options.sampling.temperature = 1.2f, penalties.options.sampling.repeat_penalty = 1.1f;
  penalties.options.sampling.presence_penalty = 0.1f, penalties.options.sampling.frequency_penalty = 0.1f;
  bias.options.sampling.logit_bias.push_back({100, 2.0f}), bias.options.stop.push_back(". The");
  for (const Named& n : {greedy, sampled, penalties, bias}) all.push_back(n);
  return all;
}

// The buffer for logits is allocated before the run and reused: page faults of new memory would distort the times.
void run_one(Engine& engine, Session& session, std::span<const Token> prompt, GenerateOptions options, bool speculate,
             Run& run) {
  options.speculate = speculate;
  run.logits.resize(std::max(run.logits.size(), size_t(std::max(0, options.max_tokens) + 1) * size_t(engine.vocab())));
  run.used = 0;
  options.on_logits = [&run](std::span<const float> row) {
    if (run.used + row.size() > run.logits.size()) run.logits.resize(run.used + row.size());
    std::copy(row.begin(), row.end(), run.logits.begin() + ptrdiff_t(run.used));
    run.used += row.size();
  };
  options.cancelled = interrupted;
  run.result = session.generate(prompt, options);
}

std::string difference(const Run& plain, const Run& spec, int vocab) {
  for (size_t i = 0; i < std::min(plain.result.tokens.size(), spec.result.tokens.size()); ++i)
    if (plain.result.tokens[i] != spec.result.tokens[i]) return fmt::format("token {} differs", i);
  if (plain.result.tokens.size() != spec.result.tokens.size() || plain.result.reason != spec.result.reason)
    return "another end";
  if (plain.result.text != spec.result.text) return "text differs";
  if (plain.used != spec.used) return "number of logits differs";
  for (size_t i = 0; i < plain.used; i += size_t(vocab))
    if (std::memcmp(&plain.logits[i], &spec.logits[i], size_t(vocab) * sizeof(float)) != 0)
      return fmt::format("logits of token {} differ", i / size_t(vocab));
  return {};
}

struct Totals {
  int cases = 0, different = 0;
  AnswerTime plain, spec;
  double worst = 1e9;  // of the whole answers
  int64_t tokens = 0, accepted = 0, rounds = 0;
  double distinct = 0;  // 8-grams, weighted by tokens
};

void add(AnswerTime& sum, const AnswerTime& t) {
  sum.prompt += t.prompt, sum.draft_prompt += t.draft_prompt, sum.decode += t.decode;
}

// One case of the report.
struct Case {
  const Named& setting;
  size_t index, prompt_tokens;
  AnswerTime plain, spec;
  std::string wrong;
};

void report(const VerifyLosslessArgs& a, const Case& c, const Run& run, Totals& totals) {
  const Speedup ratio = speedup(c.plain, c.spec);
  const SpecStats& s = run.result.spec;
  const size_t n = run.result.tokens.size();
  const double distinct = distinct_ngrams(run.result.tokens), each = 1.0 / double(std::max<size_t>(n, 1));
  ++totals.cases, totals.different += !c.wrong.empty();
  add(totals.plain, c.plain), add(totals.spec, c.spec), totals.worst = std::min(totals.worst, ratio.whole);
  totals.tokens += int64_t(n), totals.accepted += s.accepted, totals.rounds += s.rounds,
      totals.distinct += distinct * double(n);
  if (a.json) {
    nlohmann::ordered_json j{{"prompt", c.index}, {"prompt_tokens", c.prompt_tokens}, {"setting", c.setting.name},
                             {"tokens", n},       {"equal", c.wrong.empty()},         {"difference", c.wrong}};
    j["speedup"] = to_object(ratio);
    j["plain"] = to_object(c.plain);
    j["drafted"] = to_object(c.spec);
    j["distinct_8grams"] = distinct;
    j["spec"] = nlohmann::ordered_json::parse(spec_stats_json(s));
    write_out(j.dump() + "\n");
    return;
  }
  write_out(
      fmt::format("{:>6} {:>8} {:<16} {:>6} {:>8.2f} {:>8.2f} {:>8.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>8.0f}%  {}\n",
                  c.index, c.prompt_tokens, c.setting.name, n, ratio.whole, ratio.after_prompt, ratio.decode,
                  c.plain.decode * each, c.spec.decode * each, s.rounds ? double(n) / double(s.rounds) : 0.0,
                  100 * distinct, c.wrong.empty() ? "equal" : c.wrong));
}

std::vector<Token> tokens_of(const VerifyLosslessArgs& a, const Engine& engine, const std::string& text) {
  const std::string whole = a.prefix + text + a.suffix;
  return engine.tokenizer().tokenize(a.chat ? chat_prompt(engine, {}, whole) : whole, !a.chat, true);
}

struct BatchRun {
  double whole_ms = 0, cached_ms = 0;  // from empty sessions; with everything in the caches
  std::vector<GenerateResult> results;
};

// Runs one batch from empty sessions, and once more with the prompts in the caches of target and draft.
void run_requests(Engine& engine, std::span<const std::unique_ptr<Session>> sessions, std::span<const Request> requests,
                  BatchRun& out) {
  const auto timed = [&] {
    const auto start = std::chrono::steady_clock::now();
    out.results = engine.generate(requests);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  for (const auto& session : sessions) session->truncate(0);
  const double whole = timed(), cached = timed();
  out.whole_ms = out.whole_ms == 0 ? whole : std::min(out.whole_ms, whole);
  out.cached_ms = out.cached_ms == 0 ? cached : std::min(out.cached_ms, cached);
}

// Alternates batches without and with speculation; the shortest time of each counts.
int run_batch(const VerifyLosslessArgs& a, Engine& engine, const std::vector<std::string>& texts) {
  std::vector<std::vector<Token>> prompts;
  for (int i = 0; i < a.batch; ++i) prompts.push_back(tokens_of(a, engine, texts[size_t(i) % texts.size()]));
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < a.batch; ++i) sessions.push_back(engine.start());
  int different = 0;
  for (const Named& setting : settings_of(a)) {
    GenerateOptions plain_options = setting.options, spec_options = setting.options;
    plain_options.speculate = false;
    plain_options.cancelled = spec_options.cancelled = interrupted;
    std::vector<Request> plain, spec;
    for (size_t i = 0; i < prompts.size(); ++i) {
      plain.push_back({sessions[i].get(), prompts[i], &plain_options});
      spec.push_back({sessions[i].get(), prompts[i], &spec_options});
    }
    BatchRun before, after;
    for (int i = 0; i < std::max(1, a.repetitions) && !interrupted(); ++i) {
      run_requests(engine, sessions, plain, before);
      run_requests(engine, sessions, spec, after);
    }
    if (interrupted()) return 130;
    int64_t tokens = 0, drafted_rounds = 0, accepted = 0;
    int wrong = 0;
    double distinct = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const GenerateResult &p = before.results[i], &s = after.results[i];
      wrong += p.tokens != s.tokens || p.text != s.text || p.reason != s.reason;
      tokens += int64_t(s.tokens.size()), distinct += distinct_ngrams(s.tokens) / double(prompts.size());
      drafted_rounds += s.spec.drafted_rounds, accepted += s.spec.accepted;
    }
    different += wrong;
    const double whole = before.whole_ms / after.whole_ms, cached = before.cached_ms / after.cached_ms;
    if (a.json) {
      write_out(nlohmann::ordered_json{{"batch", a.batch},
                                       {"setting", setting.name},
                                       {"tokens", tokens},
                                       {"equal", wrong == 0},
                                       {"plain", {{"whole_ms", before.whole_ms}, {"cached_ms", before.cached_ms}}},
                                       {"drafted", {{"whole_ms", after.whole_ms}, {"cached_ms", after.cached_ms}}},
                                       {"speedup", {{"whole_answer", whole}, {"prompts_cached", cached}}},
                                       {"drafted_rounds", drafted_rounds},
                                       {"accepted_tokens", accepted},
                                       {"distinct_8grams", distinct}}
                    .dump() +
                "\n");
    } else {
      write_out(fmt::format(
          "batch of {}, {}: {} tokens; whole answers {:.1f} -> {:.1f} tok/s, {:.2f}x; prompts cached {:.1f} -> {:.1f} tok/s, {:.2f}x; "
          "{:.0f}% distinct 8-grams; {}\n",
          a.batch, setting.name, tokens, 1e3 * double(tokens) / before.whole_ms, 1e3 * double(tokens) / after.whole_ms,
          whole, 1e3 * double(tokens) / before.cached_ms, 1e3 * double(tokens) / after.cached_ms, cached,
          100 * distinct, wrong == 0 ? "equal" : fmt::format("{} DIFFERENT", wrong)));
    }
  }
  return different == 0 ? 0 : 1;
}

// Rejects rules that do not promise the bytes: there is nothing to verify.
void check_promise(const VerifyLosslessArgs& a) {
  const SpecRule rule = spec_rule(a.engine.spec);
  for (const Named& setting : settings_of(a)) {
    if (promises_bytes(rule, setting.options.sampling)) continue;
    if (rule.promise == SpecPromise::kNothing)
      throw Error(fmt::format(
          "accept={}: this rule changes the text, so its bytes cannot be verified; take accept=match", rule.name));
    throw Error(fmt::format(
        "accept={}: sampled, this rule keeps the distribution of plain decoding but not its bytes, which is what is verified "
        "here; take accept=match, or verify it greedily (--temp 0, without --all-settings)",
        rule.name));
  }
}

int run(VerifyLosslessArgs& a) {
  apply_bias(a.generate, a.bias);
  a.engine.spec = resolve(a.spec);
  check_promise(a);
  if (a.generate.max_tokens < 0) a.generate.max_tokens = 128;
  watch_interrupt();
  const auto texts = texts_of(a);
  const auto start = std::chrono::steady_clock::now();
  if (a.batch > 0) a.engine.max_sessions = a.batch;
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  const double startup_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (a.chat) warn_without_template(*engine);
  if (a.batch > 0) return run_batch(a, *engine, texts);
  if (!a.json)
    write_out(fmt::format(
        "{:>6} {:>8} {:<16} {:>6} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}  {}\n{:>40} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}\n",
        "prompt", "length", "sampling", "tokens", "whole", "after", "decode", "plain", "spec", "tokens", "distinct",
        "compared", "", "answer", "prompt", "only", "ms/token", "ms/token", "per pass", "8-grams"));
  Totals totals;
  Run plain, spec;
  ProgressLine line("verify", a.quiet);
  for (size_t i = 0; i < texts.size() && !interrupted(); ++i) {
    const auto prompt = tokens_of(a, *engine, texts[i]);
    auto session = engine->start();
    PromptTimes times;
    for (const Named& setting : settings_of(a)) {
      if (interrupted()) break;
      line.update(double(i) / double(texts.size()), fmt::format("{} / {} prompts", i, texts.size()));
      run_one(*engine, *session, prompt, setting.options, false, plain);
      run_one(*engine, *session, prompt, setting.options, true, spec);
      if (interrupted()) break;
      line.clear();
      const AnswerTime before = times.of(plain.result, false), after = times.of(spec.result, true);
      report(a, {setting, i, prompt.size(), before, after, difference(plain, spec, engine->vocab())}, spec, totals);
    }
  }
  line.clear();
  if (interrupted()) return 130;
  if (!a.quiet) {
    const Speedup all = speedup(totals.plain, totals.spec);
    fmt::print(
        stderr,
        "{} cases, {} different; whole answers {:.2f}x (lowest {:.2f}x), after the prompt {:.2f}x, decode only {:.2f}x; {:.2f} tokens per "
        "pass, {:.0f}% distinct 8-grams; start-up {:.0f} ms\n",
        totals.cases, totals.different, all.whole, totals.worst, all.after_prompt, all.decode,
        totals.rounds ? double(totals.tokens) / double(totals.rounds) : 0.0,
        100 * totals.distinct / double(std::max<int64_t>(1, totals.tokens)), startup_ms);
  }
  return totals.different == 0 ? 0 : 1;
}

}  // namespace

Command add_verify_lossless(CLI::App& app) {
  auto args = std::make_shared<VerifyLosslessArgs>();
  {
    const HelpGroup group(app, "Prompts");
    app.add_option("-p,--prompt", args->prompts, "a prompt; repeatable; without any, a few built-in ones");
    app.add_option("-f,--file", args->file, "read a prompt from a file; -: standard input");
    app.add_option("--prompts", args->jsonl, "read prompts from a file of JSON lines");
    rare(app.add_option("--field", args->field, "the field of a line that holds the prompt"))->capture_default_str();
    app.add_option("--limit", args->limit, "use only the first N prompts");
    rare(app.add_option("--prefix", args->prefix, "text before each prompt"));
    rare(app.add_option("--suffix", args->suffix, "text after each prompt"));
    app.add_flag("--chat", args->chat, "send each prompt as a user message through the chat template");
  }
  {
    const HelpGroup group(app, "Comparison");
    app.add_option("--batch", args->batch, "compare batches of so many prompts; fewer prompts are reused")
        ->check(CLI::Range(1, 1024));
    rare(app.add_option("--repetitions", args->repetitions, "with --batch: runs of each; the fastest counts"))
        ->capture_default_str();
    app.add_flag("--all-settings", args->all,
                 "greedy, T = 0.7 with top-p, T = 1.2 with penalties, logit bias with a stop string");
    app.add_flag("--json", args->json, "print one JSON object per case");
    app.add_flag("-q,--quiet", args->quiet, "no progress, no closing line");
  }
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  add_sampling_flags(app, args->generate, args->bias);
  return [args] { return run(*args); };
}

}  // namespace sx::cli
