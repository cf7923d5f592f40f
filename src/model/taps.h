// What several readers take from inside a pass: it keeps all layers that any of them reads, and each sees those it
// wants.
#pragma once
#include <span>
#include <vector>

#include "model/model.h"

namespace sx {

// Adds what a reader wants to what is kept. Layers ascend, each is there once.
void add_taps(TapSpec& kept, const TapSpec& wanted);

// What a reader sees of a pass: the taps that it wants, in its order. Nothing but pointers is copied.
class TapView {
 public:
  TapView(const TapSpec& kept, const TapSpec& wanted);  // all that is wanted is kept

  // Places of the wanted taps among those that are kept.
  std::span<const size_t> hidden() const { return hidden_; }
  std::span<const size_t> query() const { return query_; }

  // Of a pass with these taps; valid until the next call. It is the pass itself where just these are kept.
  const StepOutputs& of(const StepOutputs& pass);

 private:
  size_t kept_hidden_, kept_query_;  // numbers of taps
  bool whole_;
  std::vector<size_t> hidden_, query_;
  std::vector<const float*> hidden_at_, query_at_;
  StepOutputs seen_;
};

}  // namespace sx
