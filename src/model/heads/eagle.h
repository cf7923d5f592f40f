// EAGLE-1 (HASS) and EAGLE-3 draft heads, and MTP blocks: a decoder of one or few layers that reads the target's states
// and the next token, shares embedding and output head with the target where it has none, and keeps K/V in a store of
// its own.
//
// Slot i of the draft pairs the target's state at position i with the token at position i + 1; its RoPE position is i.
//
// Several MTP blocks run in a row. Block k predicts the token k + 1 places behind a text; deeper nodes are predicted by
// the last block again. It pairs the token at position i + 1 with what block k - 1 gave for the pair before, so cell i
// of every layer of the store belongs to the same token, and a row goes through the blocks one after another.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/heads/head_file.h"
#include "model/model.h"

namespace sx {

struct EagleOptions {
  int max_rows = 512;    // rows of one step, and of one call of fuse()
  int max_outputs = 64;  // rows of one step whose logits are wanted
  int context = 0;       // longest history; 0: the trained length
  bool queries = false;  // keep the queries of every layer
};

// One step, as Model's. Spans stay valid during the call only.
struct EagleStep : StepInputs {
  const float* states = nullptr;  // [rows, width]: from fuse(), or rows of an earlier step's states
  int window = 0;                 // rows see this many cells at most; 0: all
  bool cells_only = false;        // no states are wanted, only what later steps read from the cache
  // Several MTP blocks: 0: rows of a text, which follow those of follow(); else nodes of a tree at this depth, whose
  // states are rows of an earlier step's.
  int depth = 0;
};

// In backend memory, valid until the next step (which may be given `states` as they are).
struct EagleOutputs {
  const float* logits = nullptr;        // [outputs, draft_vocab]
  const float* states = nullptr;        // [rows, state_width()]: what the next level of the draft is fed with
  std::span<const float* const> query;  // per layer: [rows, heads * head_dim] rotated; empty unless asked for
};

class EagleHead {
 public:
  // `target` must live as long as the head and be on the same backend. Throws sx::Error.
  static std::unique_ptr<EagleHead> load(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                                         const EagleOptions& options);
  ~EagleHead();

  const HeadConfig& config() const { return file_->config(); }
  const EagleOptions& options() const { return options_; }
  size_t weight_bytes() const { return weight_bytes_; }  // read by one step of one row
  KvGeometry kv_geometry(int slots, int capacity, KvTypes type) const;
  std::span<const double> rope_frequencies() const { return frequencies_; }
  std::span<const Token> token_map() const { return file_->token_map(); }  // draft id -> target id; empty: the same
  // Parallel drafting: the state beside config().mask_token, [width]; null if the head does not draft so.
  const float* mask_state() const { return mask_state_; }

  // Columns of a row of states: the width, of several MTP blocks once for each.
  int state_width() const { return config().cell.width * blocks(); }
  int blocks() const { return mtp() ? config().cell.layers : 1; }
  // Several MTP blocks: the row of states before the next step's rows of a text; null: not known.
  void follow(const float* states);

  // The target's tapped states (per tap: [.., target width]; these rows of each), side by side: features [rows,
  // feature_width()], or these rows `into` it.
  void take(std::span<const float* const> taps, std::span<const int32_t> which, float* features,
            std::span<const int32_t> into = {});
  size_t feature_width() const { return config().features.size() * size_t(config().target_width); }
  // Of these, what the cell takes as its states: out [rows, width]; of these rows of them. Both in one: the third.
  void fuse(const float* features, int rows, float* out);
  void fuse(const float* features, std::span<const int32_t> which, float* out);
  void fuse(std::span<const float* const> taps, std::span<const int32_t> which, float* out);
  const EagleOutputs& forward(const EagleStep& step, KvStore& kv);
  // Behind a step with one output, after which a tree is grown (Backend::grow_tree). args.states: of the first level's
  // rows. Sets where logits and states are. False: nothing has been done.
  bool levels(TreeGrowthArgs& args, KvStore& kv);

 private:
  struct Layer;
  struct Workspace;
  EagleHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend, const EagleOptions& options);
  void load_weights();
  void allocate_workspace();
  void make_mask_state();
  bool eagle3() const { return config().kind == HeadConfig::Kind::kEagle3; }
  bool mtp() const { return config().kind == HeadConfig::Kind::kMtp; }
  const float* enter_block(int block, const EagleStep& step);  // the same for an MTP block
  void run_blocks(const EagleStep& step, KvStore& kv);
  void read_out(const float* from, const float* norm, const EagleStep& step);
  const float* enter_cell(const EagleStep& step);  // fills the residual stream; the input of layer 0's attention
  void attention(const Layer& layer, int index, const float* input, const EagleStep& step, KvStore& kv,
                 bool cells_only);
  void make_rope_table(const EagleStep& step);
  void run_layers(const EagleStep& step, KvStore& kv);

  std::shared_ptr<const HeadFile> file_;
  const Model& target_;
  Backend& backend_;
  EagleOptions options_;
  size_t weight_bytes_ = 0;
  std::vector<Layer> layers_;
  Tensor embedding_;  // [vocab, width], the target's or its own
  std::unique_ptr<Matrix> fc_, own_head_;
  const Matrix* head_ = nullptr;  // width -> draft_vocab
  const float *fc_bias_ = nullptr, *final_norm_ = nullptr, *input_norm_ = nullptr;
  std::vector<const float*> fc_norms_;  // per feature, or empty
  std::vector<double> frequencies_;
  float rope_factor_ = 1;
  std::unique_ptr<Workspace> work_;
  const float* mask_state_ = nullptr;
  EagleOutputs outputs_;
};

}  // namespace sx
