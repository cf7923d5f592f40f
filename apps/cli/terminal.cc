#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace sx::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int) {
  if (g_interrupted) ::_exit(130);
  g_interrupted = 1;
}

// Prints the acceptance rate of drafted tokens by depth, and the time of each phase.
void print_speculation(const SpecStats& s) {
  if (s.drafted_rounds == 0) return;
  const PhaseTimes& t = s.times;
  fmt::print(stderr, "\n  speculation: {} rounds, {} drafted; {} tokens drafted, {} verified, {} accepted\n", s.rounds,
             s.drafted_rounds, s.drafted, s.verified, s.accepted);
  fmt::print(stderr, "  acceptance length {:.2f} without, {:.2f} with the bonus token; by depth",
             s.accepted_per_round(), s.tokens_per_round());
  for (size_t d = 0; d < s.tried_at_depth.size() && s.tried_at_depth[d] > 0 && d < 10; ++d)
    fmt::print(stderr, " {:.0f}%", 100.0 * double(s.accepted_at_depth[d]) / double(s.tried_at_depth[d]));
  fmt::print(stderr, "\n  ms: draft {:.1f}, verify {:.1f}, accept {:.1f}, commit {:.1f}, score {:.1f}, host {:.1f}\n",
             t.draft, t.verify, t.accept, t.commit, t.score, t.host);
}

}  // namespace

void watch_interrupt() { std::signal(SIGINT, on_interrupt); }
bool interrupted() { return g_interrupted != 0; }
void clear_interrupt() { g_interrupted = 0; }

bool write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return true;
  if (errno == EPIPE) return false;
  throw Error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

void print_timings(const GenerateResult& r) {
  const Timings& t = r.timings;
  const auto rate = [](int tokens, double ms) { return ms > 0 ? 1e3 * tokens / ms : 0.0; };
  fmt::print(stderr, "\n  {:<9}{:>8}{:>12}{:>12}\n", "", "tokens", "ms", "tok/s");
  fmt::print(stderr, "  {:<9}{:>8}{:>12.1f}{:>12.1f}", "prefill", t.prompt_tokens, t.prompt_ms,
             rate(t.prompt_tokens, t.prompt_ms));
  if (t.cached_tokens > 0) fmt::print(stderr, "  (+ {} from the cache)", t.cached_tokens);
  fmt::print(stderr, "\n  {:<9}{:>8}{:>12.1f}{:>12.1f}\n", "decode", t.generated_tokens, t.decode_ms,
             rate(t.generated_tokens, t.decode_ms));
  if (t.draft_prompt_ms > 0)
    fmt::print(stderr, "  {:<9}{:>20.1f}   beside decoding: the draft read the prompt\n", "draft", t.draft_prompt_ms);
  print_speculation(r.spec);
  fmt::print(stderr, "  finished: {}\n", finish_reason_name(r.reason));
}

}  // namespace sx::cli
