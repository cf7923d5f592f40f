// A model of any family: weights in a backend's layout and the forward pass over them, which follows the table of parts
// of each layer (LayerParts).
// Weights know nothing of sequences: the cache is an argument, and so is everything else a step needs.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/ranks/ranks.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "model/feed_forward.h"
#include "model/requantise.h"
#include "model/rope.h"

namespace sx {

// What to keep from inside a pass; declared at set-up.
struct TapSpec {
  std::vector<int> hidden;  // residual stream at the input of these layers; `layers` means after the last one
  std::vector<int> query;   // rotated queries of these layers
};

class Model;

struct ModelOptions {
  int max_rows = 512;    // rows of one step
  int max_outputs = 64;  // rows of one step whose logits are wanted
  int context = 0;       // longest sequence; 0: the trained context
  TapSpec taps;
  int most_queries = 0;  // layers that tap_queries() may ask for, where these are more than in `taps`
  // A copy that drafts for a model of the same file: its matrices become smaller (Requantiser), the embedding table is
  // that of `original`.
  Requantiser* requantise = nullptr;  // needed while it is loaded
  const Model* original = nullptr;
  bool spread = false;        // over the backend's ranks, if it has any: this rank holds its part
  bool check_weights = true;  // look through all of them for what is no number; small tensors are always looked through
  std::function<void(double done)> progress;  // 0..1 while weights are repacked; may throw to cancel
};

// What a step does differently. Parts of layers that are left out: the residual stream passes by. Null: nothing is left
// out.
struct LayerPlan {
  const uint8_t* skip_attention = nullptr;  // [layers], 1: skipped; its K/V are not written either
  const uint8_t* skip_ffn = nullptr;        // [layers]
  int window = 0;                           // rows see this many cells at most, beside the model's own limit; 0: all
};

// One step: rows of one or more sequences. Spans stay valid during the call only.
using Step = StepInputs;

// In backend memory, valid until the next step.
struct StepOutputs {
  const float* logits = nullptr;         // [outputs, vocab]
  std::span<const float* const> hidden;  // per tapped layer: [rows, width]
  std::span<const float* const> query;   // per tapped layer: [rows, heads * head_dim]
};

inline AttentionShape attention_shape(const LayerParts& p) { return {p.heads, p.kv_heads, p.head_dim}; }
inline float attention_scale(const LayerParts& p) {
  return p.attention_scale > 0 ? p.attention_scale : attention_shape(p).scale();
}

class Model {
 public:
  // Throws sx::Error. `file` may be closed afterwards except for the embedding table, so the model keeps it.
  static std::unique_ptr<Model> load(std::shared_ptr<const ModelFile> file, Backend& backend,
                                     const ModelOptions& options);
  // A copy of `original` in the given type, which drafts for it: over the same ranks where that is spread. sizes_only:
  // see Requantiser. Of the options the row counts, the context and the progress count.
  static std::unique_ptr<Model> load_copy(const Model& original, DType type, ModelOptions options, bool sizes_only);
  ~Model();

  const ModelConfig& config() const { return file_->config(); }
  const std::shared_ptr<const ModelFile>& file() const { return file_; }
  int context() const { return context_; }
  const ModelOptions& options() const { return options_; }
  size_t weight_bytes() const { return weight_bytes_; }  // read by one step of one row
  KvGeometry kv_geometry(int slots, int capacity, KvTypes type) const;
  // Of the model's first RoPE; keys of layers with another one must not be rotated by it (one_rope).
  std::span<const double> rope_frequencies() const { return ropes_.front().frequencies; }
  float rope_factor() const { return ropes_.front().factor; }  // yarn's, else 1
  // What heads share with their target.
  const Tensor& embedding() const { return embedding_; }  // [vocab, width], placed
  const Matrix& head() const;                             // width -> vocab; a whole one, also where ranks divide it
  const float* final_norm() const { return final_norm_.weight; }  // [width]

  // Other layers' queries from now on: at most options().most_queries, or as many as were tapped at set-up.
  void tap_queries(std::span<const int> layers);

  const StepOutputs& forward(const Step& step, KvStore& kv, const LayerPlan& plan = {});
  // Behind a step with one output, after which a tree is grown (Backend::grow_tree). Sets where logits are. False:
  // nothing has been done.
  bool levels(TreeGrowthArgs& args, KvStore& kv, const LayerPlan& plan = {});
  // Logits of `count` more rows of the last step, [count, vocab], in the place of those it gave; count <= max_outputs.
  // The step must have had an output: without one its last layer is not finished.
  const float* more_logits(int first, int count);

  bool spread() const { return ranks_ != nullptr; }
  // Ranks other than 0: does its part of what rank 0 has announced for this model (kForward, kMoreLogits or
  // kTapQueries), or loads its part of a copy (kLoadCopy) and says how that went.
  void follow(RankCommand command, std::span<const std::unique_ptr<KvStore>> stores);
  std::unique_ptr<Model> follow_copy() const;

 private:
  struct Layer;
  struct Workspace;
  Model(std::shared_ptr<const ModelFile> file, Backend& backend, const ModelOptions& options);
  void load_weights();
  void load_layer(int index);
  void allocate_workspace();
  uint64_t key_of(const Step& step, const LayerPlan& plan);
  void find_growth(std::span<const int32_t> positions);
  void run_layers(const Step& step, KvStore& kv, const LayerPlan& plan);
  void attention(const Layer& layer, int index, const Step& step, KvStore& kv, int window, bool cells_only);
  void scale_rows(float* x, int rows, int width, float scale);
  void read_out(const float* x, int outputs, const int32_t* which);  // rows of x, or its first ones
  void tap_query(int layer, int rows, const float* q, int stride, const RankCut& cut);
  float* norm_rotated(const Layer& layer, int rows);
  void grow_queries(float* q, int stride, int width);
  void norm_whole(float* x, int rows, int stride, const float* weight, const RankCut& cut);
  // Steps of ranks, model_ranks.cc.
  MessageBuffer& begin(RankCommand command) const { return ranks_->begin(command).put(number_); }
  void announce_step(const Step& step, const KvStore& kv, const LayerPlan& plan);
  void follow_step(std::span<const std::unique_ptr<KvStore>> stores);
  void receive_states(const Step& step);
  void hand_on(const Step& step);
  std::vector<size_t> micro_batches(const Step& step) const;
  void run_micro_batches(const Step& step, KvStore& kv, const LayerPlan& plan, std::span<const size_t> ends);
  void collect_taps(int rows);
  void collect_logits(int outputs);
  void tap(const std::vector<int>& wanted, int layer, std::span<float* const> to, const float* from, int stride,
           int width, int rows);

  std::shared_ptr<const ModelFile> file_;
  Backend& backend_;
  ModelOptions options_;
  int context_ = 0;
  size_t weight_bytes_ = 0;
  Ranks* ranks_ = nullptr;    // null: not spread
  Ranks* columns_ = nullptr;  // the same where these divide columns
  int number_ = 0;            // by which ranks know it: 0 the model that was opened, then its copies
  mutable int copies_ = 0;    // made of it so far
  RankShare own_layers_;
  std::vector<Layer> layers_;  // of own_layers_
  Tensor embedding_;
  NormWeights final_norm_;
  std::unique_ptr<Matrix> head_;                // ranks: of a stage that is not the last null, of columns a part
  mutable std::unique_ptr<Matrix> whole_head_;  // ranks: for drafters that share it
  struct Followed;
  std::unique_ptr<Followed> followed_;
  std::vector<float> states_;           // ranks: hidden states on their way
  std::vector<RopeFrequencies> ropes_;  // those of the configuration; last, if a layer has none, one that turns nothing
  std::unique_ptr<Workspace> work_;
  StepOutputs outputs_;
};

}  // namespace sx
