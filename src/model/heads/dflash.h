// DFlash and DSpark drafters: a decoder of few layers that fills a whole block of unknown tokens in one pass. Its cells
// of the text are made of the target's states alone: cell i is the key and value of token i in every layer. Behind them
// comes the block, the pending token and masks at the positions that follow, whose rows see the cells and each other.
//
// DFlash: row k of the block predicts the token in its own place. DSpark: row k predicts the token behind it, and its
// logits get a bias that depends on the token before the one predicted (markov_logits).
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/heads/head_file.h"
#include "model/model.h"

namespace sx {

struct DFlashOptions {
  int max_rows = 512;  // rows of context() at most, at least those of a block
  int max_nodes = 64;  // rows of markov_logits()
  int context = 0;     // longest history; 0: the trained length
};

class DFlashHead {
 public:
  // `target` must live as long as the head and be on the same backend. Throws sx::Error.
  static std::unique_ptr<DFlashHead> load(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                                          const DFlashOptions& options);
  ~DFlashHead();

  const HeadConfig& config() const { return file_->config(); }
  const DFlashOptions& options() const { return options_; }
  std::span<const double> rope_frequencies() const { return frequencies_; }
  std::span<const Token> token_map() const { return file_->token_map(); }
  KvGeometry kv_geometry(int slots, int capacity, KvTypes type) const;
  size_t feature_width() const { return config().features.size() * size_t(config().target_width); }
  size_t weight_bytes() const { return weight_bytes_; }                           // read by one block
  int levels() const { return config().block - (config().from_anchor ? 0 : 1); }  // tokens that a block predicts
  int markov_rank() const { return config().markov_rank; }

  // The target's tapped states, these rows of each, side by side.
  void take(std::span<const float* const> taps, std::span<const int32_t> which, float* features);
  // Writes the cells of the step's rows, given their features [rows, feature_width()]. Tokens do not matter.
  void context(const StepInputs& step, const float* features, KvStore& kv);
  // Runs a block: tokens and positions of config().block rows of one sequence. `together`: the rows see each other;
  // `in_order`: the same rows as a chain, for layers that are causal. Returns logits [levels(), draft_vocab], in
  // backend memory, valid until the next block.
  const float* block(const StepInputs& together, const StepInputs& in_order, KvStore& kv);
  // DSpark: logits of nodes [rows, draft_vocab]: those of level which[i] of the last block with the bias that the
  // step's token i gives to what follows it.
  const float* markov_logits(const StepInputs& step, std::span<const int32_t> which);

 private:
  struct Layer;
  struct Workspace;
  DFlashHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend, const DFlashOptions& options);
  void load_weights();
  void allocate_workspace();
  void make_rope_table(const StepInputs& step);
  void store_cells(const Layer& layer, int index, const float* input, const StepInputs& step, KvStore& kv);
  void run_layer(int index, const StepInputs& step, KvStore& kv);
  void read_out(const StepInputs& step);

  std::shared_ptr<const HeadFile> file_;
  const Model& target_;
  Backend& backend_;
  DFlashOptions options_;
  size_t weight_bytes_ = 0;
  std::vector<Layer> layers_;
  Tensor embedding_, markov_in_;
  std::unique_ptr<Matrix> fc_, own_head_, markov_out_;
  const Matrix* head_ = nullptr;
  const float *context_norm_ = nullptr, *final_norm_ = nullptr;
  std::vector<double> frequencies_;
  float rope_factor_ = 1;
  std::unique_ptr<Workspace> work_;
};

}  // namespace sx
