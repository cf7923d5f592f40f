#include "engine/penalties.h"

namespace sx {

PenaltyWindow::PenaltyWindow(int vocab, int last_n) : last_n_(last_n) {
  if (last_n == 0) return;
  place_.assign(size_t(vocab), -1);
  counts_.reserve(size_t(vocab));
  if (last_n > 0) ring_.assign(size_t(last_n), kNoToken);
}

void PenaltyWindow::remove(Token token) {
  const int32_t at = place_[size_t(token)];
  if (--counts_[size_t(at)].count > 0) return;
  counts_[size_t(at)] = counts_.back();
  place_[size_t(counts_[size_t(at)].token)] = at;
  counts_.pop_back();
  place_[size_t(token)] = -1;
}

void PenaltyWindow::push(Token token) {
  if (last_n_ == 0 || token < 0 || size_t(token) >= place_.size()) return;
  if (!ring_.empty()) {
    Token& slot = ring_[next_];
    next_ = (next_ + 1) % ring_.size();
    if (slot != kNoToken) remove(slot);
    slot = token;
  }
  int32_t& at = place_[size_t(token)];
  if (at < 0) {
    at = int32_t(counts_.size());
    counts_.push_back({token, 0});
  }
  ++counts_[size_t(at)].count;
}

}  // namespace sx
