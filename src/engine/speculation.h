// What an engine speculates with: its configuration made into a drafter, an acceptance rule, trees for every slot and
// costs. With speculation off there is no drafter, and trees have one node.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "model/heads/head_file.h"
#include "model/model.h"
#include "model/taps.h"
#include "speculative/accept/accept.h"
#include "speculative/config/config.h"
#include "speculative/draft/drafter.h"
#include "speculative/budget/cost_model.h"
#include "speculative/budget/draft_planner.h"
#include "specextend/engine.h"
#include "text/tokenizer.h"

namespace sx {

class StartupCache;

SpecConfig configured(const SpecOptions& options);  // throws sx::Error on names and values that do not exist
SpecConfig resolve(const SpecOptions& options);     // and on combinations that do not fit

// Nodes of a tree within a context, node 0 included.
int tree_nodes(const SpecConfig& config);

struct SpeculationParts {
  Backend* backend = nullptr;
  Model* target = nullptr;
  KvStore* kv = nullptr;                  // of the target
  const TokenCodec* tokenizer = nullptr;  // of the target
  std::shared_ptr<const HeadFile> head;   // the draft model is a head on the target
  std::string name;                       // of the preset
  CostModel* cost_model = nullptr;        // of the target's passes, the same for all presets
  StartupCache* cache = nullptr;          // null: nothing is known of an earlier start
  std::string model;                      // the target's file
  bool sizes_only = false;                // nothing is read of the weights
  int slots = 1, context = 0, chunk = 512;
  std::function<void(double)> progress;  // of loading a draft model
};

// The head that the configuration names as its draft model, opened for `target`, or the MTP blocks of the target's
// file; null if it names none or a model of its own. Medusa heads put their own static tree in the place of preset
// medusa's, unless a setting has changed that.
std::shared_ptr<const HeadFile> open_head(SpecConfig& config, const std::shared_ptr<const ModelFile>& target);

// What drafting reads of the target's passes; `head`: as open_head() gave it, or null. `layers`: of the target.
TapSpec wanted_taps(const SpecConfig& config, const HeadFile* head, int layers);

class Speculation {
 public:
  Speculation(const SpecConfig& config, const SpeculationParts& parts);
  ~Speculation();

  const std::string& name() const { return name_; }
  const SpecConfig& config() const { return config_; }
  const std::string& draft_fingerprint() const {
    return draft_fingerprint_;
  }                                                    // equal: cells of draft models mean the same
  Drafter* drafter() const { return drafter_.get(); }  // null: speculation is off
  // What the drafter may be told of a pass of the target, which keeps taps for all presets: those it reads. Valid until
  // the next call.
  const StepOutputs& seen(const StepOutputs& pass) { return taps_.of(pass); }
  const TapView& taps() const { return taps_; }
  // What accepts trees; without drafts it is plain decoding, whatever the rule.
  Acceptance& acceptance(bool drafts) { return drafts ? *acceptance_ : *plain_; }
  const CostModel& cost_model() const { return cost_model_; }
  bool wants_costs() const { return wants_costs_; }  // measure_costs() of its trees
  bool has_costs() const { return planner_->has_costs(); }
  DraftPlanner& planner() const { return *planner_; }  // how much is drafted
  bool runs_model() const { return config_.drafter != DrafterKind::kNgram && config_.drafter != DrafterKind::kSuffix; }
  bool has_index() const { return !runs_model() || config_.drafter == DrafterKind::kFuse; }
  int nodes() const { return nodes_; }  // drafted nodes of a tree at most
  int depth() const { return depth_; }  // deepest level
  TokenTree* tree(SeqId seq) const { return trees_[size_t(seq)].get(); }
  DraftProbs* distributions(SeqId seq) const {
    return distributions_.empty() ? nullptr : distributions_[size_t(seq)].get();
  }

 private:
  void make_drafter(const SpeculationParts& parts);

  std::string name_, draft_fingerprint_;
  SpecConfig config_;
  TapView taps_;
  int nodes_ = 0, depth_ = 0;
  bool wants_costs_ = false;
  std::unique_ptr<Acceptance> acceptance_, plain_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<std::unique_ptr<TokenTree>> trees_;
  std::vector<std::unique_ptr<DraftProbs>> distributions_;
  const CostModel& cost_model_;
  std::unique_ptr<DraftPlanner> planner_;
};

}  // namespace sx
