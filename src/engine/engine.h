// The engine behind the public header: backend, model, tokenizer, chat template and the KV store its sessions share.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "kv/sequence_table.h"
#include "model/model.h"
#include "engine/engine_parts.h"
#include "specextend/engine.h"
#include "specextend/inspect.h"
#include "engine/session_origin.h"
#include "engine/measure_costs.h"
#include "engine/speculation.h"
#include "speculative/budget/idle_costs.h"
#include "engine/tokenizer.h"
#include "text/grammar/matcher.h"

namespace sx {

class Round;

class EngineImpl : public Engine {
 public:
  explicit EngineImpl(const EngineOptions& options) : EngineImpl(options, nullptr) {}
  // No backend: the one that the options ask for. sizes_only: nothing is read of the weights, which `backend` only
  // counts.
  EngineImpl(const EngineOptions& options, std::unique_ptr<Backend> backend, bool sizes_only = false);
  ~EngineImpl() override;

  std::unique_ptr<Session> start() override;
  std::vector<GenerateResult> generate(std::span<const Request> requests) override;
  std::unique_ptr<Batch> batch() override;
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::vector<std::string> warnings() const override;
  int context() const override { return options_.context; }
  int vocab() const override { return model_->config().vocab; }
  const EngineOptions& options() const override { return options_; }
  std::vector<std::pair<std::string, size_t>> device_memory() const override;
  std::string backend() const override { return backend_->name(); }
  std::string kv_type() const override { return kv_types_name(kv_->geometry().type); }

  // For sessions and batches.
  const EngineParts& parts() const { return parts_; }
  Backend& device() { return *backend_; }
  Model& model() { return *model_; }
  KvStore& kv() { return *kv_; }
  SequenceTable& sequences() { return *sequences_; }
  // What requests may speculate with; the first is the default.
  std::span<const std::unique_ptr<Speculation>> speculations() const { return speculations_; }
  Speculation& speculation(const std::string& preset = {});  // throws sx::Error naming those there are
  CostModel& cost_model() { return cost_model_; }            // of passes, for all of them
  Round& round() { return *round_; }
  GrammarCache& grammars();       // any thread may ask
  const SessionOrigin& origin();  // of its sessions
  const StartupCache& startup_cache() const { return *cache_; }
  int shared_prompt_rows() const { return shared_prompt_rows_; }  // prompt tokens of a step that decodes too
  const TokenCodec& codec() const { return tokenizer_->codec(); }
  StepCosts costs() const;          // step_costs()
  std::function<bool()> make_room;  // on_full_memory()
  bool measure_when_idle();

 private:
  void warm_up();
  void warm_up_drafts(Speculation& spec);
  std::vector<SpecConfig> configure();
  void load_model(const ModelOptions& options, bool sizes_only);
  void find_layers(std::span<SpecConfig> specs, std::span<const std::shared_ptr<const HeadFile>> heads);
  std::vector<int> retrieval_layers();
  void find_costs(const SpeculationParts& parts, int rows);
  void keep_costs();

  EngineOptions options_;
  std::unique_ptr<StartupCache> cache_;
  int shared_prompt_rows_ = 0;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<const ModelFile> file_;
  std::unique_ptr<TokenizerImpl> tokenizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<SequenceTable> sequences_;
  std::unique_ptr<WindowMemory> windows_;  // null: no layer has a window, or all cells are wanted
  std::optional<SessionOrigin> origin_;    // made when the first session is saved or restored
  CostModel cost_model_;
  std::string cost_key_;  // under which costs are kept; empty: they are not
  CostRange cost_range_{};
  IdleCosts idle_costs_;
  int cost_rows_ = 0;  // of the largest tree whose size the cost model decides; 0: there is none
  std::vector<std::unique_ptr<Speculation>> speculations_;
  EngineParts parts_;
  std::unique_ptr<Round> round_;
  std::once_flag grammars_made_;  // when the first request wants one
  std::unique_ptr<GrammarCache> grammars_;
};

}  // namespace sx
