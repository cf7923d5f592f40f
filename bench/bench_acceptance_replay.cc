#include "bench_acceptance_replay.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include "backend/registry.h"
#include "base/clock.h"
#include "base/error.h"
#include "speculative/accept/penalties.h"
#include "speculative/cache/retrieval_layers.h"

namespace sx::bench {
namespace {

constexpr SeqId kSeq = 0;
constexpr int kPenaltyWindow = 64;  // tokens

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = text.find_first_not_of(" \t\r", at)) != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(" \t\r", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string with_drafts(std::string_view value, const std::string& drafts) {
  constexpr std::string_view kName = "{drafts}";
  std::string text(value);
  const size_t at = text.find(kName);
  if (at == std::string::npos) return text;
  if (drafts.empty()) fail("configuration: '{}' needs the folder of the drafts: give --drafts", text);
  return text.replace(at, kName.size(), drafts);
}

bool drafts_on_target(const SpecConfig& config) {
  return config.drafter == DrafterKind::kSelf ||
         (config.drafter == DrafterKind::kFuse && config.fuse_model == DrafterKind::kSelf);
}

double share_of(std::span<const int32_t> cells, CellRange range) {
  if (range.end <= range.begin) return 1;
  const auto begin = std::lower_bound(cells.begin(), cells.end(), range.begin);
  return double(std::lower_bound(begin, cells.end(), range.end) - begin) / double(range.end - range.begin);
}

}  // namespace

Configuration parse_configuration(std::string_view line, const std::string& drafts) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) fail("configuration '{}': expected 'name: preset=NAME setting=value ...'", line);
  const auto name = words_of(line.substr(0, colon));
  if (name.size() != 1) fail("configuration '{}': a name of one word is expected before the colon", line);
  SpecOptions options;
  std::map<std::string, std::string> given;
  for (std::string_view word : words_of(line.substr(colon + 1))) {
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) fail("configuration {}: '{}' is not setting=value", name[0], word);
    const std::string key(word.substr(0, equals));
    if (!given.emplace(key, with_drafts(word.substr(equals + 1), drafts)).second)
      fail("configuration {}: {} is given twice", name[0], key);
  }
  if (auto preset = given.extract("preset")) options.preset = preset.mapped();
  given["cost-model"] = "off";                     // times here are not those of rounds that verify
  for (const SettingInfo& info : setting_infos())  // what others depend on comes first
    if (auto setting = given.extract(info.name)) options.settings.emplace_back(setting.key(), setting.mapped());
  for (const auto& [key, value] : given) options.settings.emplace_back(key, value);  // refused by name
  try {
    Configuration result{std::string(name[0]), resolve(options)};
    if (!result.config.on()) fail("it does not speculate: name a preset");
    if (drafts_on_target(result.config))
      fail("the target drafts for itself on its own cache, which a replay must not write to");
    if (result.config.accept.kind != AcceptKind::kMatch) fail("only the rule 'match' can be replayed");
    return result;
  } catch (const Error& error) { fail("configuration {}: {}", name[0], error.what()); }
}

std::vector<Configuration> read_configurations(const std::string& path, const std::string& drafts) {
  std::ifstream file(path);
  if (!file) fail("configurations '{}': cannot be read", path);
  std::vector<Configuration> all;
  for (std::string line; std::getline(file, line);) {
    const auto words = words_of(line);
    if (words.empty() || words[0][0] == '#') continue;
    all.push_back(parse_configuration(line, drafts));
    for (size_t i = 0; i + 1 < all.size(); ++i)
      if (all[i].name == all.back().name) fail("configurations '{}': the name {} is there twice", path, all[i].name);
  }
  if (all.empty()) fail("configurations '{}': none in it", path);
  return all;
}

// A drafter, and what it sees of the target: the taps it asked for, in its order.
struct Replay::Player {
  Speculation speculation;
  std::vector<const float*> hidden_at, query_at;
  std::vector<std::vector<float>> rows;  // of each tap, [nodes, width]: a pass over a tree
  double prompt_ms = 0;

  Player(const SpecConfig& config, const SpeculationParts& parts)
      : speculation(config, parts),
        hidden_at(speculation.taps().hidden().size()),
        query_at(speculation.taps().query().size()),
        rows(hidden_at.size() + query_at.size()) {}
  Drafter& drafter() { return *speculation.drafter(); }

  // The pass over a tree: recorded rows from `first` on in the rows of the path's nodes.
  StepOutputs verified(const Replay& replay, std::span<const NodeId> path, int first) {
    size_t tap = 0;
    const auto fill = [&](const Tap& from, const float*& at) {
      std::vector<float>& to = rows[tap++];
      to.resize(size_t(speculation.nodes() + 1) * from.width);
      for (size_t k = 0; k < path.size(); ++k)
        std::memcpy(&to[size_t(path[k]) * from.width], &from.rows[(size_t(first) + k) * from.width],
                    from.width * sizeof(float));
      at = to.data();
    };
    const auto hidden = speculation.taps().hidden(), query = speculation.taps().query();
    for (size_t i = 0; i < hidden.size(); ++i) fill(replay.hidden_[hidden[i]], hidden_at[i]);
    for (size_t i = 0; i < query.size(); ++i) fill(replay.query_[query[i]], query_at[i]);
    return {nullptr, hidden_at, query_at};
  }
};

Replay::Replay(const ReplayOptions& options, std::vector<Configuration> configurations)
    : configurations_(std::move(configurations)), chunk_(options.chunk > 0 ? options.chunk : 512) {
  load(options);
  sampling_.repeat_penalty = options.repeat_penalty;
  for (size_t i = 0; i < configurations_.size(); ++i) {
    SpecConfig& config = configurations_[i].config;
    SpeculationParts parts;
    parts.backend = backend_.get(), parts.target = model_.get(), parts.kv = kv_.get(),
    parts.tokenizer = &tokenizer_->codec();
    parts.head = heads_[i], parts.slots = 1, parts.context = context_, parts.chunk = chunk_;
    auto player = std::make_unique<Player>(config, parts);
    player->drafter().open(kSeq);
    players_.push_back(std::move(player));
  }
}

Replay::~Replay() = default;

// Configurations that leave the layers to the engine get those it would find.
void Replay::probe() {
  const auto probes = [](const Configuration& c) { return c.config.has_cache() && c.config.cache.probes(); };
  if (std::none_of(configurations_.begin(), configurations_.end(), probes)) return;
  ModelOptions options;
  options.max_outputs = 1, options.max_rows = chunk_, options.context = context_;
  options.taps.query = likely_retrieval_layers(file_->config().layers);
  const auto model = Model::load(file_, *backend_, options);
  const auto kv = backend_->make_kv(model->kv_geometry(1, context_, backend_->default_kv_type()));
  const auto encode = [&](std::string_view text) { return tokenizer_->codec().encode(text, false, false); };
  const std::vector<int> layers = probe_retrieval_layers(*backend_, *model, *kv, encode);
  for (Configuration& c : configurations_)
    if (probes(c)) c.config.cache.layers = layers;
}

void Replay::load(const ReplayOptions& options) {
  file_ = ModelFile::open(options.model);
  tokenizer_ = std::make_unique<TokenizerImpl>(file_, "");
  backend_ = make_cpu_backend({options.threads, std::nullopt});
  const ModelConfig& config = file_->config();
  context_ = options.context > 0 ? options.context : config.context;
  probe();
  for (Configuration& c : configurations_) {
    heads_.push_back(open_head(c.config, file_));
    add_taps(taps_, wanted_taps(c.config, heads_.back().get(), config.layers));
  }
  ModelOptions model;
  model.max_outputs = 1, model.max_rows = chunk_, model.context = context_, model.taps = taps_;
  model_ = Model::load(file_, *backend_, model);
  kv_ = backend_->make_kv(model_->kv_geometry(1, context_, backend_->default_kv_type()));
  positions_.resize(size_t(chunk_));
  for (size_t i = 0; i < taps_.hidden.size(); ++i) hidden_.push_back({size_t(config.width), {}});
  for (size_t i = 0; i < taps_.query.size(); ++i)
    query_.push_back({size_t(config.heads) * size_t(config.head_dim), {}});
}

const Configuration& Replay::configuration(size_t i) const { return configurations_[i]; }

int Replay::most_nodes() const {
  int most = 0;
  for (const auto& player : players_) most = std::max(most, player->speculation.nodes());
  return most;
}

void Replay::extend(std::span<const Token> tokens, int outputs) {
  const int rows = int(tokens.size()), last = rows - 1;
  for (int i = 0; i < rows; ++i) positions_[size_t(i)] = length_ + i;
  const SeqRows seq{0, rows, kSeq, length_, nullptr, 0};
  step_ = &model_->forward(
      {tokens, std::span(positions_).first(size_t(rows)), std::span(&seq, 1), std::span(&last, size_t(outputs))}, *kv_);
  length_ += rows;
}

void Replay::record() {
  const auto append = [](Tap& tap, const float* row) { tap.rows.insert(tap.rows.end(), row, row + tap.width); };
  for (size_t i = 0; i < hidden_.size(); ++i) append(hidden_[i], step_->hidden[i]);
  for (size_t i = 0; i < query_.size(); ++i) append(query_[i], step_->query[i]);
}

std::span<const Token> Replay::answer(std::span<const Token> prompt, int count, const GoOn& go_on) {
  if (prompt.empty()) fail("replay: the prompt is empty");
  if (prompt.size() + size_t(count) > size_t(context_))
    fail("replay: a prompt of {} tokens and {} more do not fit in a context of {}", prompt.size(), count, context_);
  text_.assign(prompt.begin(), prompt.end());
  prompt_ = prompt.size();
  limit_ = count;
  length_ = 0;
  prefill_ms_ = 0;
  for (Tap& tap : hidden_) tap.rows.clear();
  for (Tap& tap : query_) tap.rows.clear();
  for (auto& player : players_) {
    player->drafter().close(kSeq);
    player->drafter().open(kSeq);
    player->prompt_ms = 0;
  }
  for (auto rest = prompt.first(prompt_ - 1); !rest.empty();) {  // the last token is pending
    const auto some = rest.first(std::min(size_t(chunk_), rest.size()));
    const double start = now_ms();
    const int first = length_;
    extend(some, 0);
    prefill_ms_ += now_ms() - start;
    for (auto& player : players_) {
      if (!player->drafter().reads_target()) continue;
      const double before = now_ms();
      player->drafter().prompt(
          {kSeq, first, int(some.size()), &player->speculation.seen(*step_), std::span(text_).first(size_t(length_))});
      player->prompt_ms += now_ms() - before;
    }
    rest = rest.subspan(some.size());
  }
  const double start = now_ms();
  const int vocab = model_->config().vocab;
  PenaltyWindow window(vocab, sampling_.repeat_penalty == 1 ? 0 : kPenaltyWindow);
  for (Token token : text_) window.push(token);
  while (count > 0) {
    extend(std::span(text_).last(1), 1);
    record();
    const ChooseRow row{step_->logits, text_.size(), &sampling_, {}, window.counts()};
    Token next = kNoToken;
    backend_->choose({&next, std::span(&row, 1), vocab});
    text_.push_back(next);
    window.push(next);
    if (tokenizer_->is_end(next)) break;
    if (go_on && !go_on(std::span<const Token>(text_).subspan(prompt_))) limit_ = int(text_.size() - prompt_);
    if (int(text_.size() - prompt_) == limit_) break;
  }
  const auto made = std::span<const Token>(text_).subspan(prompt_);
  step_ms_ = (now_ms() - start) / double(std::max<size_t>(1, made.size()));
  return made;
}

Replayed Replay::play(size_t i, CellRange evidence, int count) {
  Player& player = *players_[i];
  Drafter& drafter = player.drafter();
  const Speculation& spec = player.speculation;
  const int made = int(text_.size() - prompt_), end = count < 0 ? made : std::min(count, made);
  Replayed result;
  const double start = now_ms();
  while (!drafter.prefill(kSeq, std::span(text_).first(prompt_ - 1))) {}
  result.prefill_ms = player.prompt_ms + now_ms() - start;
  drafter.take_times();
  PenaltyWindow window(model_->config().vocab, sampling_.repeat_penalty == 1 ? 0 : kPenaltyWindow);
  size_t pushed = 0;
  TokenTree& tree = *spec.tree(kSeq);
  std::vector<NodeId> path;
  for (int known = 0; known < end;) {
    const double begin = now_ms();
    const int history = int(prompt_) + known - 1, room = context_ - history - 1;
    const auto text = std::span<const Token>(text_).first(size_t(history) + 1);
    while (pushed < text.size()) window.push(text[pushed++]);
    ReplayRound round;
    round.known = known;
    tree.reset(text.back());
    DraftTask task;
    task.seq = kSeq, task.text = text, task.sampling = &sampling_, task.tree = &tree;
    task.counts = window.counts();
    task.limits.nodes = std::min(spec.nodes(), room),
    task.limits.depth = std::min({spec.depth(), limit_ - known - 1, room});
    const bool drafting = task.limits.depth > 0 && task.limits.nodes > 0;
    if (drafting) drafter.draft({&task, 1});
    const auto cells = drafter.state().working_cells(kSeq, round.refreshes);
    if (!cells.empty()) round.evidence = share_of(cells, evidence);
    path.assign(1, 0);
    int next = history + 1;  // place in the text of the token after the path
    for (NodeId c; next < int(text_.size()) && (c = tree.child(path.back(), text_[size_t(next)])) != kNoNode; ++next)
      path.push_back(c);
    round.drafted = tree.drafted(), round.accepted = int(path.size()) - 1;
    // An accepted token that ends the text has not been run, and nothing comes after it.
    if (next < int(text_.size()) && (drafting || drafter.reads_target())) {
      const StepOutputs seen = player.verified(*this, path, known);
      const Outcome outcome{kSeq,  &tree, path,    text_[size_t(next)],
                            &seen, 0,     history, std::span(text_).first(size_t(next) + 1)};
      drafter.observe({&outcome, 1});
    }
    const DraftTimes times = drafter.take_times();
    round.draft_ms = times.forward, round.cache_ms = times.cache;
    round.other_ms = now_ms() - begin - round.draft_ms - round.cache_ms;
    round.tree.assign(tree.tokens().begin(), tree.tokens().end());
    known += round.accepted + 1;
    result.rounds.push_back(std::move(round));
  }
  return result;
}

}  // namespace sx::bench
