#include "engine/engine.h"

#include <cstdlib>
#include <filesystem>

#include "backend/registry.h"
#include "base/error.h"
#include "engine/session.h"

namespace sx {
namespace {

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
  range("chunk", o.chunk, 1, 8192);
  range("max_sessions", o.max_sessions, 1, 4096);
  range("max_outputs", o.max_outputs, 1, 8192);
  if (o.model.empty()) o.model = default_model_path();
  return o;
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

EngineImpl::EngineImpl(const EngineOptions& options) : options_(checked(options)) {
  file_ = ModelFile::open(options_.model);
  const ModelConfig& config = file_->config();
  vocabulary_ = std::make_unique<VocabularyImpl>(file_, options_.chat_template);
  backend_ = make_cpu_backend({options_.threads, std::nullopt});
  if (options_.context == 0) options_.context = config.context;
  options_.max_outputs = std::min(options_.max_outputs, options_.chunk);
  ModelOptions model;
  model.max_rows = options_.chunk;
  model.max_outputs = options_.max_outputs;
  model.context = options_.context;
  model.progress = options_.on_load;
  model_ = Model::load(file_, *backend_, model);
  kv_ = backend_->make_kv(model_->kv_geometry(options_.max_sessions, options_.context, kv_dtype(options_.kv_type, *backend_)));
  book_ = std::make_unique<KvBook>(options_.max_sessions, options_.context);
}

std::unique_ptr<Session> EngineImpl::start() { return std::make_unique<SessionImpl>(*this); }

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
