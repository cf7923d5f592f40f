#include "model/taps.h"

#include <algorithm>

#include "base/error.h"

namespace sx {
namespace {

void add(std::vector<int>& kept, const std::vector<int>& wanted) {
  kept.insert(kept.end(), wanted.begin(), wanted.end());
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
}

std::vector<size_t> places(const std::vector<int>& kept, const std::vector<int>& wanted) {
  std::vector<size_t> found;
  for (const int layer : wanted) {
    const auto at = std::find(kept.begin(), kept.end(), layer);
    SX_ASSERT(at != kept.end());
    found.push_back(size_t(at - kept.begin()));
  }
  return found;
}

}  // namespace

void add_taps(TapSpec& kept, const TapSpec& wanted) {
  add(kept.hidden, wanted.hidden);
  add(kept.query, wanted.query);
}

TapView::TapView(const TapSpec& kept, const TapSpec& wanted)
    : kept_hidden_(kept.hidden.size()),
      kept_query_(kept.query.size()),
      whole_(kept.hidden == wanted.hidden && kept.query == wanted.query),
      hidden_(places(kept.hidden, wanted.hidden)),
      query_(places(kept.query, wanted.query)),
      hidden_at_(hidden_.size()),
      query_at_(query_.size()) {}

const StepOutputs& TapView::of(const StepOutputs& pass) {
  SX_ASSERT(pass.hidden.size() == kept_hidden_ && pass.query.size() == kept_query_);
  if (whole_) return pass;
  for (size_t i = 0; i < hidden_.size(); ++i) hidden_at_[i] = pass.hidden[hidden_[i]];
  for (size_t i = 0; i < query_.size(); ++i) query_at_[i] = pass.query[query_[i]];
  seen_ = {.logits = pass.logits, .hidden = hidden_at_, .query = query_at_};
  return seen_;
}

}  // namespace sx
