// `specextend verify-lossless`: runs prompts with and without speculation and compares every byte of the text and every bit of
// the logits. Also the honest way to time a preset: both runs share one engine, one process, one prompt at a time.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/common.h"
#include "cli/progress.h"
#include "cli/spec_flags.h"

namespace sx::cli {
namespace {

struct Args {
  EngineOptions engine;
  GenerateOptions generate;
  SpecFlags spec;
  std::vector<std::string> bias, prompts;
  std::string file, jsonl, field = "text", prefix, suffix, chat_template_file;
  int limit = 0;
  bool chat = false, all = false, json = false, quiet = false;
};

struct Run {
  GenerateResult result;
  std::vector<float> logits;  // of every token, and room for more
  size_t used = 0;
};

struct Named {
  std::string name;
  GenerateOptions options;
};

std::vector<std::string> texts_of(const Args& a) {
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

// The settings that stress different parts of sampling; or just the one given by flags.
std::vector<Named> settings_of(const Args& a) {
  if (!a.all) return {{a.generate.sampling.temperature > 0 ? "as given" : "greedy", a.generate}};
  std::vector<Named> all;
  Named greedy{"greedy", a.generate}, sampled{"T=0.7 top-p", a.generate}, penalties{"T=1.2 penalties", a.generate}, bias{"bias, stop", a.generate};
  greedy.options.sampling.temperature = 0;
  sampled.options.sampling.temperature = 0.7f, sampled.options.sampling.top_p = 0.9f;
  penalties.options.sampling.temperature = 1.2f, penalties.options.sampling.repeat_penalty = 1.1f;
  penalties.options.sampling.presence_penalty = 0.1f, penalties.options.sampling.frequency_penalty = 0.1f;
  bias.options.sampling.logit_bias.push_back({100, 2.0f}), bias.options.stop.push_back(". The");
  for (const Named& n : {greedy, sampled, penalties, bias}) all.push_back(n);
  return all;
}

// The room for logits is made before, and used again: first writes to new memory would be timed along, at random.
void run_one(Engine& engine, Session& session, std::span<const Token> prompt, GenerateOptions options, bool speculate, Run& run) {
  options.speculate = speculate;
  run.logits.resize(std::max(run.logits.size(), size_t(std::max(0, options.max_tokens) + 1) * size_t(engine.vocab())));
  run.used = 0;
  options.on_logits = [&run](std::span<const float> row) {
    if (run.used + row.size() > run.logits.size()) run.logits.resize(run.used + row.size());
    std::copy(row.begin(), row.end(), run.logits.begin() + ptrdiff_t(run.used));
    run.used += row.size();
  };
  options.cancelled = [] { return interrupted(); };
  run.result = session.generate(prompt, options);
}

std::string difference(const Run& plain, const Run& spec, int vocab) {
  for (size_t i = 0; i < std::min(plain.result.tokens.size(), spec.result.tokens.size()); ++i)
    if (plain.result.tokens[i] != spec.result.tokens[i]) return fmt::format("token {} differs", i);
  if (plain.result.tokens.size() != spec.result.tokens.size() || plain.result.reason != spec.result.reason) return "another end";
  if (plain.result.text != spec.result.text) return "text differs";
  if (plain.used != spec.used) return "number of logits differs";
  for (size_t i = 0; i < plain.used; i += size_t(vocab))
    if (std::memcmp(&plain.logits[i], &spec.logits[i], size_t(vocab) * sizeof(float)) != 0)
      return fmt::format("logits of token {} differ", i / size_t(vocab));
  return {};
}

struct Totals {
  int cases = 0, different = 0;
  double plain_ms = 0, spec_ms = 0, worst = 1e9;
  int64_t tokens = 0, accepted = 0, rounds = 0;
};

void report(const Args& a, const Named& setting, size_t index, size_t prompt_tokens, const Run& plain, const Run& spec,
            const std::string& wrong, Totals& totals) {
  const double before = plain.result.timings.decode_ms, after = spec.result.timings.decode_ms, ratio = before / after;
  const SpecStats& s = spec.result.spec;
  const size_t n = spec.result.tokens.size();
  ++totals.cases, totals.different += !wrong.empty();
  totals.plain_ms += before, totals.spec_ms += after, totals.worst = std::min(totals.worst, ratio);
  totals.tokens += int64_t(n), totals.accepted += s.accepted, totals.rounds += s.rounds;
  if (a.json) {
    nlohmann::ordered_json j{{"prompt", index}, {"prompt_tokens", prompt_tokens}, {"setting", setting.name}, {"tokens", n},
                             {"equal", wrong.empty()}, {"difference", wrong}, {"plain_ms", before}, {"spec_ms", after}, {"speedup", ratio},
                             {"draft_prompt_ms", spec.result.timings.draft_prompt_ms}};
    j["spec"] = nlohmann::ordered_json::parse(spec_stats_json(s));
    write_out(j.dump() + "\n");
    return;
  }
  write_out(fmt::format("{:>6} {:>8} {:<16} {:>6} {:>9.2f} {:>9.2f} {:>7.2f} {:>9.2f}  {}\n", index, prompt_tokens, setting.name, n,
                        before / double(std::max<size_t>(n, 1)), after / double(std::max<size_t>(n, 1)), ratio,
                        s.rounds ? double(n) / double(s.rounds) : 0.0, wrong.empty() ? "equal" : wrong));
}

// There is nothing to verify where nothing is promised.
void check_promise(const Args& a) {
  const SpecRule rule = spec_rule(a.engine.spec);
  for (const Named& setting : settings_of(a)) {
    if (promises_bytes(rule, setting.options.sampling)) continue;
    if (rule.promise == SpecPromise::kNothing)
      throw Error(fmt::format("--accept {}: this rule changes the text, so its bytes cannot be verified; take --accept match", rule.name));
    throw Error(fmt::format("--accept {}: sampled, this rule keeps the distribution of plain decoding but not its bytes, which is what is verified "
                            "here; take --accept match, or verify it greedily (--temp 0, without --all-settings)", rule.name));
  }
}

int run(Args& a) {
  apply_bias(a.generate, a.bias);
  a.engine.spec = resolve(a.spec);
  check_promise(a);
  if (a.generate.max_tokens < 0) a.generate.max_tokens = 128;
  watch_interrupt();
  const auto texts = texts_of(a);
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  if (a.chat) warn_without_template(*engine);
  if (!a.json)
    write_out(fmt::format("{:>6} {:>8} {:<16} {:>6} {:>9} {:>9} {:>7} {:>9}  {}\n", "prompt", "length", "sampling", "tokens", "plain ms",
                          "spec ms", "speedup", "tok/pass", "compared"));
  Totals totals;
  Run plain, spec;
  ProgressLine line("verify", a.quiet);
  for (size_t i = 0; i < texts.size() && !interrupted(); ++i) {
    std::string text = a.prefix + texts[i] + a.suffix;
    if (a.chat) text = chat_prompt(*engine, {}, text);
    const auto prompt = engine->tokenize(text, !a.chat, true);
    auto session = engine->start();
    for (const Named& setting : settings_of(a)) {
      if (interrupted()) break;
      line.update(double(i) / double(texts.size()), fmt::format("{} / {} prompts", i, texts.size()));
      run_one(*engine, *session, prompt, setting.options, false, plain);
      run_one(*engine, *session, prompt, setting.options, true, spec);
      if (interrupted()) break;
      line.clear();
      report(a, setting, i, prompt.size(), plain, spec, difference(plain, spec, engine->vocab()), totals);
    }
  }
  line.clear();
  if (interrupted()) return 130;
  if (!a.quiet)
    fmt::print(stderr, "{} cases, {} different; speedup {:.2f} (lowest {:.2f}), {:.2f} tokens per pass\n", totals.cases, totals.different,
               totals.plain_ms / totals.spec_ms, totals.worst, totals.rounds ? double(totals.tokens) / double(totals.rounds) : 0.0);
  return totals.different == 0 ? 0 : 1;
}

}  // namespace

Command add_verify_lossless(CLI::App& app) {
  auto args = std::make_shared<Args>();
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  add_sampling_flags(app, args->generate, args->bias);
  app.add_option("-p,--prompt", args->prompts, "a prompt (may be given several times; without any, a few built-in ones)");
  app.add_option("-f,--file", args->file, "read a prompt from a file (- is standard input)");
  app.add_option("--prompts", args->jsonl, "read prompts from a file of JSON lines");
  app.add_option("--field", args->field, "the field of a line that holds the prompt")->capture_default_str();
  app.add_option("--limit", args->limit, "use only the first N prompts");
  app.add_option("--prefix", args->prefix, "text put before each prompt");
  app.add_option("--suffix", args->suffix, "text put after each prompt");
  app.add_flag("--chat", args->chat, "send each prompt as a user's message through the chat template");
  app.add_flag("--all-settings", args->all, "greedy, T = 0.7 with top-p, T = 1.2 with penalties, logit bias with a stop string");
  app.add_flag("--json", args->json, "print one JSON object per case");
  app.add_flag("-q,--quiet", args->quiet, "no progress, no closing line");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
