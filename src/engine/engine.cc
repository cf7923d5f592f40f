#include "engine/engine.h"

#include <cstdlib>
#include <filesystem>

#include "backend/registry.h"
#include "base/error.h"
#include "engine/generation.h"
#include "engine/round.h"
#include "engine/session.h"
#include "spec/probe.h"
#include "engine/shipped_drafts.h"

namespace sx {
namespace {

constexpr size_t kDeviceSpare = size_t(256) << 20;     // for what is taken on first use
constexpr int kHostChunk = 512, kDeviceChunk = 2048;  // prompt tokens of a step
constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct.Q4_1.gguf";

DType kv_dtype(const std::string& name, const Backend& backend) {
  if (name.empty()) return backend.default_kv_type();
  const auto type = dtype_from_name(name);
  if (type && (*type == DType::kF32 || *type == DType::kF16 || *type == DType::kBF16 || *type == DType::kQ8_0)) return *type;
  fail("KV type '{}' is not known: use f32, f16, bf16 or q8_0", name);
}

EngineOptions checked(EngineOptions o) {
  const auto range = [](const char* what, int value, int least, int most) {
    if (value < least || value > most) fail("{} is {}, expected {} to {}", what, value, least, most);
  };
  range("context", o.context, 0, 1 << 24);
  range("threads", o.threads, 0, 1024);
  range("chunk", o.chunk, 0, 8192);
  range("max_sessions", o.max_sessions, 1, 4096);
  range("max_outputs", o.max_outputs, 1, 8192);
  const bool numbered = o.device.starts_with("cuda:") && o.device.size() > 5 && o.device.size() < 8 &&
                        o.device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (o.device != "auto" && o.device != "cpu" && o.device != "cuda" && !numbered)
    fail("device '{}' is not known: use auto, cpu, cuda or cuda:N", o.device);
  if (o.model.empty()) o.model = default_model_path();
  return o;
}

// The backend that the options name. A device's memory is taken in one piece: all of the engine is set up once without it, to
// know how much that is.
std::unique_ptr<Backend> open_device(const EngineOptions& o) {
  const bool chosen = o.device == "auto" ? why_no_cuda().empty() : o.device.starts_with("cuda");
  if (!chosen) return make_cpu_backend({o.threads, std::nullopt});
  CudaOptions cuda;
  if (const size_t colon = o.device.find(':'); colon != std::string::npos) cuda.device = std::stoi(o.device.substr(colon + 1));
  cuda.counts_only = true;
  auto counting = make_cuda_backend(cuda);
  const Backend& counter = *counting;
  EngineOptions quiet = o;
  quiet.on_load = nullptr;
  const EngineImpl sizes(quiet, std::move(counting));
  size_t bytes = 0, largest = 0;
  for (const auto& use : counter.memory()) bytes += use.bytes, largest = std::max(largest, use.bytes);
  cuda.counts_only = false;
  cuda.memory = bytes + kDeviceSpare + largest / 64;
  cuda.grows = true;
  return make_cuda_backend(cuda);
}

// Rows whose logits a round needs: a whole tree for each of a few sequences; with more sequences trees get smaller.
int round_outputs(const SpecConfig& spec, int sessions) {
  constexpr int kEnough = 256;
  const int tree = tree_nodes(spec);
  return std::max({tree, std::min(sessions * tree, kEnough), sessions > kEnough ? kEnough : sessions});
}

}  // namespace

std::string default_model_path() {
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path base = cache && *cache ? fs::path(cache) : fs::path(home && *home ? home : ".") / ".cache";
  const fs::path path = base / "specextend" / "models" / kDefaultModel;
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    fail("the default model is not at '{}': run ./demo once (it fetches it), or give a model with -m", path.string());
  return path.string();
}

std::unique_ptr<Engine> Engine::open(const EngineOptions& options) { return std::make_unique<EngineImpl>(options); }

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<Backend> backend)
    : options_(checked(options)), backend_(std::move(backend)) {
  if (!lacks_draft(options_.spec)) resolve(options_.spec);  // errors of the configuration come before those of files
  file_ = ModelFile::open(options_.model);
  take_shipped_draft(options_.spec, *file_);
  SpecConfig spec = resolve(options_.spec);
  const ModelConfig& config = file_->config();
  vocabulary_ = std::make_unique<VocabularyImpl>(file_, options_.chat_template);
  if (!backend_) backend_ = open_device(options_);
  if (options_.chunk == 0) options_.chunk = backend_->prefers_batches() ? kDeviceChunk : kHostChunk;
  if (spec.on() && spec.tree.depth > backend_->max_depth())
    fail("trees of {} levels: {} verifies at most {} (setting depth)", spec.tree.depth, backend_->name(), backend_->max_depth());
  if (options_.context == 0) options_.context = config.context;
  options_.max_outputs = std::min(options_.max_outputs, options_.chunk);
  const auto head = open_head(spec, config);  // before sizes: it may bring a tree
  ModelOptions model;
  model.max_outputs = std::max(options_.max_outputs, round_outputs(spec, options_.max_sessions));
  model.max_rows = std::max(options_.chunk, model.max_outputs);
  model.context = options_.context;
  model.progress = options_.on_load;
  if (head) model.taps = head->taps();
  if (spec.has_cache()) model.taps.query = DraftCache::target_layers(spec.cache, config.layers);
  model_ = Model::load(file_, *backend_, model);
  kv_ = backend_->make_kv(model_->kv_geometry(options_.max_sessions, options_.context, kv_dtype(options_.kv_type, *backend_)));
  if (spec.has_cache() && spec.cache.probes()) {
    const auto encode = [&](std::string_view text) { return vocabulary_->tokenizer().encode(text, false, false); };
    spec.cache.layers = probe_retrieval_layers(*backend_, *model_, *kv_, encode);
    model_->tap_queries(spec.cache.layers);
  }
  book_ = std::make_unique<KvBook>(options_.max_sessions, options_.context);
  SpeculationParts parts;
  parts.backend = backend_.get(), parts.target = model_.get(), parts.kv = kv_.get(), parts.tokenizer = &vocabulary_->tokenizer();
  parts.head = head;
  parts.slots = options_.max_sessions, parts.context = options_.context, parts.chunk = options_.chunk;
  parts.progress = options_.on_load;
  speculation_ = std::make_unique<Speculation>(spec, parts);
  round_ = std::make_unique<Round>(*this);
  if (backend_->prefers_batches()) warm_up();
}

// A prompt and a step of one row, so that the first request does not pay for kernels that are loaded and tried out when they are
// first used. Slot 0 is nobody's yet.
void EngineImpl::warm_up() {
  const Token token = 0;
  const int32_t place = 0;
  for (bool prompt : {true, false}) {
    const SeqRows seq{0, 1, 0, 0};
    model_->forward({std::span(&token, 1), std::span(&place, 1), std::span(&seq, 1), std::span(&place, 1), prompt}, *kv_);
  }
  backend_->wait();
}

EngineImpl::~EngineImpl() = default;

std::unique_ptr<Session> EngineImpl::start() { return std::make_unique<SessionImpl>(*this); }

std::vector<GenerateResult> EngineImpl::generate(std::span<const Request> requests) {
  std::vector<std::unique_ptr<Generation>> all;
  for (const Request& r : requests) {
    for (const auto& other : all)
      if (&other->session == r.session) fail("two requests of a batch name the same session");
    all.push_back(std::make_unique<Generation>(r, *this));
  }
  for (auto& g : all) g->prefill();
  std::vector<Generation*> running;
  for (;;) {
    running.clear();
    for (auto& g : all)
      if (!g->done()) running.push_back(g.get());
    if (running.empty()) break;
    for (std::span<Generation*> rest(running); !rest.empty();) {
      const auto some = rest.first(std::min(rest.size(), size_t(round_->max_batch())));
      round_->run(some);
      rest = rest.subspan(some.size());
    }
  }
  std::vector<GenerateResult> results;
  for (auto& g : all) results.push_back(g->finish());
  return results;
}

std::unique_ptr<Batch> EngineImpl::batch() { fail("not yet"); }

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
