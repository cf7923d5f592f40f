#include "text/grammar/matcher.h"

#include <algorithm>
#include <limits>
#include <new>

#include "base/error.h"
#include "base/rng.h"
#include "text/unicode.h"

namespace sx {
namespace {

using OpKind = GrammarProgram::Kind;

// Work is counted in stacks that are looked at for a byte, some nanoseconds each. What else there is to do costs about
// so many times as much.
constexpr uint64_t kLandWork = 8;     // a stack that takes the byte
constexpr uint64_t kFrameWork = 32;   // a frame that is made and followed through what takes no byte
constexpr uint64_t kStateWork = 256;  // a state that is made, beside its edges
constexpr uint64_t kNoWorkLimit = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kQuestionWork = 1 << 14;  // between two questions whether a request is cancelled
constexpr uint64_t kSlowWork = 1 << 18;      // of a mask that others should not wait for
constexpr size_t kFramesPerStack = 4;        // looked at on the way to the stacks of a state

}  // namespace

size_t GrammarMatcher::FrameHash::operator()(const Frame& f) const {
  return size_t(hash_key(f.below_id, f.node, f.count));
}

bool GrammarMatcher::FrameEqual::operator()(const Frame& a, const Frame& b) const {
  return a.below == b.below && a.node == b.node && a.count == b.count;
}

size_t GrammarMatcher::StacksHash::operator()(const Stacks& stacks) const {
  uint64_t hash = stacks.size();
  for (const Frame* f : stacks) hash = mix64(hash ^ f->id);
  return size_t(hash);
}

size_t GrammarMatcher::KeyHash::operator()(const Key& key) const {
  return StacksHash()(key.stacks) ^ size_t(key.can_end);
}

GrammarMatcher::GrammarMatcher(std::string_view gbnf, std::shared_ptr<const TokenTrie> trie,
                               const GrammarLimits& limits)
    : program_(compile_grammar(parse_gbnf(gbnf), [&](std::string_view text) { return trie->control_at(text); })),
      trie_(std::move(trie)),
      limits_(limits),
      most_states_(limits.states),
      most_parts_(limits.parts) {
  SX_ASSERT(limits_.stacks <= std::numeric_limits<uint16_t>::max());
  dead_.key = &no_stacks_;
  std::vector<uint32_t> bits(trie_->words(), 0);
  for (Token end : trie_->ends()) bits[size_t(end) / 32] |= 1u << (end % 32);
  ends_only_ = std::make_shared<const std::vector<uint32_t>>(std::move(bits));
  Key key;
  todo_.push_back(push(nullptr, program_.start));
  close(key, &dead_);
  start_ = State(intern(std::move(key)));
  count_bytes();
}

GrammarMatcher::~GrammarMatcher() { take_back(); }

const GrammarMatcher::Frame* GrammarMatcher::push(const Frame* below, uint32_t node, uint32_t count) {
  const auto [found, fresh] = frames_.insert({below, node, count, next_id_, below ? below->id : 0});
  next_id_ += fresh;
  return &*found;
}

// The stack that goes on at a node; where that would return at once, the one it returns to.
const GrammarMatcher::Frame* GrammarMatcher::go(const Frame* below, uint32_t node) {
  return below && node == GrammarProgram::kReturnNode ? below : push(below, node);
}

// Follows a stack through everything that takes no byte. What a rule or round must return to is left out where it would
// return at once: rules that end with themselves do not grow the stack.
void GrammarMatcher::visit(const Frame* frame) {
  const GrammarProgram::Node& node = program_.nodes[frame->node];
  const auto onto = [&](uint32_t next) {
    return next == GrammarProgram::kReturnNode ? frame->below : push(frame->below, next);
  };
  switch (node.kind) {
    case OpKind::kBytes: break;
    case OpKind::kReturn:
      if (frame->below) todo_.push_back(frame->below);
      break;
    case OpKind::kChoice:
      for (uint32_t i = 0; i < node.count; ++i) todo_.push_back(go(frame->below, program_.targets[node.first + i]));
      break;
    case OpKind::kCall: todo_.push_back(push(onto(node.next), node.first)); break;
    case OpKind::kRepeat: {
      if (frame->count >= node.least) todo_.push_back(go(frame->below, node.next));
      if (frame->count >= node.most) break;
      // Without a most, rounds beyond the least are all alike; after the last round nothing is left but to go on.
      const uint32_t begun = node.most == kNoLimit ? std::min(frame->count + 1, node.least) : frame->count + 1;
      todo_.push_back(push(begun == node.most ? onto(node.next) : push(frame->below, frame->node, begun), node.first));
      break;
    }
  }
}

// The rule that most stacks of a state stand in, the first of them in the grammar.
std::string GrammarMatcher::rule_at(const Node* at) const {
  std::vector<size_t> stacks(program_.rule_names.size(), 0);
  for (const Frame* f : at->key->stacks) ++stacks[program_.rule_of(f->node)];
  const auto most = std::max_element(stacks.begin(), stacks.end());
  return *most > 0 ? program_.rule_names[size_t(most - stacks.begin())]
                   : program_.rule_names[program_.rule_of(program_.start)];
}

void GrammarMatcher::too_ambiguous(const Node* at) const {
  fail("grammar: too ambiguous: a text of it can be read in more than {} ways at once, most of them in the rule {}",
       limits_.stacks, rule_at(at));
}

// Counts work that is done at a state, for the first time in this call.
void GrammarMatcher::count(uint64_t work, const Node* at) {
  work_ += work;
  if (work_ > most_work_)
    fail(
        "grammar: too ambiguous: to find which tokens may come next takes more than {} steps, the last of them in the rule {}: it needs fewer "
        "alternatives that begin alike or fewer repetitions inside repetitions",
        most_work_, rule_at(at));
  if (!cancelled_ || work_ < next_question_) return;
  next_question_ = work_ + kQuestionWork;
  if ((*cancelled_)()) throw GrammarCancelled();
}

void GrammarMatcher::begin(uint64_t most_work) {
  if (full(slack_)) forget();
  ++call_;
  work_ = next_question_ = 0;
  most_work_ = most_work;
  cancelled_ = nullptr;
}

// The state of the stacks in todo_, which a byte has led to from a state. Returns the frames looked at.
uint32_t GrammarMatcher::close(Key& key, const Node* from) {
  const size_t most = kFramesPerStack * limits_.stacks;
  size_t seen = 0;
  ++visit_;
  while (!todo_.empty()) {
    const Frame* frame = todo_.back();
    todo_.pop_back();
    if (frame->visit == visit_) continue;
    frame->visit = visit_;
    const GrammarProgram::Node& node = program_.nodes[frame->node];
    if (++seen > most || (node.kind == OpKind::kChoice && node.count > most)) {
      todo_.clear();
      too_ambiguous(from);
    }
    if (node.kind == OpKind::kBytes) key.stacks.push_back(frame);
    if (node.kind == OpKind::kReturn && !frame->below) key.can_end = true;
    visit(frame);
  }
  if (key.stacks.size() > limits_.stacks) too_ambiguous(from);
  std::sort(key.stacks.begin(), key.stacks.end(), [](const Frame* a, const Frame* b) { return a->id < b->id; });
  return uint32_t(seen);
}

GrammarMatcher::Node* GrammarMatcher::intern(Key key) {
  if (key.stacks.empty() && !key.can_end) return &dead_;
  const auto [found, fresh] = states_.try_emplace(std::move(key));
  if (!fresh) return &found->second;
  found->second.key = &found->first;
  parts_ += found->first.stacks.size();
  return &found->second;
}

// Finds where an edge of a state leads.
void GrammarMatcher::land(const Node* from, uint8_t byte, Edge& edge) {
  landing_.clear();
  for (const Frame* frame : from->key->stacks)
    if (const GrammarProgram::Edge* taken = program_.edge(program_.nodes[frame->node], byte))
      landing_.push_back(go(frame->below, taken->next));
  edge.landed = uint16_t(landing_.size());
  std::sort(landing_.begin(), landing_.end(), [](const Frame* a, const Frame* b) { return a->id < b->id; });
  landing_.erase(std::unique(landing_.begin(), landing_.end()), landing_.end());
  const auto [found, fresh] = landings_.try_emplace(landing_);
  Landing& landing = found->second;
  if (fresh) {
    todo_ = landing_;
    Key key;
    try {
      landing.work = uint32_t(kFrameWork) * close(key, from);
      landing.node = intern(std::move(key));
    } catch (...) {
      landings_.erase(found);
      throw;
    }
    parts_ += landing_.size();
  }
  edge.to = &landing;
}

GrammarMatcher::Node* GrammarMatcher::step(Node* from, uint8_t byte) {
  if (from == &dead_) return from;
  const size_t classes = size_t(program_.classes);
  if (from->counted != call_) {
    from->counted = call_;
    count(kStateWork + classes, from);
  }
  if (!from->next) {
    from->next = std::make_unique<Edge[]>(classes);
    parts_ += classes;
  }
  Edge& edge = from->next[program_.class_of[byte]];
  if (edge.counted == call_) return edge.to->node;
  count(from->key->stacks.size(), from);
  if (!edge.to) land(from, byte, edge);
  edge.counted = call_;
  count(edge.landed * kLandWork, from);
  if (edge.to->counted != call_) {
    edge.to->counted = call_;
    count(edge.to->work, from);
  }
  return edge.to->node;
}

GrammarMatcher::State GrammarMatcher::advance(const State& from, std::string_view bytes) {
  return advance(from, bytes, kNoWorkLimit);
}

GrammarMatcher::State GrammarMatcher::advance(const State& from, std::string_view bytes, uint64_t most_work) {
  if (!from) return {};
  begin(most_work);
  Node* node = from.node_;
  for (char c : bytes) node = step(node, uint8_t(c));
  return node == &dead_ ? State() : State(node);
}

GrammarMatcher::State GrammarMatcher::advance(const State& from, Token token) {
  const std::string_view bytes = trie_->bytes_of(token);
  return bytes.empty() ? State() : advance(from, bytes, limits_.work);
}

void GrammarMatcher::fill_mask(Node* from, std::vector<uint32_t>& bits) {
  const auto nodes = trie_->nodes();
  std::vector<Node*> path(size_t(trie_->depth()) + 1);
  path[0] = from;
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& at = nodes[i];
    Node* const next = step(path[at.depth], at.byte);
    if (next == &dead_) {
      i = at.after;
      continue;
    }
    path[at.depth + 1u] = next;
    for (Token t : trie_->tokens_at(i)) bits[size_t(t) / 32] |= 1u << (t % 32);
    ++i;
  }
}

GrammarMask GrammarMatcher::mask(const State& state, const std::function<bool()>& cancelled) {
  work_ = 0;
  if (!state) return ends_only_;
  Node* const node = state.node_;
  if (node->mask) {
    recent_.splice(recent_.begin(), recent_, node->recent);
    work_ = node->mask_work;
    return node->mask;
  }
  if (must_end(state)) return ends_only_;
  node->failed = false;
  std::vector<uint32_t> bits(trie_->words(), 0);
  try {
    if (!node->trouble.empty()) throw Error(node->trouble);
    begin(limits_.work);
    if (cancelled) cancelled_ = &cancelled;
    fill_mask(node, bits);
  } catch (const Error& e) {
    node->trouble = e.what();
    work_ = limits_.work;
    throw;
  }
  const bool none = std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; });
  if (can_end(state) || none)
    for (size_t i = 0; i < bits.size(); ++i) bits[i] |= (*ends_only_)[i];
  keep_mask(node, std::make_shared<const std::vector<uint32_t>>(std::move(bits)));
  return node->mask;
}

// Masks of states that nobody holds make room, those used longest ago first. Texts that wait for one another's masks
// hold their states: each finds its own mask when all are there.
void GrammarMatcher::keep_mask(Node* node, GrammarMask mask) {
  recent_.push_front(node);
  node->recent = recent_.begin();
  node->mask = std::move(mask);
  node->mask_work = work_;
  const size_t most = std::max<size_t>(1, limits_.mask_bytes / (trie_->words() * sizeof(uint32_t)));
  for (auto at = recent_.end(); recent_.size() > most && at != recent_.begin();) {
    --at;
    if (*at == node || held(**at)) continue;
    (*at)->mask.reset();
    at = recent_.erase(at);
  }
  count_bytes();
}

bool GrammarMatcher::has_mask(const State& state) const {
  return !state || state.node_->mask || !state.node_->trouble.empty() || must_end(state);
}

// Nothing may leave this: the thread is everybody's.
void GrammarMatcher::make_lent_mask() {
  try {
    if (full(1)) forget();
    mask(lent_, [loan = loan_.get()] { return loan->wanted.load(); });
  } catch (const Error&) {  // whoever asks for that mask is told again
  } catch (const GrammarCancelled&) {
  } catch (const std::exception&) {  // no memory
    if (lent_) lent_.node_->failed = true;
  }
  slow_ = slow_ || work_ > kSlowWork;
}

void GrammarMatcher::lend(const State& state, Background& to) {
  SX_ASSERT(!lent());
  try {
    auto loan = std::make_shared<Loan>();
    std::function<void()> task = [this, loan] {
      {
        const std::lock_guard lock(loan->mutex);
        if (loan->over) return;
        loan->begun = true;
      }
      make_lent_mask();
      const std::lock_guard lock(loan->mutex);
      loan->over = true;
      loan->changed.notify_all();
    };
    lent_ = state, loan_ = std::move(loan);  // nothing is thrown from here on
    to.add(std::move(task));
  } catch (const std::bad_alloc&) {
    if (state) state.node_->failed = true;
  }
}

bool GrammarMatcher::lent() const {
  if (!loan_) return false;
  const std::lock_guard lock(loan_->mutex);
  return !loan_->over;
}

void GrammarMatcher::take_back() {
  if (!loan_) return;
  {
    std::unique_lock lock(loan_->mutex);
    loan_->wanted = true;
    loan_->changed.wait(lock, [&] { return !loan_->begun || loan_->over; });
    loan_->over = true;
  }
  loan_ = nullptr;
  lent_ = {};
}

void GrammarMatcher::give_up(const State& state) {
  if (!loan_ || !(lent_ == state)) return;
  const std::lock_guard lock(loan_->mutex);
  loan_->wanted = true;
  if (!loan_->begun) loan_->over = true;
}

bool GrammarMatcher::can_end(const State& state) const { return state && state.node_->key->can_end; }
bool GrammarMatcher::must_end(const State& state) const { return can_end(state) && state.node_->key->stacks.empty(); }

std::string GrammarMatcher::forced(const State& state, size_t most) {
  std::string out;
  if (!state) return out;
  begin(limits_.work);
  for (Node* node = state.node_; out.size() < most && !node->key->can_end;) {
    int byte = -1;
    for (const Frame* frame : node->key->stacks) {
      for (const GrammarProgram::Edge& edge : program_.edges_of(program_.nodes[frame->node])) {
        if (edge.low != edge.high || (byte >= 0 && byte != edge.low)) byte = 256;
        else if (byte < 0) byte = edge.low;
      }
      if (byte == 256) break;
    }
    if (byte < 0 || byte == 256) break;
    out += char(byte);
    try {
      node = step(node, uint8_t(byte));
    } catch (const Error&) {
      break;  // what comes then is not known
    }
  }
  if (std::count(out.begin(), out.end(), kControlByte) % 2 == 1) out.resize(out.rfind(kControlByte));
  out.resize(out.size() - utf8_open_tail(out));
  return out;
}

// Keeps the states that are still held, without their successors, and their stacks.
void GrammarMatcher::forget() {
  for (auto& [key, node] : states_) node.next.reset();
  landings_.clear();
  parts_ = 0;
  std::unordered_set<const Frame*> used;
  for (auto it = states_.begin(); it != states_.end();) {
    Node& node = it->second;
    if (!held(node)) {
      if (node.mask) recent_.erase(node.recent);
      it = states_.erase(it);
      continue;
    }
    parts_ += it->first.stacks.size();
    for (const Frame* f : it->first.stacks)
      for (; f && used.insert(f).second; f = f->below) {}
    ++it;
  }
  std::erase_if(frames_, [&](const Frame& f) { return !used.contains(&f); });
  most_states_ = std::max(limits_.states, 2 * states_.size());
  most_parts_ = std::max(limits_.parts, 2 * parts());
}

// Each node of a container has a link, its hash and what the allocator adds.
void GrammarMatcher::count_bytes() {
  constexpr size_t kMore = 32;
  bytes_.store(program_.nodes.size() * sizeof(GrammarProgram::Node) +
                   program_.edges.size() * sizeof(GrammarProgram::Edge) + frames_.size() * (sizeof(Frame) + kMore) +
                   parts_ * sizeof(Edge) + states_.size() * (sizeof(Key) + sizeof(Node) + kMore) +
                   landings_.size() * (sizeof(Stacks) + sizeof(Landing) + kMore) +
                   recent_.size() * trie_->words() * sizeof(uint32_t),
               std::memory_order_relaxed);
}

std::shared_ptr<GrammarMatcher> GrammarCache::find(const std::string& gbnf) {
  const auto found = known_.find(gbnf);
  return found == known_.end() ? nullptr : found->second.lock();
}

void GrammarCache::keep(const std::string& gbnf, const std::shared_ptr<GrammarMatcher>& matcher) {
  known_[gbnf] = matcher;
  recent_.remove(matcher);
  recent_.push_front(matcher);
  size_t bytes = 0, kept = 0;
  const auto fits = [&](const auto& one) {
    bytes += one->bytes();
    return ++kept <= limits_.most && (kept <= limits_.always || bytes <= limits_.bytes);
  };
  recent_.erase(std::ranges::find_if_not(recent_, fits), recent_.end());
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
}

std::shared_ptr<GrammarMatcher> GrammarCache::compile(const std::string& gbnf) {
  return {new GrammarMatcher(gbnf, trie_), [to = std::weak_ptr(background_)](GrammarMatcher* matcher) {
            const auto background = to.lock();
            if (background) background->add([matcher] { delete matcher; });
            else delete matcher;
          }};
}

std::shared_ptr<GrammarMatcher> GrammarCache::known(const std::string& gbnf) {
  const std::lock_guard lock(mutex_);
  auto matcher = find(gbnf);
  if (matcher) keep(gbnf, matcher);
  return matcher;
}

std::shared_ptr<GrammarMatcher> GrammarCache::get(const std::string& gbnf) {
  if (auto matcher = known(gbnf)) return matcher;
  auto matcher = compile(gbnf);
  // The first mask, too, is made where nobody else waits.
  try {
    matcher->mask(matcher->start());
  } catch (const Error&) {}  // whoever asks for that mask is told again
  const std::lock_guard lock(mutex_);
  if (auto other = find(gbnf)) matcher = std::move(other);  // another thread was faster: all get one
  keep(gbnf, matcher);
  return matcher;
}

}  // namespace sx
