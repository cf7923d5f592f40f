#include "engine/batch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace sx {
namespace {

constexpr double kMaskMs = 0.5;  // of a round that all requests together may spend on masks beforehand
constexpr int kMaskWait = 1000;  // microseconds between two looks for requests that have been cancelled

}  // namespace

BatchImpl::BatchImpl(EngineImpl& engine) : engine_(engine) {
  const size_t sessions = size_t(engine.options().max_sessions);
  all_.reserve(sessions);
  decoding_.reserve(sessions);
  prompting_.reserve(sessions);
  pieces_.reserve(sessions);
  finished_.reserve(sessions);
}

void BatchImpl::add(const Request& request) {
  for (const Entry& other : all_)
    if (other.session == request.session) fail("two requests of a batch name the same session");
  auto* session = dynamic_cast<SessionImpl*>(request.session);
  if (!session || &session->engine() != &engine_) fail("a request's session is not one of this engine");
  check_request(request, engine_.parts());
  const GenerateOptions& options = *request.options;
  Generation::Parts parts;
  parts.text = &session->cached_text();
  parts.spec =
      &engine_.speculation(options.preset == kNoSpeculation ? "" : options.preset);  // no preset need be called off
  if (!options.grammar.empty()) {
    masks_ = &engine_.grammars().background();
    parts.grammar = std::make_unique<TreeGrammar>(engine_.grammars().get(options.grammar), options.cancelled, masks_);
  }
  all_.push_back({session, std::make_unique<Generation>(request, engine_.parts(), std::move(parts)), prompt_rows_});
}

bool BatchImpl::step() {
  if (all_.empty()) return false;
  choose_decoding();
  choose_prompts();
  if (!decoding_.empty() || !pieces_.empty()) engine_.round().run(decoding_, pieces_, int(all_.size()));
  else wait_for_masks();
  collect();
  return true;
}

// A request whose grammar takes long to say what may come next sits rounds out where others would wait for it, and so
// do all of the same grammar: it is with the other thread, for one of them after the other until all have their masks.
void BatchImpl::choose_decoding() {
  decoding_.clear();
  if (masks_) masks_made_ = masks_->ended();
  const double until = now_ms() + kMaskMs;
  for (const Entry& entry : all_) {
    Generation& request = *entry.generation;
    if (!request.decoding() || request.poll_cancelled()) continue;
    if (all_.size() == 1) request.need_mask();
    else if (!request.has_mask(until)) continue;
    decoding_.push_back(&request);
  }
  std::erase_if(decoding_, [](const Generation* request) { return request->grammar_lent(); });
  const size_t most = size_t(engine_.round().max_batch());
  if (decoding_.size() <= most) return;
  std::rotate(decoding_.begin(), decoding_.begin() + ptrdiff_t(turn_ % decoding_.size()), decoding_.end());
  decoding_.resize(most);
  turn_ += most;
}

// Short prompts go first, which makes the wait of all together shortest. Rows of others' prompts count half for a
// prompt that waits (aging), so that a long one is not passed by for ever; its own do not, or the second half of every
// long prompt would go before a short one.
void BatchImpl::choose_prompts() {
  prompting_.clear();
  pieces_.clear();
  for (Entry& entry : all_)
    if (!entry.generation->waiting().empty()) prompting_.push_back(&entry);
  const auto rank = [&](const Entry* e) {
    return 2 * int64_t(e->generation->waiting().size()) - (prompt_rows_ - e->not_others);
  };
  std::stable_sort(prompting_.begin(), prompting_.end(),
                   [&](const Entry* a, const Entry* b) { return rank(a) < rank(b); });
  int rows = decoding_.empty() ? engine_.options().chunk : engine_.shared_prompt_rows();
  for (Entry* entry : prompting_) {
    const int n = std::min(rows, int(entry->generation->waiting().size()));
    if (n == 0) break;
    pieces_.push_back({entry->generation.get(), n});
    rows -= n;
    prompt_rows_ += n;
    entry->not_others += n;
  }
}

// Nothing can be run before a mask is there.
void BatchImpl::wait_for_masks() {
  const bool wanted = std::ranges::any_of(all_, [](const Entry& entry) { return !entry.generation->done(); });
  if (wanted && masks_) masks_->wait(masks_made_, std::chrono::microseconds(kMaskWait));
}

void BatchImpl::collect() {
  for (Entry& entry : all_) {
    Generation& g = *entry.generation;
    if (!g.done()) continue;
    finished_.push_back({entry.session, g.finish(), g.error(), g.models_fault(), g.no_memory()});
    entry.generation.reset();
  }
  std::erase_if(all_, [](const Entry& entry) { return !entry.generation; });
}

std::vector<Finished> BatchImpl::take_finished() { return std::exchange(finished_, {}); }

}  // namespace sx
