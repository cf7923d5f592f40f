#include "cli/beside.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/eval_assets.h"
#include "cli/eval_plan.h"
#include "cli/explain_page.h"

namespace sx::cli {
namespace {

double per_second(const BesideRun& run) {
  return run.time.decode > 0 ? 1e3 * double(run.result.tokens.size()) / run.time.decode : 0;
}

std::string at_best(std::span<const BesideRun> runs, const PassTimes& passes) {
  if (runs.empty()) return {};
  const AnswerTime& plain = runs.front().time;
  const double decode = best_decode_gain(passes);
  std::string out = fmt::format(
      "At best: reading the prompt takes {:.0f} % of plain's time, so the whole answer cannot gain more than {:.1f}x",
      100 * plain.prompt / std::max(1e-6, plain.whole()), plain.whole() / std::max(1e-6, plain.prompt));
  if (decode > 1)
    out += fmt::format(
        "; drafts that are always right and take no time would decode {:.1f}x as fast, by the passes seen here",
        decode);
  return out + ".";
}

}  // namespace

double BesideRun::tokens_per_pass() const {
  return result.spec.rounds > 0 ? double(result.tokens.size()) / double(result.spec.rounds) : 0;
}

double best_decode_gain(const PassTimes& passes) {
  const auto one = passes.find(1);
  if (one == passes.end()) return 0;
  double best = 1;
  for (const auto& [rows, ms] : passes) best = std::max(best, rows * one->second / std::max(1e-6, ms));
  return best;
}

std::vector<BesideRun> run_beside(Session& session, std::span<const Token> prompt, const GenerateOptions& options,
                                  const std::vector<std::string>& methods, const std::string& reader, PassTimes& passes,
                                  const std::function<void(const std::string&)>& say) {
  std::vector<std::string> all{kPlainMethod};
  all.insert(all.end(), methods.begin(), methods.end());
  std::vector<BesideRun> runs;
  double prompt_ms = 0;
  for (const std::string& method : all) {
    say(method);
    GenerateOptions own = options;
    own.preset = method;
    own.on_round = [&](const RoundInfo& round) {
      double& least = passes[round.verified + 1];
      least = least == 0 ? round.times.verify : std::min(least, round.times.verify);
    };
    if (method == reader) session.truncate(0);
    BesideRun run{.method = method, .result = session.generate(prompt, own)};
    if (run.result.reason == FinishReason::kCancelled) break;
    const bool read = run.result.timings.cached_tokens == 0;
    if (runs.empty()) prompt_ms = run.result.timings.prompt_ms;
    run.time = {read ? run.result.timings.prompt_ms : prompt_ms, run.result.timings.draft_prompt_ms,
                run.result.timings.decode_ms};
    if (!runs.empty()) {
      run.ratio = speedup(runs.front().time, run.time);
      run.equal = run.result.tokens == runs.front().result.tokens && run.result.text == runs.front().result.text;
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

std::string beside_table(std::span<const BesideRun> runs, const PassTimes& passes) {
  std::string out = fmt::format("\n  {:<42}{:>10}{:>9}{:>9}{:>10}{:>10}{:>9}  {}\n", "the same prompt", "whole s",
                                "gain", "decode s", "gain", "tokens/s", "per pass", "bytes");
  for (const BesideRun& r : runs)
    out += fmt::format("  {:<42}{:>10.2f}{:>8.2f}x{:>9.2f}{:>9.2f}x{:>10.1f}{:>9.2f}  {}\n", r.method,
                       r.time.whole() / 1e3, r.ratio.whole, r.time.after_prompt() / 1e3, r.ratio.after_prompt,
                       per_second(r), r.tokens_per_pass(), r.equal ? "equal" : "DIFFERENT");
  return out + "  decode: after the prompt, the draft's reading of it included\n  " + at_best(runs, passes) + "\n";
}

std::string beside_page(std::span<const BesideRun> runs, const PassTimes& passes, const std::string& machine) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";
  out +=
      fmt::format("<title>One prompt, several ways</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n", kEvalStyle);
  out += fmt::format("<h1>One prompt, several ways</h1>\n<p class=\"soft\">{}</p>\n", html_text(machine));
  out +=
      "<div class=\"scroll\"><table id=\"beside\"><thead><tr><th scope=\"col\" class=\"t\">method</th><th scope=\"col\">whole s</th>"
      "<th scope=\"col\">gain</th><th scope=\"col\">prompt s</th><th scope=\"col\">draft reads s</th><th scope=\"col\">decode s</th>"
      "<th scope=\"col\">gain</th><th scope=\"col\">tokens/s</th><th scope=\"col\">tokens per pass</th>"
      "<th scope=\"col\">bytes</th></tr></thead><tbody>\n";
  for (const BesideRun& r : runs)
    out += fmt::format(
        "<tr><th scope=\"row\" class=\"t\">{}</th><td>{:.2f}</td><td>{:.2f}x</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td>"
        "<td>{:.2f}x</td><td>{:.1f}</td><td>{:.2f}</td><td>{}</td></tr>\n",
        html_text(r.method), r.time.whole() / 1e3, r.ratio.whole, r.time.prompt / 1e3, r.time.draft_prompt / 1e3,
        r.time.decode / 1e3, r.ratio.decode, per_second(r), r.tokens_per_pass(),
        r.equal ? "equal" : "<b class=\"bad\">DIFFERENT</b>");
  out += "</tbody></table></div>\n<p>" + html_text(at_best(runs, passes)) + "</p>\n";
  if (!runs.empty())
    out += "<section><h2>The text</h2>\n<p>" + html_text(runs.front().result.text) + "</p></section>\n";
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace sx::cli
