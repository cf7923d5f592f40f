// Acceptance and costs of drafts by configuration (drafter, tree, cache policy), by replay: the target writes its
// greedy text once per prompt, and every configuration drafts along it.
//   bench_acceptance CONFIGURATIONS PROMPTS.jsonl --length 4096 --drafts FOLDER [--json FILE]
//   bench_acceptance CONFIGURATIONS CASES.jsonl --far --drafts FOLDER        cases of make_far_context.py
// CONFIGURATIONS: lines "name: preset=sd draft-model={drafts}/small cache=retrieval budget=1024". Differences in the
// table are from the first of them, on the same text; standard errors are over prompts (delta method). Rounds that
// begin before the text repeats itself (a run of 8 tokens seen before) are also counted apart. Of the times only those
// of the draft side mean something: nothing is verified. With --far only cases count whose answer the target itself
// gets right, and only the tokens that are; "drafted" is the share of them that came out of drafts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "bench_acceptance_replay.h"

namespace sx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLoopRun = 8;
constexpr int kBehindAnswer = 16;  // tokens generated behind it, so that its last rounds draft as others do
constexpr double kCovered = 0.8;   // of the evidence

struct Args {
  std::string model, configurations, prompts, drafts, json;
  int length = 0, rows = 0, skip = 0, generate = 256, threads = 0;
  int right = 24;  // tokens of an answer that must be right, or all of a shorter one
  float repeat_penalty = 1;
  bool chat = false, far = false;
};

struct Prompt {
  std::vector<Token> tokens;
  // Of a case of far context:
  std::string kind;
  std::vector<Token> answer;
  CellRange evidence;
};

// What one configuration did with one prompt.
struct Tally {
  double tokens = 0, rounds = 0, early_tokens = 0, early_rounds = 0, drafted = 0, accepted = 0;
  double draft_ms = 0, cache_ms = 0, other_ms = 0, prefill_ms = 0, refreshes = 0;
  double evidence_first = 1, covered_first = 1, evidence_mean = 1, covered_mean = 1;
  std::vector<int> accepted_by_round;
};

struct Answered {
  std::string kind;
  int prompt = 0, tokens = 0, loop = 0;  // tokens verified, of them before the text repeats itself
  int distinct = 0;                      // runs of 8 tokens among all of the answer's
  int length = 0;                        // of the prompt
  CellRange evidence;
};

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("'{}' cannot be read", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string_view trimmed_end(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n\f\v");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

std::string_view trimmed_begin(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n\f\v");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

// Prompts of exactly `length` tokens: the document is cut, the template's end kept (training/corpus.py prompts).
class Cutter {
 public:
  Cutter(const TokenizerImpl& tokenizer, const Args& args) : tokenizer_(tokenizer), args_(args) {
    constexpr std::string_view kTail = "\n\n### Summary:\n\n", kMark = "\x01";
    if (!args.chat) {
      tail_ = tokenizer.tokenize(kTail, false, true);
      return;
    }
    const Json messages = {{{"role", "user"}, {"content", kMark}}};
    const std::string frame = tokenizer.apply_template_json(messages.dump(), true, {}, {});
    const size_t at = frame.find(kMark);
    if (at == std::string::npos) fail("the chat template does not show the message as it is");
    head_ = tokenizer.tokenize(frame.substr(0, at), false, true);
    tail_ = tokenizer.tokenize(std::string(trimmed_end(kTail)) + frame.substr(at + kMark.size()), false, true);
  }

  // Empty: the document is too short.
  std::vector<Token> cut(std::string_view text) const {
    constexpr std::string_view kEnd = "### Summary:";
    text = trimmed_end(text);
    if (text.ends_with(kEnd)) text.remove_suffix(kEnd.size());
    text = trimmed_end(text);
    auto body = tokenizer_.tokenize(args_.chat ? trimmed_begin(text) : text, false, true);
    if (args_.length > 0) {
      const int room = args_.length - int(head_.size() + tail_.size());
      if (room <= 0) fail("--length {}: not even the template fits", args_.length);
      if (int(body.size()) < room) return {};
      body.resize(size_t(room));
    }
    std::vector<Token> all = head_;
    all.insert(all.end(), body.begin(), body.end());
    all.insert(all.end(), tail_.begin(), tail_.end());
    return all;
  }

 private:
  const TokenizerImpl& tokenizer_;
  const Args& args_;
  std::vector<Token> head_, tail_;
};

// Byte offset of a character.
size_t byte_of(std::string_view text, int64_t character) {
  size_t at = 0;
  for (; at < text.size(); ++at)
    if ((uint8_t(text[at]) & 0xC0) != 0x80 && character-- == 0) break;
  return at;
}

Prompt read_case(const TokenizerImpl& tokenizer, const Json& line) {
  Prompt p;
  const std::string text = line.at("text"), answer = line.at("answer");
  p.kind = line.at("kind");
  p.tokens = tokenizer.tokenize(text, false, true);
  const auto whole = tokenizer.tokenize(text + answer, false, true);
  if (whole.size() <= p.tokens.size() || !std::equal(p.tokens.begin(), p.tokens.end(), whole.begin()))
    fail("case of kind {}: a token of text and answer crosses their border: let the answer begin with a space", p.kind);
  p.answer.assign(whole.begin() + ptrdiff_t(p.tokens.size()), whole.end());
  const size_t begin = byte_of(text, line.at("evidence_begin")), end = byte_of(text, line.at("evidence_end"));
  size_t at = 0;
  for (int i = 0; i < int(p.tokens.size()) && at < end; ++i) {
    if (at <= begin) p.evidence.begin = i;
    at += tokenizer.codec().bytes_of(p.tokens[size_t(i)]).size();
    p.evidence.end = i + 1;
  }
  if (at < end || begin >= end) fail("case of kind {}: the evidence is not within the text", p.kind);
  std::string covered;  // a tokenizer that changes the text would put it elsewhere
  for (int i = p.evidence.begin; i < p.evidence.end; ++i) covered += tokenizer.codec().bytes_of(p.tokens[size_t(i)]);
  if (covered.find(text.substr(begin, end - begin)) == std::string::npos)
    fail("case of kind {}: the evidence is not found in the tokens of the text", p.kind);
  return p;
}

std::vector<Prompt> read_prompts(const TokenizerImpl& tokenizer, const Args& args) {
  std::vector<Prompt> prompts;
  const Cutter cutter(tokenizer, args);
  const std::string all = read_all(args.prompts);
  int skip = args.skip, number = 0;
  for (std::string_view rest = all; !rest.empty() && int(prompts.size()) < args.rows;) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest = rest.substr(std::min(end + 1, rest.size()));
    ++number;
    if (trimmed_end(line).empty()) continue;
    Prompt p;
    try {
      const Json json = Json::parse(line);
      if (args.far) p = read_case(tokenizer, json);
      else p.tokens = cutter.cut(json.at("text").get<std::string>());
    } catch (const nlohmann::json::exception& error) { fail("'{}' line {}: {}", args.prompts, number, error.what()); }
    if (p.tokens.empty() || skip-- > 0) continue;
    prompts.push_back(std::move(p));
  }
  if (prompts.empty()) fail("'{}': no prompts of {} tokens in it", args.prompts, args.length);
  return prompts;
}

// Different runs of 8 tokens.
int distinct_of(std::span<const Token> text) {
  std::set<std::vector<Token>> seen;
  for (size_t i = kLoopRun; i <= text.size(); ++i)
    seen.emplace(text.begin() + ptrdiff_t(i - kLoopRun), text.begin() + ptrdiff_t(i));
  return int(seen.size());
}

// Tokens before the text repeats itself (training/evaluate.py).
int loop_of(std::span<const Token> text) {
  std::set<std::vector<Token>> seen;
  for (size_t i = kLoopRun; i <= text.size(); ++i)
    if (!seen.emplace(text.begin() + ptrdiff_t(i - kLoopRun), text.begin() + ptrdiff_t(i)).second) return int(i) - 1;
  return int(text.size());
}

Tally tally_of(const Replayed& replayed, const Answered& answered) {
  Tally t;
  t.prefill_ms = replayed.prefill_ms;
  double evidence = 0, covered = 0;
  for (const ReplayRound& r : replayed.rounds) {
    const int left = answered.tokens - r.known, made = std::min(r.accepted + 1, left);
    t.tokens += made, t.rounds += 1, t.drafted += r.drafted, t.accepted += std::min(r.accepted, left);
    if (r.known < answered.loop) t.early_tokens += made, t.early_rounds += 1;
    t.draft_ms += r.draft_ms, t.cache_ms += r.cache_ms, t.other_ms += r.other_ms;
    t.refreshes = r.refreshes;
    evidence += r.evidence, covered += r.evidence >= kCovered;
    t.accepted_by_round.push_back(r.accepted);
  }
  if (replayed.rounds.empty()) return t;
  t.evidence_first = replayed.rounds[0].evidence, t.covered_first = t.evidence_first >= kCovered;
  t.evidence_mean = evidence / t.rounds, t.covered_mean = covered / t.rounds;
  return t;
}

class Report {
 public:
  Report(const Args& args, const Replay& replay) : args_(args), replay_(replay), tallies_(replay.size()) {}

  void add(const Answered& answered) { answers_.push_back(answered); }
  void add(size_t configuration, Tally tally) { tallies_[configuration].push_back(std::move(tally)); }
  void wrong(const std::string& kind) { ++wrong_[kind]; }
  size_t answers() const { return answers_.size(); }

  void print() const {
    size_t wide = 13;
    for (size_t i = 0; i < replay_.size(); ++i) wide = std::max(wide, replay_.configuration(i).name.size());
    if (!args_.far) return print_acceptance(wide);
    std::set<std::string> kinds{""};
    for (const auto& [kind, count] : wrong_) kinds.insert(kind);
    for (const Answered& a : answers_) kinds.insert(a.kind);
    for (const std::string& kind : kinds) print_far(wide, kind);
  }

  void write() const {
    if (args_.json.empty()) return;
    Json out;
    out["model"] = args_.model, out["prompts"] = args_.prompts, out["length"] = args_.length, out["chat"] = args_.chat;
    out["repeat_penalty"] = args_.repeat_penalty;
    out["generate"] = args_.generate, out["far"] = args_.far, out["backend"] = replay_.backend();
    for (const Answered& a : answers_) {
      Json one{{"prompt", a.prompt}, {"tokens", a.tokens}, {"loop", a.loop}, {"distinct_runs", a.distinct}};
      one["length"] = a.length;
      if (args_.far) one["kind"] = a.kind, one["evidence"] = {a.evidence.begin, a.evidence.end};
      out["answers"].push_back(one);
    }
    if (args_.far) out["wrong"] = wrong_;
    for (size_t i = 0; i < replay_.size(); ++i) out["configurations"].push_back(configuration_json(i));
    std::ofstream file(args_.json);
    file << out.dump(1) << "\n";
    if (!file.flush()) fail("'{}' cannot be written", args_.json);
  }

 private:
  using Part = double Tally::*;
  bool counts(size_t answer, const std::string& kind) const { return kind.empty() || answers_[answer].kind == kind; }

  double sum(size_t i, Part part, const std::string& kind = "") const {
    double total = 0;
    for (size_t k = 0; k < tallies_[i].size(); ++k)
      if (counts(k, kind)) total += tallies_[i][k].*part;
    return total;
  }
  double ratio(size_t i, Part above, Part below, const std::string& kind = "") const {
    const double count = sum(i, below, kind);
    return count > 0 ? sum(i, above, kind) / count : 0;
  }
  // Standard error of ratio(i), or of its difference from ratio(other), over prompts, by the delta method.
  double error(size_t i, size_t other, Part above, Part below, const std::string& kind = "") const {
    const auto spread = [&](size_t which, size_t k) {
      const Tally& t = tallies_[which][k];
      const double count = sum(which, below, kind);
      return count > 0 ? (t.*above - ratio(which, above, below, kind) * (t.*below)) / count : 0;
    };
    double squares = 0;
    for (size_t k = 0; k < tallies_[i].size(); ++k)
      if (counts(k, kind)) squares += std::pow(spread(i, k) - (other == i ? 0 : spread(other, k)), 2);
    return std::sqrt(squares);
  }

  void print_acceptance(size_t wide) const {
    double tokens = 0, early = 0, runs = 0, distinct = 0;
    for (const Answered& a : answers_) {
      tokens += a.tokens, early += a.loop;
      runs += std::max(0, a.tokens - kLoopRun + 1), distinct += a.distinct;
    }
    fmt::print(
        "{} prompts, {:.0f} tokens, {:.0f}% of them after the text began to repeat itself, {:.0f}% of the runs of {} "
        "tokens distinct; {}\n\n",
        answers_.size(), tokens, tokens > 0 ? 100 * (1 - early / tokens) : 0, runs > 0 ? 100 * distinct / runs : 100,
        kLoopRun, replay_.backend());
    fmt::print(
        "{:{}}  tokens/round   from first row    before loops  nodes  |  per round, ms: draft  cache  other  |  "
        "prefill, ms  refreshes/100\n",
        "configuration", wide);
    for (size_t i = 0; i < replay_.size(); ++i) {
      const double all = ratio(i, &Tally::tokens, &Tally::rounds);
      const auto each = [&](Part part) { return ratio(i, part, &Tally::rounds); };
      fmt::print(
          "{:{}}  {:5.3f} ±{:5.3f}  {:+6.3f} ±{:6.4f}  {:5.3f} ±{:5.3f}  {:5.1f}  |  {:20.2f}  {:5.2f}  {:5.2f}  |  "
          "{:11.0f}  {:13.2f}\n",
          replay_.configuration(i).name, wide, all, error(i, i, &Tally::tokens, &Tally::rounds),
          all - ratio(0, &Tally::tokens, &Tally::rounds), i == 0 ? 0 : error(i, 0, &Tally::tokens, &Tally::rounds),
          ratio(i, &Tally::early_tokens, &Tally::early_rounds), error(i, i, &Tally::early_tokens, &Tally::early_rounds),
          each(&Tally::drafted), each(&Tally::draft_ms), each(&Tally::cache_ms), each(&Tally::other_ms),
          sum(i, &Tally::prefill_ms) / double(answers_.size()), 100 * ratio(i, &Tally::refreshes, &Tally::tokens));
    }
    std::fflush(stdout);
  }

  void print_far(size_t wide, const std::string& kind) const {
    int right = 0, missed = 0;
    double tokens = 0;
    for (const Answered& a : answers_)
      if (kind.empty() || a.kind == kind) ++right, tokens += a.tokens;
    for (const auto& [name, count] : wrong_)
      if (kind.empty() || name == kind) missed += count;
    fmt::print("{}: the target itself gets {} of {} cases right; {:.0f} tokens of answers\n",
               kind.empty() ? "all kinds" : kind, right, right + missed, tokens);
    if (right == 0) return;
    fmt::print(
        "{:{}}  evidence in cache, % of cases: first draft  mean  |  tokens/round   drafted, %  |  draft, ms  "
        "cache, ms\n",
        "configuration", wide);
    for (size_t i = 0; i < replay_.size(); ++i)
      fmt::print("{:{}}  {:42.1f}  {:4.0f}  |  {:5.3f} ±{:5.3f}  {:10.1f}  |  {:9.2f}  {:9.2f}\n",
                 replay_.configuration(i).name, wide, 100 * sum(i, &Tally::covered_first, kind) / right,
                 100 * sum(i, &Tally::covered_mean, kind) / right, ratio(i, &Tally::tokens, &Tally::rounds, kind),
                 error(i, i, &Tally::tokens, &Tally::rounds, kind),
                 100 * ratio(i, &Tally::accepted, &Tally::tokens, kind),
                 ratio(i, &Tally::draft_ms, &Tally::rounds, kind), ratio(i, &Tally::cache_ms, &Tally::rounds, kind));
    fmt::print("\n");
    std::fflush(stdout);
  }

  Json configuration_json(size_t i) const {
    const Configuration& c = replay_.configuration(i);
    const auto ratio_json = [&](Part above, Part below) {
      return Json{{"value", ratio(i, above, below)}, {"error", error(i, i, above, below)}};
    };
    Json out{{"name", c.name}, {"preset", c.config.preset}};
    for (const SettingInfo& info : setting_infos()) out["settings"][info.name] = setting_value(c.config, info.name);
    out["tokens_per_round"] = ratio_json(&Tally::tokens, &Tally::rounds);
    out["from_first"] = {{"value", ratio(i, &Tally::tokens, &Tally::rounds) - ratio(0, &Tally::tokens, &Tally::rounds)},
                         {"error", i == 0 ? 0 : error(i, 0, &Tally::tokens, &Tally::rounds)}};
    out["before_loop"] = ratio_json(&Tally::early_tokens, &Tally::early_rounds);
    for (const Tally& t : tallies_[i]) {
      Json one{{"tokens", t.tokens},
               {"rounds", t.rounds},
               {"early_tokens", t.early_tokens},
               {"early_rounds", t.early_rounds},
               {"drafted", t.drafted},
               {"accepted", t.accepted},
               {"draft_ms", t.draft_ms},
               {"cache_ms", t.cache_ms},
               {"other_ms", t.other_ms},
               {"prefill_ms", t.prefill_ms},
               {"refreshes", t.refreshes},
               {"accepted_by_round", t.accepted_by_round}};
      if (args_.far)
        one["evidence"] = {{"first", t.evidence_first},
                           {"mean", t.evidence_mean},
                           {"covered_first", t.covered_first},
                           {"covered_mean", t.covered_mean}};
      out["prompts"].push_back(std::move(one));
    }
    return out;
  }

  const Args& args_;
  const Replay& replay_;
  std::vector<Answered> answers_;
  std::map<std::string, int> wrong_;
  std::vector<std::vector<Tally>> tallies_;  // [configuration][answer]
};

// Leading tokens of a text that are the wanted ones.
int agreeing(std::span<const Token> text, std::span<const Token> wanted) {
  const auto both = text.first(std::min(text.size(), wanted.size()));
  return int(std::mismatch(both.begin(), both.end(), wanted.begin()).first - both.begin());
}

void run(Args args) {
  auto configurations = read_configurations(args.configurations, args.drafts);
  ReplayOptions options;
  if (args.model.empty()) args.model = default_model_path();
  options.model = args.model, options.threads = args.threads, options.repeat_penalty = args.repeat_penalty;
  const auto prompts = read_prompts(TokenizerImpl(ModelFile::open(options.model), ""), args);
  int answer = args.generate;
  for (const Prompt& p : prompts) {
    options.context = std::max(options.context, int(p.tokens.size()));
    if (args.far) answer = std::max(answer, int(p.answer.size()) + kBehindAnswer);
  }
  options.context += answer + kMaxTreeNodes;
  Replay replay(options, std::move(configurations));
  Report report(args, replay);
  for (size_t k = 0; k < prompts.size(); ++k) {
    const Prompt& p = prompts[k];
    const int wanted = int(p.answer.size()), enough = std::min(wanted, args.right);
    // An answer that went wrong is not continued, except for the tokens behind the part that counts.
    const auto go_on = [&](std::span<const Token> text) {
      const int right = agreeing(text, p.answer);
      return int(text.size()) == right || (right >= enough && int(text.size()) < right + kBehindAnswer);
    };
    const auto text =
        replay.answer(p.tokens, args.far ? wanted + kBehindAnswer : args.generate, args.far ? go_on : Replay::GoOn());
    Answered answered;
    answered.kind = p.kind, answered.prompt = int(k) + args.skip, answered.tokens = int(text.size());
    answered.loop = loop_of(text), answered.distinct = distinct_of(text);
    answered.length = int(p.tokens.size()), answered.evidence = p.evidence;
    fmt::print(stderr, "prompt {} of {}: {} tokens in {:.1f} s, {} more at {:.1f} ms{}", k + 1, prompts.size(),
               p.tokens.size(), replay.target_prefill_ms() / 1000, text.size(), replay.target_step_ms(),
               p.kind.empty() ? "" : ", ");
    if (args.far) {
      answered.tokens = agreeing(text, p.answer), answered.loop = answered.tokens;
      const bool right = answered.tokens >= enough;
      fmt::print(stderr, "{}: {} of {} tokens right{}", p.kind, answered.tokens, wanted, right ? "" : ", left out\n");
      if (!right) {
        report.wrong(p.kind);
        continue;
      }
    }
    report.add(answered);
    for (size_t i = 0; i < replay.size(); ++i) {
      const Tally tally = tally_of(replay.play(i, p.evidence, answered.tokens), answered);
      fmt::print(stderr, "{} {} {:.2f}", i == 0 ? ";" : ",", replay.configuration(i).name,
                 tally.tokens / std::max(1.0, tally.rounds));
      report.add(i, tally);
    }
    fmt::print(stderr, "\n");
    report.write();
  }
  report.write();
  report.print();
}

}  // namespace
}  // namespace sx::bench

int main(int argc, char** argv) {
  sx::bench::Args args;
  CLI::App app("Acceptance of drafts by configuration, by replay of the target's own text");
  app.add_option("configurations", args.configurations, "lines like name: preset=... setting=value")->required();
  app.add_option("prompts", args.prompts, "JSON lines with a field text")->required();
  app.add_option("-m,--model", args.model, "the target (the default model)");
  app.add_option("--drafts", args.drafts, "what {drafts} stands for in configurations");
  app.add_option("--length", args.length, "cut prompts to exactly so many tokens, leave out shorter ones; 0: no");
  app.add_option("--rows", args.rows, "prompts (20; of --far all)");
  app.add_option("--skip", args.skip, "prompts left out before them");
  app.add_option("--generate", args.generate, "tokens per prompt")->capture_default_str();
  app.add_option("--threads", args.threads, "0: one per core");
  app.add_option("--repeat-penalty", args.repeat_penalty,
                 "of the target and of the drafts, over the last 64 tokens; 1: none")
      ->check(CLI::PositiveNumber);
  app.add_flag("--chat", args.chat, "prompts in the chat template");
  app.add_flag("--far", args.far, "cases with an answer and its evidence far back");
  app.add_option("--right", args.right, "--far: tokens the target must get right")->capture_default_str();
  app.add_option("--json", args.json, "all numbers, also after every prompt");
  CLI11_PARSE(app, argc, argv);
  if (args.rows <= 0) args.rows = args.far ? INT_MAX : 20;
  try {
    sx::bench::run(args);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_acceptance: {}\n", error.what());
    return 1;
  }
  return 0;
}
