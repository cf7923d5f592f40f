#include "engine/sample_head.h"

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "speculative/draft/registry.h"

namespace sx::testing {
namespace {

// The head. It has no weights and no KV cache; per sequence it keeps the last two different tokens that followed each
// token.
class BigramHead final : public DraftModel {
 public:
  explicit BigramHead(const DraftContext& context)
      : backend_(*context.backend),
        vocab_(context.target->config().vocab),
        outputs_(tree_drafter_rows(context.tree, context.slots)),
        row_(size_t(vocab_)),
        logits_(backend_.allocate(size_t(outputs_) * size_t(vocab_), "logits of the bigram head")),
        slots_(size_t(context.slots)) {
    for (Slot& s : slots_) s.followers.resize(size_t(vocab_), {kNoToken, kNoToken});
  }

  DraftShape shape() const override {
    return {.vocab = vocab_, .stride = vocab_, .outputs = outputs_, .sequences = int(slots_.size())};
  }

  // What was learned from tokens that are gone cannot be taken back: the head reads the text again.
  void truncate(SeqId seq, int length) override {
    Slot& s = slots_[size_t(seq)];
    if (length >= s.read) return;
    s.read = 0;
    s.followers.assign(size_t(vocab_), {kNoToken, kNoToken});
  }

  bool read(SeqId seq, std::span<const Token> text) override {
    Slot& s = slots_[size_t(seq)];
    for (; s.read < int(text.size()); ++s.read) {
      if (s.read == 0) continue;
      auto& [newest, older] = s.followers[size_t(text[size_t(s.read) - 1])];
      if (text[size_t(s.read)] != newest) older = std::exchange(newest, text[size_t(s.read)]);
    }
    return true;
  }

  // The pass over the texts: one row of logits for each pending token.
  DraftLogits run_text(std::span<DraftRows> rows) override {
    timer_.time([&] {
      for (size_t i = 0; i < rows.size(); ++i) {
        read(rows[i].task->seq, rows[i].task->text);
        rows[i].output = int(i);
        write_logits(rows[i].task->seq, rows[i].task->text.back(), int(i));
      }
    });
    return {logits_, int(rows.size())};
  }

  bool has_room(const DraftTask&, int, int) const override { return true; }

  // The pass over a level: one row of logits for each node.
  DraftLogits run_level(std::span<const DraftRows> level) override {
    int count = 0;
    timer_.time([&] {
      for (const DraftRows& r : level)
        for (NodeId node : r.nodes) write_logits(r.task->seq, r.task->tree->token(node), count++);
    });
    return {logits_, count};
  }

 private:
  struct Slot {
    int read = 0;                                 // tokens of the text
    std::vector<std::array<Token, 2>> followers;  // [vocab] newest first
  };
  void write_logits(SeqId seq, Token after, int row) {
    const auto& [newest, older] = slots_[size_t(seq)].followers[size_t(after)];
    row_.assign(size_t(vocab_), 0);
    if (older != kNoToken) row_[size_t(older)] = 7;
    if (newest != kNoToken) row_[size_t(newest)] = 8;
    backend_.upload(logits_ + size_t(row) * size_t(vocab_), row_.data(), row_.size());
  }

  Backend& backend_;
  int vocab_, outputs_;
  std::vector<float> row_;
  float* logits_;  // [outputs, vocab], backend memory
  std::vector<Slot> slots_;
};

std::unique_ptr<Drafter> make(const DraftContext& context) {
  return std::make_unique<TreeDrafter>(tree_options(context), std::make_unique<BigramHead>(context));
}

bool claims(const DraftSource& source) { return source.kind == DrafterKind::kNamed && source.name == "bigram"; }

}  // namespace

void register_bigram_head() { register_drafter({.name = "bigram", .claims = claims, .make = make}); }

}  // namespace sx::testing
