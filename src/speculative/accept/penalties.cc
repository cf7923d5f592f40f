#include "speculative/accept/penalties.h"

#include "base/error.h"

namespace sx {

PenaltyWindow::PenaltyWindow(int vocab, int last_n, int undo) : last_n_(last_n) {
  if (last_n == 0) return;
  place_.assign(size_t(vocab), -1);
  counts_.reserve(size_t(vocab));
  ring_.assign(size_t(last_n > 0 ? last_n : 0) + size_t(undo) + 1, kNoToken);
}

void PenaltyWindow::add(Token token) {
  if (token < 0 || size_t(token) >= place_.size()) return;
  int32_t& at = place_[size_t(token)];
  if (at < 0) {
    at = int32_t(counts_.size());
    counts_.push_back({token, 0});
  }
  ++counts_[size_t(at)].count;
}

void PenaltyWindow::remove(Token token) {
  if (token < 0 || size_t(token) >= place_.size()) return;
  const int32_t at = place_[size_t(token)];
  if (--counts_[size_t(at)].count > 0) return;
  counts_[size_t(at)] = counts_.back();
  place_[size_t(counts_[size_t(at)].token)] = at;
  counts_.pop_back();
  place_[size_t(token)] = -1;
}

void PenaltyWindow::push(Token token) {
  if (last_n_ == 0) return;
  at(pushed_) = token;
  add(token);
  if (last_n_ > 0 && pushed_ >= size_t(last_n_)) remove(at(pushed_ - size_t(last_n_)));
  ++pushed_;
}

void PenaltyWindow::pop() {
  if (last_n_ == 0) return;
  SX_ASSERT(pushed_ > 0);
  --pushed_;
  remove(at(pushed_));
  if (last_n_ > 0 && pushed_ >= size_t(last_n_)) add(at(pushed_ - size_t(last_n_)));
}

}  // namespace sx
