// The drafter that is published for each Gemma 4 model (its "assistant"): a few layers without keys and values of their
// own. A token's embedding and the target's state before it are joined; every layer then attends to the cells of one
// layer of the target, the last of its kind, from the position of the pending token, however deep the drafted token
// is. What the last layer gives becomes logits, and a state for the tokens below.
//
// So a row is a function of its token, the state behind its parent and the target's committed cells: it sees no other
// row, and there is nothing to keep.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/heads/head_file.h"
#include "model/heads/target_attention.h"
#include "model/model.h"

namespace sx {

// Cells of the target: the first `seen` of a slot, at least 1, with room for as many cells as rows behind them.
struct TargetCells {
  const KvStore* kv = nullptr;
  int slot = 0, seen = 0;
};

struct AssistantRows {
  std::span<const Token> tokens;
  const float* states = nullptr;  // [rows, target_width] in backend memory, behind the target's final norm or from here
  int position = 0;               // of the pending token
  TargetCells whole, windows;     // for layers that see everything, and for those with a sliding window
};

// In backend memory, valid until the next call.
struct AssistantOutputs {
  const float* logits = nullptr;  // [rows, vocab]
  const float* states = nullptr;  // [rows, target_width]
};

class AssistantHead {
 public:
  // `target` must live as long as the head and be on the same backend. Throws sx::Error.
  static std::unique_ptr<AssistantHead> load(std::shared_ptr<const HeadFile> file, const Model& target,
                                             Backend& backend, int max_rows);
  ~AssistantHead();

  const HeadConfig& config() const { return file_->config(); }
  size_t weight_bytes() const { return weight_bytes_; }  // read by one step of one row
  // out [rows, target_width]: the target's states behind its last layer, [rows, target_width], as rows are fed.
  void take(const float* states, int rows, float* out);
  AssistantOutputs forward(const AssistantRows& rows);

 private:
  struct Layer;
  struct Workspace;
  AssistantHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend, int max_rows);
  void load_weights();
  void allocate_workspace();
  void enter(const StepInputs& step, const float* states);
  void ask(Layer& layer, const StepInputs& step);
  void answer(const Layer& layer, int rows);
  void read_out(int rows);

  std::shared_ptr<const HeadFile> file_;
  const Model& target_;
  Backend& backend_;
  int max_rows_;
  size_t weight_bytes_ = 0;
  std::vector<Layer> layers_;
  const float* final_norm_ = nullptr;
  std::unique_ptr<Matrix> input_, output_, head_;  // pre_projection, post_projection, width -> vocab
  std::unique_ptr<KvStore> scratch_;               // what is stored along when queries are rotated
  SharedSight own_, sight_;                        // of rows in the scratch store; of the target's cells
  std::vector<int32_t> positions_;                 // [rows]
  std::unique_ptr<Workspace> work_;
};

}  // namespace sx
