#include "model/heads/medusa.h"

#include <algorithm>

#include "base/error.h"
#include "model/heads/head_weights.h"

namespace sx {

struct MedusaHeads::Head {
  struct Block {
    std::unique_ptr<Matrix> linear;  // width -> width
    const float* bias;               // [width] or null
  };
  std::vector<Block> blocks;
  std::unique_ptr<Matrix> out;  // width -> draft_vocab; null: that of head 0
};

MedusaHeads::MedusaHeads(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend, int max_rows)
    : file_(std::move(file)), target_(target), backend_(backend), max_rows_(max_rows) {}
MedusaHeads::~MedusaHeads() = default;

std::unique_ptr<MedusaHeads> MedusaHeads::load(std::shared_ptr<const HeadFile> file, const Model& target,
                                               Backend& backend, int max_rows) {
  const HeadConfig& config = file->config();
  if (config.kind != HeadConfig::Kind::kMedusa)
    fail("{}: {} head where a Medusa head is expected", file->path(), head_kind_name(config.kind));
  if (config.target_width != target.config().width || config.cell.vocab != target.config().vocab)
    fail("{}: the heads were opened for another target", file->path());
  std::unique_ptr<MedusaHeads> heads(new MedusaHeads(std::move(file), target, backend, max_rows));
  heads->load_weights();
  heads->allocate_workspace();
  return heads;
}

void MedusaHeads::load_weights() {
  HeadWeights weights(*file_, backend_);
  for (int h = 0; h < config().medusa_heads; ++h) {
    Head head;
    for (int j = 0; j < config().medusa_layers; ++j) {
      const std::string name = fmt::format("blocks.{}.layers.{}.", h, j);
      head.blocks.push_back({weights.matrix({name + "weight"}), weights.vector({name + "bias"})});
    }
    if (h == 0 || !config().shared_head) head.out = weights.matrix({fmt::format("lm_heads.{}.weight", h)});
    else weight_bytes_ += heads_.front().out->bytes();  // read once more
    heads_.push_back(std::move(head));
  }
  weight_bytes_ += weights.bytes();
}

void MedusaHeads::allocate_workspace() {
  const auto rows = size_t(max_rows_), width = size_t(config().cell.width);
  const auto make = [&](size_t count) { return backend_.allocate(count, "activations of the Medusa heads"); };
  normed_ = make(rows * width);
  x_ = make(rows * width);
  gate_up_ = make(rows * 2 * width);
  const std::vector<float> ones(rows * 2 * width, 1.0f);  // silu(gate) * 1
  backend_.upload(gate_up_, ones.data(), ones.size());
  activated_ = make(rows * width);
  logits_ = make(rows * heads_.size() * size_t(config().draft_vocab));
  StepLimits limits;
  limits.rows = max_rows_;
  limits.width = config().cell.width;
  limits.vocab = config().draft_vocab;
  backend_.reserve(limits);
}

const float* MedusaHeads::forward(const float* states, int rows) {
  SX_ASSERT(rows > 0 && rows <= max_rows_);
  const int width = config().cell.width, vocab = config().draft_vocab, stride = int(heads_.size()) * vocab;
  backend_.norm({.out = normed_,
                 .x = states,
                 .weight = target_.final_norm(),
                 .rows = rows,
                 .width = width,
                 .eps = target_.config().norm_eps});
  for (size_t h = 0; h < heads_.size(); ++h) {
    const Head& head = heads_[h];
    backend_.copy_rows(
        {.to = x_, .from = normed_, .rows = rows, .width = width, .to_stride = width, .from_stride = width});
    for (const auto& block : head.blocks) {  // x + silu(W x + b)
      backend_.linear({.out = gate_up_,
                       .x = x_,
                       .weight = block.linear.get(),
                       .bias = block.bias,
                       .rows = rows,
                       .out_stride = 2 * width});
      backend_.glu({activated_, gate_up_, rows, width});
      backend_.copy_rows({.to = x_,
                          .from = activated_,
                          .rows = rows,
                          .width = width,
                          .to_stride = width,
                          .from_stride = width,
                          .add = true});
    }
    const Matrix* out = head.out ? head.out.get() : heads_.front().out.get();
    backend_.linear({.out = logits_ + h * size_t(vocab), .x = x_, .weight = out, .rows = rows, .out_stride = stride});
  }
  return logits_;
}

}  // namespace sx
