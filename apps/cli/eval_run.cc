#include "cli/eval_run.h"

#include <fmt/format.h>
#include <specextend/costs.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "cli/compare.h"
#include "cli/eval_page.h"

namespace sx::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// FNV-1a, to tell answers of two evaluations apart; within one they are compared themselves.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

// The most memory of this process since forget_peak(), in MB, where the system says it.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }
double peak_mb() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

// A case with its prompts as tokens.
struct Prepared {
  EvalCase with;
  std::string category{};
  std::vector<const EvalPrompt*> prompts{};
  std::vector<std::vector<Token>> tokens{};
  double weight = 0;  // roughly how long it takes
};

class Evaluation {
 public:
  Evaluation(Engine& engine, const std::vector<EvalPrompt>& data, const EvalOptions& options)
      : engine_(engine), data_(data), options_(options) {
    prepare();
    int most = 1;
    for (const int batch : options.grid.batches) most = std::max(most, batch);
    for (int i = 0; i < most; ++i) sessions_.push_back(engine.start());
  }
  EvalOutcome run();

 private:
  void prepare();
  void prepare(int length, int batch);
  OrderedJson head() const;
  std::string data_hash() const;
  std::vector<GenerateResult> answers(const Prepared& with, size_t method, EvalRun& run);
  EvalRun measure(const Prepared& with, size_t method, int repetition);
  const std::vector<GenerateResult>& reference(size_t with);
  void tell(int done, int jobs, const EvalCell& next, double weight_left);
  bool cancelled() const { return options_.cancelled && options_.cancelled(); }

  Engine& engine_;
  const std::vector<EvalPrompt>& data_;
  const EvalOptions& options_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<Prepared> cases_;
  std::map<size_t, std::vector<GenerateResult>> plain_;  // answers of plain decoding, by case
  double spent_ms_ = 0, spent_weight_ = 0;
};

void Evaluation::prepare() {
  for (const int length : options_.grid.lengths)
    for (const int batch : options_.grid.batches) prepare(length, batch);
  if (cases_.empty()) throw Error("no prompt is long enough for any --length: nothing would be run");
}

void Evaluation::prepare(int length, int batch) {
  std::vector<const EvalPrompt*> fit;
  std::vector<std::vector<Token>> tokens{};
  for (const EvalPrompt& p : data_) {
    std::vector<Token> t = eval_tokens(p, length, options_.prompts, engine_.tokenizer());
    if (t.empty()) continue;
    for (const int answer : options_.grid.answers)
      if (int64_t(t.size()) + answer > engine_.context())
        throw Error(
            fmt::format("{}: prompt '{}' has {} tokens and {} new ones are asked for, the context holds {}: "
                        "cut prompts with --length, or take a larger -c",
                        p.where, p.id, t.size(), answer, engine_.context()));
    fit.push_back(&p), tokens.push_back(std::move(t));
  }
  const size_t missing = data_.size() - fit.size();
  if (missing > 0 && options_.on_note && batch == options_.grid.batches.front())
    options_.on_note(fmt::format("{} of {} prompts have fewer than {} tokens and are left out at that length", missing,
                                 data_.size(), length));
  const size_t n = fit.size(), size = size_t(batch);
  for (size_t first = 0; first < n; first += size) {
    Prepared all{.with = {.prompt = fit[first]->id, .length = length, .batch = batch},
                 .category = fit[first]->category};
    if (batch > 1) all.with.prompt += fmt::format(" + {}", batch - 1);
    int prompt_tokens = 0;
    for (size_t i = first; i < first + size; ++i) {
      all.prompts.push_back(fit[i % n]), all.tokens.push_back(tokens[i % n]);
      prompt_tokens += int(tokens[i % n].size());
      if (fit[i % n]->category != all.category) all.category.clear();
    }
    for (const double temperature : options_.grid.temperatures)
      for (const int answer : options_.grid.answers) {
        all.with.temperature = temperature, all.with.answer = answer;
        all.weight = prompt_tokens + 8.0 * answer * batch;
        cases_.push_back(all);
      }
  }
}

std::string Evaluation::data_hash() const {
  Hash hash;
  const auto add = [&](const std::string& text) { hash.add(text.c_str(), text.size() + 1); };
  for (const EvalPrompt& p : data_) {
    add(p.id), add(p.prompt), add(p.instruction), add(p.document ? "text" : ""), add(p.reference.value_or(""));
    for (const Message& m : p.messages) add(m.role), add(m.content);
  }
  add(options_.prompts.chat ? "chat" : ""), add(options_.prompts.instruction);
  return hash.text();
}

OrderedJson Evaluation::head() const {
  const SamplingOptions& s = options_.generate.sampling;
  const std::string model = std::filesystem::path(engine_.options().model).filename().string();
  OrderedJson methods = OrderedJson::object();
  for (const std::string& method : options_.grid.methods) {
    const SpecOptions spec = parse_spec(method);
    methods[method] = OrderedJson::parse(spec_describe(spec));
  }
  return {{"eval", 1},
          {"fixed",
           {{"version", SPECEXTEND_VERSION},
            {"model", model},
            {"kv_type", engine_.kv_type()},
            {"backend", engine_.backend()},
            {"data", data_hash()},
            {"sampling",
             {{"top_k", s.top_k},
              {"top_p", s.top_p},
              {"min_p", s.min_p},
              {"repeat_penalty", s.repeat_penalty},
              {"seed", s.seed},
              {"ignore_eos", options_.generate.ignore_end}}}}},
          {"methods", methods},
          {"context", engine_.context()},
          {"startup_ms", options_.startup_ms}};
}

std::vector<GenerateResult> Evaluation::answers(const Prepared& with, size_t method, EvalRun& run) {
  const bool plain = method == 0;
  const size_t n = with.tokens.size();
  std::vector<double> first(n, 0);
  double start = 0;
  std::vector<GenerateOptions> wanted(n, options_.generate);
  std::vector<Request> requests;
  for (size_t i = 0; i < n; ++i) {
    GenerateOptions& o = wanted[i];
    o.sampling.temperature = float(with.with.temperature);
    o.max_tokens = with.with.answer;
    o.speculate = !plain;
    if (!plain) o.preset = options_.grid.methods[method];
    o.cancelled = options_.cancelled;
    o.on_token = [&first, &start, i](const TokenInfo&) {
      if (first[i] == 0) first[i] = now_ms() - start;
    };
    sessions_[i]->truncate(0);
    requests.push_back({sessions_[i].get(), with.tokens[i], &o});
  }
  forget_peak();
  take_predicted_time(engine_);
  start = now_ms();
  std::vector<GenerateResult> results = engine_.generate(requests);
  run.whole_ms = now_ms() - start;
  run.peak_mb = peak_mb();
  for (const double ms : first) run.first_token_ms += (ms > 0 ? ms : run.whole_ms) / double(n);
  return results;
}

EvalRun Evaluation::measure(const Prepared& with, size_t method, int repetition) {
  EvalRun run;
  run.cell = {options_.grid.methods[method], with.with};
  run.repetition = repetition, run.category = with.category;
  const std::vector<GenerateResult> results = answers(with, method, run);
  const PredictedTime told = take_predicted_time(engine_);
  if (cancelled()) return run;
  const size_t at = size_t(&with - cases_.data());
  if (method == 0 && !plain_.contains(at)) plain_[at] = results;
  const std::vector<GenerateResult>& plain = reference(at);
  if (cancelled()) return run;
  GenerateOptions sampled = options_.generate;
  sampled.sampling.temperature = float(with.with.temperature);
  run.promised = method == 0 || promises_bytes(spec_rule(parse_spec(run.cell.method)), sampled.sampling);
  Hash hash;
  double rouge = 0, exact = 0, share = 1.0 / double(results.size());
  int references = 0;
  int64_t most_rounds = 0;
  run.distinct = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const GenerateResult& r = results[i];
    run.equal &= r.tokens == plain[i].tokens && r.text == plain[i].text && r.reason == plain[i].reason;
    hash.add(r.tokens.data(), r.tokens.size() * sizeof(Token)), hash.add(r.text.data(), r.text.size());
    run.prompt_tokens += int(with.tokens[i].size()), run.tokens += int(r.tokens.size());
    run.prompt_ms += r.timings.prompt_ms * share, run.decode_ms += r.timings.decode_ms * share;
    run.draft_prompt_ms += r.timings.draft_prompt_ms * share;
    run.distinct += distinct_ngrams(r.tokens) * share;
    const SpecStats& s = r.spec;
    run.rounds += s.rounds, run.drafted_rounds += s.drafted_rounds;
    run.drafted += s.drafted, run.verified += s.verified, run.accepted += s.accepted;
    const auto sum = [](std::vector<int64_t>& into, const std::vector<int64_t>& from) {
      into.resize(std::max(into.size(), from.size()));
      for (size_t d = 0; d < from.size(); ++d) into[d] += from[d];
    };
    sum(run.tried_at_depth, s.tried_at_depth), sum(run.accepted_at_depth, s.accepted_at_depth);
    // The times of a round are those of all requests: the longest answer has seen them all, or nearly.
    if (s.rounds > most_rounds) most_rounds = s.rounds, run.times = s.times;
    if (const auto& wanted = with.prompts[i]->reference)
      rouge += rouge_l(r.text, *wanted), exact += exact_match(r.text, *wanted), ++references;
  }
  const auto drop_zeros = [](std::vector<int64_t>& list) {
    while (!list.empty() && list.back() == 0) list.pop_back();
  };
  drop_zeros(run.accepted_at_depth), drop_zeros(run.tried_at_depth);
  run.accepted_at_depth.resize(run.tried_at_depth.size());
  const PhaseTimes& t = run.times;
  if (most_rounds > 0)
    run.round_ms = (t.draft + t.verify + t.accept + t.commit + t.score + t.host) / double(most_rounds);
  if (told.measured_ms > 0) run.predicted_ms = told.predicted_ms / told.measured_ms * run.round_ms;
  if (references > 0) run.rouge = rouge / references, run.exact = exact / references;
  run.answer = hash.text();
  for (const auto& use : engine_.device_memory()) run.device_mb += double(use.second) / 1e6;
  return run;
}

// What plain decoding answers. An evaluation that goes on does not have it any more.
const std::vector<GenerateResult>& Evaluation::reference(size_t with) {
  const auto found = plain_.find(with);
  if (found != plain_.end()) return found->second;
  EvalRun ignored;
  return plain_[with] = answers(cases_[with], 0, ignored);
}

void Evaluation::tell(int done, int jobs, const EvalCell& next, double weight_left) {
  if (!options_.on_progress) return;
  const double left = spent_weight_ > 0 ? spent_ms_ / spent_weight_ * weight_left / 1e3 : 0;
  options_.on_progress({.done = done, .jobs = jobs, .seconds_left = left, .now = cell_name(next)});
}

EvalOutcome Evaluation::run() {
  EvalStore store(options_.out, head(), options_.restart);
  const std::vector<EvalJob> jobs = eval_jobs(options_.grid.methods.size(), cases_.size(), options_.grid.repetitions);
  const auto cell_of = [&](const EvalJob& job) {
    return EvalCell{options_.grid.methods[job.method], cases_[job.with].with};
  };
  EvalOutcome out;
  double left = 0;
  for (const EvalJob& job : jobs)
    if (!store.has(cell_of(job), job.repetition)) left += cases_[job.with].weight;
  int done = 0;
  for (const EvalJob& job : jobs) {
    const EvalCell cell = cell_of(job);
    if (store.has(cell, job.repetition)) {
      ++out.skipped, ++done;
      continue;
    }
    tell(done, int(jobs.size()), cell, left);
    const double start = now_ms();
    const EvalRun run = measure(cases_[job.with], job.method, job.repetition);
    if (cancelled()) {
      out.finished = false;
      break;
    }
    store.add(run);
    ++done;
    spent_ms_ += now_ms() - start, spent_weight_ += cases_[job.with].weight, left -= cases_[job.with].weight;
  }
  out.results = store.results();
  for (const EvalRun& run : out.results.runs) out.different += run.promised && !run.equal;
  if (!out.results.runs.empty()) {
    write_eval_file(options_.out + "/results.csv", eval_csv(out.results.runs));
    write_eval_file(options_.out + "/report.html", eval_page(out.results));
  }
  return out;
}

}  // namespace

EngineOptions eval_engine_options(EngineOptions engine, const EvalGrid& grid, const std::string& draft_model) {
  const std::vector<SpecPreset> presets = spec_presets();
  std::vector<SpecOptions> specs;
  for (const std::string& method : grid.methods) {
    if (method == kPlainMethod) continue;
    SpecOptions spec = parse_spec(method);
    spec.name = method;
    const bool needs = std::any_of(presets.begin(), presets.end(),
                                   [&](const SpecPreset& p) { return p.name == spec.preset && p.needs_draft; });
    if (needs && spec.draft_model.empty()) spec.draft_model = draft_model;
    specs.push_back(spec);
  }
  if (specs.empty()) specs.push_back({});
  engine.spec = specs.front();
  engine.more_specs.assign(specs.begin() + 1, specs.end());
  engine.max_sessions = *std::max_element(grid.batches.begin(), grid.batches.end());
  return engine;
}

EvalOutcome evaluate(Engine& engine, const std::vector<EvalPrompt>& data, const EvalOptions& options) {
  return Evaluation(engine, data, options).run();
}

}  // namespace sx::cli
