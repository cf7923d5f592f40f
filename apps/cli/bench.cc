// `specextend bench`: llama-bench's table with depths and with passes of several rows (the cost of verifying a draft),
// each beside the limits of this machine's memory bandwidth and arithmetic.
#include <fmt/format.h>
#include <specextend/inspect.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/peaks/peaks.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct BenchArgs {
  EngineOptions engine;
  std::string chat_template_file, output = "md";
  std::vector<int> prompts{512}, generations{128}, depths{0}, rows;
  int repetitions = 5;
  bool quiet = false, no_peaks = false;
};

struct Result {
  std::string test;
  int tokens, depth;
  double mean_ms, deviation_ms, tokens_per_s, deviation;
  double read_ms, arithmetic_ms;   // lower bounds by memory bandwidth and by arithmetic
  std::vector<double> samples_ms;  // of every repetition
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Computes lower bounds for `rows` rows behind `depth` cells: reading weights and K/V, and arithmetic. 0: not known.
void add_limits(Result& r, const StepCosts& c, const MachinePeaks& p, int rows, int depth, int outputs, int steps) {
  const double keys = double(rows) * depth + 0.5 * rows * (rows + 1.0);
  const double bytes = double(c.weight_bytes) + double(c.kv_bytes_per_token) * depth;
  const double matrix = c.matrix_ops_per_row * rows + c.head_ops_per_row * outputs,
               attention = c.attention_ops_per_key * keys;
  if (p.read_gb_per_s > 0) r.read_ms = bytes / p.read_gb_per_s * 1e-6 * steps;
  if (p.int8_gop_per_s > 0 && p.bf16_gflop_per_s > 0)
    r.arithmetic_ms = (matrix / p.int8_gop_per_s + attention / p.bf16_gflop_per_s) * 1e-6 * steps;
}

Result summarise(std::string test, int tokens, int depth, const std::vector<double>& ms) {
  Result r{std::move(test), tokens, depth, 0, 0, 0, 0, 0, 0, ms};
  for (double t : ms) r.mean_ms += t / double(ms.size()), r.tokens_per_s += 1e3 * tokens / t / double(ms.size());
  for (double t : ms) {
    r.deviation_ms += (t - r.mean_ms) * (t - r.mean_ms);
    r.deviation += (1e3 * tokens / t - r.tokens_per_s) * (1e3 * tokens / t - r.tokens_per_s);
  }
  const double n = ms.size() > 1 ? double(ms.size() - 1) : 1;
  r.deviation_ms = std::sqrt(r.deviation_ms / n);
  r.deviation = std::sqrt(r.deviation / n);
  return r;
}

class Bench {
 public:
  Bench(BenchArgs& a, Engine& engine, const MachinePeaks& peaks)
      : a_(a), engine_(engine), peaks_(peaks), session_(engine.start()), line_("bench", a.quiet) {
    std::mt19937 random(1);
    tokens_.resize(size_t(engine.context()));
    for (auto& t : tokens_) t = Token(random() % unsigned(engine.vocab()));
  }

  std::vector<Result> run() {
    std::vector<Result> results;
    for (int depth : a_.depths) {
      fill(depth);
      for (int n : a_.prompts)
        if (n > 0) results.push_back(measure("pp", n, depth));
      for (int n : a_.rows)
        if (n > 0) results.push_back(measure("vr", n, depth));
      for (int n : a_.generations)
        if (n > 0) results.push_back(measure("tg", n, depth));
    }
    line_.clear();
    return results;
  }

 private:
  void fill(int depth) {
    session_->truncate(std::min(depth, session_->length()));
    while (session_->length() < depth) {
      line_.update(double(session_->length()) / depth,
                   fmt::format("filling {} of {} tokens", session_->length(), depth));
      const int n = std::min(engine_.options().chunk, depth - session_->length());
      session_->evaluate(std::span(tokens_).subspan(size_t(session_->length()), size_t(n)), 0);
    }
  }

  // Runs decode steps as every request does; evaluating prompt tokens one by one would take other kernels on a device.
  double decode(int depth, int n) {
    GenerateOptions how;
    how.max_tokens = n, how.ignore_end = true, how.speculate = false;
    const GenerateResult r = session_->generate(std::span(tokens_).first(size_t(depth) + 1), how);
    if (r.timings.generated_tokens != n || r.timings.cached_tokens != depth)
      throw Error(fmt::format("test tg{} @ d{} did not run as planned: {} tokens after {} cached ones", n, depth,
                              r.timings.generated_tokens, r.timings.cached_tokens));
    return r.timings.decode_ms;
  }

  Result measure(const std::string& kind, int n, int depth) {
    const std::string name = fmt::format("{}{}{}", kind, n, depth ? fmt::format(" @ d{}", depth) : "");
    if (depth + n > engine_.context())
      throw Error(fmt::format("test {} needs a context of {}, it is {}: raise -c", name, depth + n, engine_.context()));
    std::vector<double> ms;
    const std::span<const Token> text(tokens_);
    for (int i = 0; i <= a_.repetitions; ++i) {  // the first is the warm-up
      line_.update(double(i) / (a_.repetitions + 1), name);
      session_->truncate(depth);
      double took = 0;
      if (kind == "tg") {
        took = decode(depth, n);
      } else {
        const double start = now_ms();
        session_->evaluate(text.subspan(size_t(depth), size_t(n)), kind == "vr" ? n : 1);
        took = now_ms() - start;
      }
      if (i > 0) ms.push_back(took);
    }
    session_->truncate(depth);
    Result r = summarise(name, n, depth, ms);
    const StepCosts c = step_costs(engine_);
    if (kind == "tg") add_limits(r, c, peaks_, 1, depth + n / 2, 1, n);
    else add_limits(r, c, peaks_, n, depth, kind == "vr" ? n : 1, 1);
    return r;
  }

  BenchArgs& a_;
  Engine& engine_;
  const MachinePeaks& peaks_;
  std::unique_ptr<Session> session_;
  ProgressLine line_;
  std::vector<Token> tokens_;
};

nlohmann::ordered_json to_object(const Result& r, const Engine& e, const ModelSummary& m, const MachinePeaks& p) {
  const ThreadCount t = thread_count(e.options().threads);
  return {{"model_filename", m.path},
          {"model_type", m.name.empty() ? m.architecture : m.name},
          {"model_size", m.weight_bytes},
          {"model_n_params", m.parameters},
          {"backend", e.backend()},
          {"n_threads", t.threads},
          {"threads_why", t.why},
          {"type_kv", e.kv_type()},
          {"test", r.test},
          {"n_tokens", r.tokens},
          {"n_depth", r.depth},
          {"avg_ts", r.tokens_per_s},
          {"stddev_ts", r.deviation},
          {"avg_ms", r.mean_ms},
          {"stddev_ms", r.deviation_ms},
          {"samples_ms", r.samples_ms},
          {"percent_of_read", 100 * r.read_ms / r.mean_ms},
          {"percent_of_arithmetic", 100 * r.arithmetic_ms / r.mean_ms},
          {"peak_read_gb_per_s", p.read_gb_per_s},
          {"peak_int8_gop_per_s", p.int8_gop_per_s},
          {"peak_bf16_gflop_per_s", p.bf16_gflop_per_s}};
}

std::string percent(double least, double actual) {
  return least > 0 ? fmt::format("{:.0f}", 100 * least / actual) : "-";
}

void print(const std::vector<Result>& results, const BenchArgs& a, const Engine& e, const ModelSummary& m,
           const MachinePeaks& p) {
  if (a.output != "md") {
    auto all = nlohmann::ordered_json::array();
    for (const Result& r : results) all.push_back(to_object(r, e, m, p));
    if (a.output == "json") write_out(all.dump(2) + "\n");
    else
      for (const auto& j : all) write_out(j.dump() + "\n");
    return;
  }
  std::string out =
      fmt::format("| {:<28} | {:>10} | {:>9} | {:<28} | {:<6} | {:>14} | {:>18} | {:>10} | {:>6} | {:>6} |\n", "model",
                  "size", "params", "backend", "kv", "test", "t/s", "ms", "% read", "% ops");
  out += fmt::format(
      "| {:-<28} | {:-<9}: | {:-<8}: | {:-<28} | {:-<6} | {:-<13}: | {:-<17}: | {:-<9}: | {:-<5}: | {:-<5}: |\n", "",
      "", "", "", "", "", "", "", "", "");
  for (const Result& r : results)
    out += fmt::format(
        "| {:<28} | {:>6.1f} MiB | {:>7.2f} M | {:<28} | {:<6} | {:>14} | {:>9.2f} ± {:>6.2f} | {:>10.2f} | {:>6} | {:>6} |\n",
        (m.name.empty() ? m.architecture : m.name).substr(0, 28), double(m.weight_bytes) / 1048576,
        double(m.parameters) / 1e6, e.backend(), e.kv_type(), r.test, r.tokens_per_s, r.deviation, r.mean_ms,
        percent(r.read_ms, r.mean_ms), percent(r.arithmetic_ms, r.mean_ms));
  const ThreadCount t = thread_count(e.options().threads);
  out += fmt::format("\nthreads: {} ({})\n", t.threads, t.why);
  if (p.read_gb_per_s > 0)
    out += fmt::format(
        "limits of this machine with these threads: read {:.1f} GB/s, int8 {:.0f} Gop/s, 16-bit float {:.0f} GFLOP/s\n",
        p.read_gb_per_s, p.int8_gop_per_s, p.bf16_gflop_per_s);
  write_out(out);
}

int run(BenchArgs& a) {
  if (a.repetitions < 1) throw Error("-r: at least one repetition");
  int need = 0, most = 1;
  for (int d : a.depths)
    for (const auto* list : {&a.prompts, &a.generations, &a.rows})
      for (int n : *list) {
        if (n < 0 || d < 0) throw Error("token counts and depths are not negative");
        need = std::max(need, n + d);
      }
  for (int n : a.rows) most = std::max(most, n);
  if (most > 512) throw Error("--rows: at most 512 in one pass");
  a.engine.max_outputs = most;
  if (a.engine.chunk > 0 || most > 512) a.engine.chunk = std::max(a.engine.chunk, most);
  if (a.engine.context == 0) a.engine.context = std::max(need, 1);
  const MachinePeaks peaks = a.no_peaks ? MachinePeaks{} : measure_peaks(a.engine.threads);
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  const auto results = Bench(a, *engine, peaks).run();
  print(results, a, *engine, inspect(engine->options().model), peaks);
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto args = std::make_shared<BenchArgs>();
  {
    const HelpGroup group(app, "Measurements");
    app.add_option("-p,--n-prompt", args->prompts, "prompt lengths to measure (pp)")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("-n,--n-gen", args->generations, "numbers of generated tokens to measure (tg)")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("-d,--n-depth", args->depths, "tokens already in the cache")->delimiter(',')->capture_default_str();
    app.add_option("--rows", args->rows, "rows of one verification pass to measure (vr)")->delimiter(',');
    app.add_option("-r,--repetitions", args->repetitions, "repetitions of each test")->capture_default_str();
    app.add_option("-o,--output", args->output, "md, json or jsonl")
        ->check(CLI::IsMember({"md", "json", "jsonl"}))
        ->capture_default_str();
    app.add_flag("--no-peaks", args->no_peaks, "do not measure the machine's limits");
    app.add_flag("-q,--quiet", args->quiet, "no progress");
  }
  add_engine_flags(app, args->engine, args->chat_template_file);
  return [args] { return run(*args); };
}

}  // namespace sx::cli
