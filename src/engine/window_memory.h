// Gives back the memory of cells that the sliding windows of a model have passed. A layer with a window reads its last
// `window` cells only; what lies kKept cells behind the widest window is given back in steps. A text may be cut to a
// length whose windows are still there; for any other it has to be read again from its beginning. The cells of layers
// that see everything always stay.
#pragma once
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/sequence_table.h"

namespace sx {

class WindowMemory {
 public:
  static constexpr int kKept = 2048;  // cells behind the window: the end of a text can be taken back without reading
  static constexpr int kStep = 1024;  // cells

  // windows: of each layer, 0 for one that sees everything.
  WindowMemory(Backend& backend, KvStore& kv, std::span<const int> windows);

  // Whether a text can be cut to `length` tokens: all cells that the next token sees are there, or it begins anew.
  bool can_return(SeqId seq, int length) const { return length == 0 || at(seq).lost <= begin_of(length); }
  // The text has grown to `length` tokens.
  void grow(SeqId seq, int length);
  // The text is empty: its cells will be written again.
  void forget(SeqId seq) { at(seq) = {}; }
  // The cells of the text, which has `length` tokens, were restored: only those that the next token sees are known to
  // be whole.
  void restored(SeqId seq, int length);
  // The cells of the text are copies of another's.
  void copied(SeqId seq, SeqId from);

 private:
  struct Cells {
    int lost = 0;   // cells below this are not what they were
    int freed = 0;  // the memory of cells below this has been given back
  };
  struct Layers {
    int first, count;
  };
  Cells& at(SeqId seq) { return cells_[static_cast<size_t>(seq)]; }
  const Cells& at(SeqId seq) const { return cells_[static_cast<size_t>(seq)]; }
  int begin_of(int length) const;  // the first cell that the token behind `length` tokens sees

  Backend& backend_;
  KvStore& kv_;
  int widest_ = 0;              // window
  std::vector<Layers> layers_;  // neighbouring layers with windows
  std::vector<Cells> cells_;    // per slot
};

}  // namespace sx
