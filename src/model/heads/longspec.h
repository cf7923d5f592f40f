// LongSpec's drafter (after GLIDE): one decoder layer that looks back at its own cells within a window, then at the K/V
// that the target's last layer has left of the whole text. Embedding and output matrix are the target's, and there is
// no norm before that. A head may bring an output matrix of its own, for a part of the vocabulary.
//
// Its own cells are a function of their tokens and positions alone, so those of any stretch of text can be made at any
// time. What it reads of the target are cells of committed tokens: all rows of a draft see the same ones.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/heads/head_file.h"
#include "model/heads/target_attention.h"
#include "model/model.h"

namespace sx {

struct LongSpecOptions {
  int max_rows = 512;    // rows of one step
  int max_outputs = 64;  // rows of one step whose logits are wanted
  int cells = 0;         // of its own store
};

class LongSpecHead {
 public:
  // `target` must live as long as the head and be on the same backend. Throws sx::Error.
  static std::unique_ptr<LongSpecHead> load(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                                            const LongSpecOptions& options);
  ~LongSpecHead();

  const HeadConfig& config() const { return file_->config(); }
  const LongSpecOptions& options() const { return options_; }
  size_t weight_bytes() const { return weight_bytes_; }  // read by one step of one row
  KvGeometry kv_geometry(int slots, KvTypes type) const;

  // A step over its own cells; positions are those of the text. Without outputs only cells are made.
  void forward(const StepInputs& step, KvStore& kv, int window);
  std::span<const Token> token_map() const { return file_->token_map(); }  // draft id -> target id; empty: the same
  // Behind a step with outputs: logits [outputs, draft_vocab] of these, in backend memory, valid until the next one.
  // `seen`: cells of the target's store at `slot` that they look at, from the first on, at least 1 and with room for as
  // many cells as outputs behind them.
  const float* look(const KvStore& target, int slot, int seen);

 private:
  struct Workspace;
  LongSpecHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
               const LongSpecOptions& options);
  void load_weights();
  void allocate_workspace();
  void own_cells(const StepInputs& step, KvStore& kv, int window);
  void feed_forward(int rows);

  std::shared_ptr<const HeadFile> file_;
  const Model& target_;
  Backend& backend_;
  LongSpecOptions options_;
  size_t weight_bytes_ = 0;
  const float *input_norm_ = nullptr, *cross_norm_ = nullptr, *ffn_norm_ = nullptr;
  const float *qkv_bias_ = nullptr, *out_bias_ = nullptr, *cross_out_bias_ = nullptr;  // or null
  const float *gate_up_bias_ = nullptr, *down_bias_ = nullptr;
  std::unique_ptr<Matrix> qkv_, out_, cross_out_, gate_up_, down_, own_head_;
  const Matrix* head_ = nullptr;  // width -> draft_vocab
  std::unique_ptr<TargetAttention> cross_;
  SharedSight sight_;
  std::unique_ptr<Workspace> work_;
  int outputs_ = 0;  // of the last step
};

}  // namespace sx
