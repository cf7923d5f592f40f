#include "engine/batch.h"

#include <algorithm>

#include "base/error.h"

namespace sx {

BatchImpl::BatchImpl(EngineImpl& engine) : engine_(engine) {
  const size_t sessions = size_t(engine.options().max_sessions);
  all_.reserve(sessions);
  decoding_.reserve(sessions);
  prompting_.reserve(sessions);
  pieces_.reserve(sessions);
  finished_.reserve(sessions);
}

void BatchImpl::add(const Request& request) {
  for (const auto& other : all_)
    if (&other->session == request.session) fail("two requests of a batch name the same session");
  all_.push_back(std::make_unique<Generation>(request, engine_));
  all_.back()->arrival = prompt_rows_;
}

bool BatchImpl::step() {
  if (all_.empty()) return false;
  choose_decoding();
  choose_prompts();
  if (!decoding_.empty() || !pieces_.empty()) engine_.round().run(decoding_, pieces_, int(all_.size()));
  collect();
  return true;
}

void BatchImpl::choose_decoding() {
  decoding_.clear();
  for (const auto& g : all_)
    if (g->decoding()) decoding_.push_back(g.get());
  const size_t most = size_t(engine_.round().max_batch());
  if (decoding_.size() <= most) return;
  std::rotate(decoding_.begin(), decoding_.begin() + ptrdiff_t(turn_ % decoding_.size()), decoding_.end());
  decoding_.resize(most);
  turn_ += most;
}

// Short prompts go first, which makes the wait of all together shortest; but what others' prompts took meanwhile counts half for those
// that wait, so that a long one cannot be passed by for ever.
void BatchImpl::choose_prompts() {
  prompting_.clear();
  pieces_.clear();
  for (const auto& g : all_)
    if (!g->waiting().empty()) prompting_.push_back(g.get());
  const auto rank = [&](const Generation* g) { return 2 * int64_t(g->waiting().size()) - (prompt_rows_ - g->arrival); };
  std::stable_sort(prompting_.begin(), prompting_.end(), [&](const Generation* a, const Generation* b) { return rank(a) < rank(b); });
  int rows = decoding_.empty() ? engine_.options().chunk : engine_.shared_prompt_rows();
  for (Generation* g : prompting_) {
    const int n = std::min(rows, int(g->waiting().size()));
    if (n == 0) break;
    pieces_.push_back({g, n});
    rows -= n;
    prompt_rows_ += n;
  }
}

void BatchImpl::collect() {
  for (auto& g : all_) {
    if (!g->done()) continue;
    finished_.push_back({&g->session, g->finish(), g->error(), g->models_fault()});
    g.reset();
  }
  std::erase_if(all_, [](const auto& g) { return !g; });
}

std::vector<Finished> BatchImpl::take_finished() { return std::exchange(finished_, {}); }

}  // namespace sx
