// Medusa's heads: each is a few residual blocks and an output matrix on the target's last state, and guesses the token
// one place further ahead than the one before it. They have no cache and no positions.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/heads/head_file.h"
#include "model/model.h"

namespace sx {

class MedusaHeads {
 public:
  // `target` must live as long as the heads and be on the same backend. Throws sx::Error.
  static std::unique_ptr<MedusaHeads> load(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                                           int max_rows);
  ~MedusaHeads();

  const HeadConfig& config() const { return file_->config(); }
  int heads() const { return config().medusa_heads; }
  size_t weight_bytes() const { return weight_bytes_; }                    // read by one pass of one row
  std::span<const Token> token_map() const { return file_->token_map(); }  // draft id -> target id; empty: the same

  // states: [rows, width], the target's residual stream after its last layer; the target's final norm is applied here.
  // Logits [rows, heads, draft_vocab] in backend memory, valid until the next call.
  const float* forward(const float* states, int rows);

 private:
  struct Head;
  MedusaHeads(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend, int max_rows);
  void load_weights();
  void allocate_workspace();

  std::shared_ptr<const HeadFile> file_;
  const Model& target_;
  Backend& backend_;
  int max_rows_;
  size_t weight_bytes_ = 0;
  std::vector<Head> heads_;
  float* normed_ = nullptr;     // [rows, width]
  float* x_ = nullptr;          // [rows, width]
  float* gate_up_ = nullptr;    // [rows, 2 width], the right half is 1: silu(gate) * up becomes silu(gate)
  float* activated_ = nullptr;  // [rows, width]
  float* logits_ = nullptr;     // [rows, heads, draft_vocab]
};

}  // namespace sx
