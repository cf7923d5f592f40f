#include "cli/explain_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/compare.h"

namespace sx::cli {
namespace {

constexpr std::string_view kUnfinished = "\xEF\xBF\xBD";  // what a character that is not whole yet decodes to

// Returns the text a token adds, or the token's name where it adds none (control tokens, parts of a character).
std::string node_text(const Engine& engine, Token token) {
  const std::string added = engine.tokenizer().detokenize(std::span(&token, 1), false, true);
  return added.empty() || added.find(kUnfinished) != std::string::npos ? engine.tokenizer().token_text(token) : added;
}

// Returns what each token adds to the text; a character made of several tokens appears with the last of them.
std::vector<std::string> pieces_of(const Engine& engine, std::span<const Token> tokens, bool special) {
  std::vector<std::string> pieces;
  std::vector<Token> window;  // the tokens since the text was last whole
  size_t given = 0;           // bytes of its text
  for (size_t i = 0; i < tokens.size(); ++i) {
    window.push_back(tokens[i]);
    const std::string whole = engine.tokenizer().detokenize(window, special, true);
    const bool open = whole.ends_with(kUnfinished);
    // An unfinished character at the end can still change, nothing before it can.
    const size_t ready = whole.size() - (open && i + 1 < tokens.size() ? kUnfinished.size() : 0);
    pieces.push_back(ready > given ? whole.substr(given, ready - given) : "");
    given = std::max(given, ready);
    if (!open) window.clear(), given = 0;
  }
  return pieces;
}

void take_round(Explanation& e, const RoundInfo& info) {
  ExplainRound r;
  r.drafted = info.drafted, r.verified = info.verified, r.accepted = info.accepted;
  r.tokens.assign(info.tokens.begin(), info.tokens.end());
  r.parents.assign(info.parents.begin(), info.parents.end());
  r.path.assign(info.path.begin(), info.path.end());
  r.times = info.times;
  r.refreshes = info.refreshes;
  const int before = e.rounds.empty() ? 0 : e.rounds.back().refreshes;
  if (!info.cells.empty() && info.refreshes != before)
    e.refreshes.push_back({info.refreshes, int(e.rounds.size()), info.cells.back() + 1, ranges_of(info.cells)});
  e.rounds.push_back(std::move(r));
}

void take_settings(Explanation& e, const Engine& engine) {
  const EngineOptions& options = engine.options();
  e.version = SPECEXTEND_VERSION;
  e.model = options.model;
  e.draft_model = options.spec.draft_model;
  e.method = options.spec.json.empty() ? options.spec.preset : options.spec.json;
  e.backend = engine.backend();
  e.settings_json = spec_describe(options.spec);
  const auto settings = nlohmann::json::parse(e.settings_json, nullptr, false);
  const auto number = [&](const char* name) {
    const auto found = settings.find(name);
    if (found == settings.end()) return 0;
    if (found->is_number()) return found->get<int>();
    return found->is_string() ? std::atoi(found->get<std::string>().c_str()) : 0;
  };
  if (settings.is_object()) e.chunk = number("chunk"), e.sink = number("sink"), e.recent = number("recent");
}

void take_texts(Explanation& e, const Engine& engine, std::vector<Token> text, bool special) {
  e.prompt_tokens = int(text.size());
  e.pieces = pieces_of(engine, e.tokens, special);
  for (ExplainRound& r : e.rounds)
    for (const Token token : r.tokens) r.texts.push_back(node_text(engine, token));
  if (e.refreshes.empty() || e.chunk <= 0) return;
  text.insert(text.end(), e.tokens.begin(), e.tokens.end());
  for (size_t at = 0; at < text.size(); at += size_t(e.chunk))
    e.chunks.push_back(
        engine.tokenizer().detokenize(std::span(text).subspan(at, std::min(size_t(e.chunk), text.size() - at)), true));
}

// Measures a token without drafts: by a second run without speculation, or else by the rounds that had no draft.
void take_plain(Explanation& e, Session& session, std::span<const Token> prompt, const GenerateOptions& options,
                bool compare, const SpecRule& rule) {
  if (compare) {
    const bool promised = promises_bytes(rule, options.sampling);
    const GenerateResult plain = decode_plainly(session, prompt, options);
    if (plain.reason == FinishReason::kCancelled) return;
    e.compared = true;
    e.equal = plain.tokens == e.tokens;
    if (!e.equal) e.difference = promised ? "DIFFERENT TOKENS" : allowed_difference(rule);
    if (!plain.tokens.empty()) e.plain_ms = plain.timings.decode_ms / double(plain.tokens.size());
    return;
  }
  constexpr int kFewest = 4;  // rounds for a meaningful mean
  double ms = 0;
  int rounds = 0;
  for (const ExplainRound& r : e.rounds) {
    if (r.drafted > 0 || r.times.draft > 0) continue;
    const PhaseTimes& t = r.times;
    ms += t.verify + t.accept + t.commit + t.score + t.host;
    ++rounds;
  }
  if (rounds >= kFewest) e.plain_ms = ms / rounds;
}

}  // namespace

Explanation explain(Engine& engine, Session& session, std::span<const Token> prompt, GenerateOptions options,
                    bool compare, GenerateResult* result) {
  Explanation e;
  options.on_round = [&e, told = options.on_round](const RoundInfo& info) {
    take_round(e, info);
    if (told) told(info);
  };
  GenerateResult made = session.generate(prompt, options);
  e.text = made.text, e.tokens = made.tokens, e.reason = made.reason, e.timings = made.timings;
  take_settings(e, engine);
  drop_whole_refreshes(e);
  take_texts(e, engine, {prompt.begin(), prompt.end()}, options.show_special);
  place_rounds(e);
  if (made.reason != FinishReason::kCancelled)
    take_plain(e, session, prompt, options, compare, spec_rule(engine.options().spec));
  if (result) *result = std::move(made);
  return e;
}

}  // namespace sx::cli
