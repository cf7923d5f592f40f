#include "engine/batch.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/session.h"

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
  if (!options.grammar.empty())
    parts.grammar = std::make_unique<TreeGrammar>(engine_.grammars().get(options.grammar), options.cancelled);
  all_.push_back({session, std::make_unique<Generation>(request, engine_.parts(), std::move(parts)), prompt_rows_});
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
  for (const Entry& entry : all_)
    if (entry.generation->decoding()) decoding_.push_back(entry.generation.get());
  const size_t most = size_t(engine_.round().max_batch());
  if (decoding_.size() <= most) return;
  std::rotate(decoding_.begin(), decoding_.begin() + ptrdiff_t(turn_ % decoding_.size()), decoding_.end());
  decoding_.resize(most);
  turn_ += most;
}

// Short prompts go first, which makes the wait of all together shortest. Rows of others' prompts count half for a
// prompt that waits (aging), so that a long one is not passed by for ever.
void BatchImpl::choose_prompts() {
  prompting_.clear();
  pieces_.clear();
  for (const Entry& entry : all_)
    if (!entry.generation->waiting().empty()) prompting_.push_back(&entry);
  const auto rank = [&](const Entry* e) {
    return 2 * int64_t(e->generation->waiting().size()) - (prompt_rows_ - e->arrival);
  };
  std::stable_sort(prompting_.begin(), prompting_.end(),
                   [&](const Entry* a, const Entry* b) { return rank(a) < rank(b); });
  int rows = decoding_.empty() ? engine_.options().chunk : engine_.shared_prompt_rows();
  for (const Entry* entry : prompting_) {
    const int n = std::min(rows, int(entry->generation->waiting().size()));
    if (n == 0) break;
    pieces_.push_back({entry->generation.get(), n});
    rows -= n;
    prompt_rows_ += n;
  }
}

void BatchImpl::collect() {
  for (Entry& entry : all_) {
    Generation& g = *entry.generation;
    if (!g.done()) continue;
    finished_.push_back({entry.session, g.finish(), g.error(), g.models_fault()});
    entry.generation.reset();
  }
  std::erase_if(all_, [](const Entry& entry) { return !entry.generation; });
}

std::vector<Finished> BatchImpl::take_finished() { return std::exchange(finished_, {}); }

}  // namespace sx
