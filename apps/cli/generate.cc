// `specextend generate`: one prompt in, its continuation out.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/common.h"
#include "cli/progress.h"
#include "cli/spec_flags.h"

namespace sx::cli {
namespace {

struct Args {
  EngineOptions engine;
  GenerateOptions generate;
  SpecFlags spec;
  std::vector<std::string> bias;
  PromptFlags source;
  std::string chat_template_file;
  bool quiet = false, json = false, compare = false;
};

bool same(const GenerateResult& plain, const GenerateResult& drafted) {
  return plain.reason == FinishReason::kCancelled || (plain.tokens == drafted.tokens && plain.text == drafted.text);
}

// What to say of a text that differs from the plain one.
std::string difference(const SpecRule& rule) {
  if (rule.promise == SpecPromise::kNothing) return fmt::format("rule {} changes the text", rule.name);
  return fmt::format("rule {} keeps the distribution, not the bytes: texts may differ", rule.name);
}

// Shows a run beside the same prompt without speculation.
void print_compared(const GenerateResult& plain, const GenerateResult& drafted, const std::string& name, const std::string& different) {
  const auto rate = [](const GenerateResult& r) { return 1e3 * r.timings.generated_tokens / std::max(1e-6, r.timings.decode_ms); };
  fmt::print(stderr, "\n  {:<22}{:>16}{:>28}\n", "the same prompt", "--spec off", "--spec " + name);
  fmt::print(stderr, "  {:<22}{:>16.1f}{:>28.1f}\n", "decode ms", plain.timings.decode_ms, drafted.timings.decode_ms);
  fmt::print(stderr, "  {:<22}{:>16.1f}{:>28.1f}   (beside decoding)\n", "draft reads prompt, ms", plain.timings.draft_prompt_ms,
             drafted.timings.draft_prompt_ms);
  fmt::print(stderr, "  {:<22}{:>16.1f}{:>28.1f}   {:.2f}x\n", "tok/s", rate(plain), rate(drafted), rate(drafted) / rate(plain));
  fmt::print(stderr, "  {:<22}{:>16}{:>28}   {}\n", "bytes", plain.text.size(), drafted.text.size(), same(plain, drafted) ? "equal" : different);
}

nlohmann::ordered_json timings_json(const GenerateResult& r) {
  return {{"prompt_n", r.timings.prompt_tokens}, {"cache_n", r.timings.cached_tokens}, {"prompt_ms", r.timings.prompt_ms},
          {"predicted_n", r.timings.generated_tokens}, {"predicted_ms", r.timings.decode_ms},
          {"draft_prompt_ms", r.timings.draft_prompt_ms}};
}

// `plain`: the same prompt without speculation, or null.
void print_json(const GenerateResult& r, const GenerateResult* plain) {
  nlohmann::ordered_json j;
  j["text"] = r.text;
  j["tokens"] = r.tokens;
  j["finish_reason"] = finish_reason_name(r.reason);
  j["timings"] = timings_json(r);
  if (plain) j["plain"] = {{"timings", timings_json(*plain)}, {"equal", same(*plain, r)}};
  if (r.spec.drafted_rounds > 0) {
    j["speculation"] = nlohmann::ordered_json::parse(spec_stats_json(r.spec));
    j["metrics"] = nlohmann::ordered_json::parse(spec_metrics_json(r.spec));
  }
  write_out(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int run(Args& a) {
  const PromptFlags& from = a.source;
  if (from.prompt.empty() == from.file.empty() && !(from.prompt.empty() && !from.prefix.empty()))
    throw Error("give a prompt with -p TEXT or -f FILE (- is standard input), and only one of them");
  apply_bias(a.generate, a.bias);
  a.engine.spec = resolve(a.spec);
  watch_interrupt();
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  const auto prompt = prompt_tokens(from, *engine);
  ProgressLine line("prefill", a.quiet);
  a.generate.on_prefill = [&](int done, int total) {
    line.update(total ? double(done) / total : 1, fmt::format("{} / {} tokens", done, total));
    if (done == total) line.clear();
    return !interrupted();
  };
  if (!a.json) a.generate.on_text = [&](std::string_view text) { return write_out(text) && !interrupted(); };
  else a.generate.on_text = [&](std::string_view) { return !interrupted(); };
  const auto session = engine->start();
  const GenerateResult result = session->generate(prompt, a.generate);
  line.clear();
  if (!a.json) write_out("\n");
  if (!a.quiet) print_timings(result);
  std::optional<GenerateResult> plain;
  if (a.compare && result.reason != FinishReason::kCancelled) plain = decode_plainly(*session, prompt, a.generate);
  if (a.json) print_json(result, plain ? &*plain : nullptr);
  const SpecRule rule = spec_rule(a.engine.spec);
  const bool equals = promises_bytes(rule, a.generate.sampling);
  if (plain && !a.quiet && plain->reason != FinishReason::kCancelled)
    print_compared(*plain, result, a.engine.spec.preset, equals ? "DIFFERENT" : difference(rule));
  if (plain && equals && !same(*plain, result))
    throw Error("the text with speculation differs from the text without: please report this");
  return result.reason == FinishReason::kCancelled ? 130 : 0;
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto args = std::make_shared<Args>();
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  add_sampling_flags(app, args->generate, args->bias);
  add_prompt_flags(app, args->source);
  app.add_flag("--compare", args->compare, "then decode the same prompt without speculation, and show both speeds and whether the bytes are equal (with rules that do not promise that, the text may differ)");
  app.add_flag("--json", args->json, "print one JSON object instead of the text");
  app.add_flag("-q,--quiet,--no-display-progress", args->quiet, "no progress, no closing table");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
