// The target's state behind the last committed token of each text: what heads draft from that have no cells of their
// own (Medusa, assistants). Of a text that was cut the state is gone: the target runs its last token again.
#pragma once
#include <algorithm>
#include <vector>

#include "backend/backend.h"
#include "speculative/draft/drafter.h"

namespace sx {

class LastStates {
 public:
  LastStates(Backend& backend, int slots, int width) : backend_(backend), width_(width), slots_(size_t(slots)) {
    for (Slot& s : slots_) s.state = backend.allocate(size_t(width), "states of the draft head");
  }

  const float* state(SeqId seq) const { return at(seq).state; }  // [width], backend memory
  int covered(SeqId seq) const { return at(seq).length; }
  bool ready(const DraftTask& task) const {
    return at(task.seq).known && at(task.seq).length == int(task.text.size()) - 1;
  }
  void truncate(SeqId seq, int length) {
    Slot& s = slots_[size_t(seq)];
    if (s.known && length >= s.length) return;
    s.known = false;
    s.length = std::min(s.length, std::max(0, length - 1));
  }
  void read_prompt(const PromptChunk& chunk) {
    keep(chunk.seq, *chunk.outputs, chunk.first_row + chunk.rows - 1, chunk.first + chunk.rows);
  }
  void accept(const Outcome& o) {
    keep(o.seq, *o.outputs, o.first_row + o.path.back(), o.history + int(o.path.size()));
  }

 private:
  struct Slot {
    int length = 0;          // tokens of the text up to the one whose state is kept
    bool known = false;      // a state is kept
    float* state = nullptr;  // [width]
  };
  const Slot& at(SeqId seq) const { return slots_[size_t(seq)]; }
  void keep(SeqId seq, const StepOutputs& outputs, int row, int length) {
    Slot& s = slots_[size_t(seq)];
    backend_.copy_rows({s.state, outputs.hidden[0] + size_t(row) * size_t(width_), 1, width_, width_, width_});
    s.length = length, s.known = true;
  }

  Backend& backend_;
  int width_;
  std::vector<Slot> slots_;
};

}  // namespace sx
