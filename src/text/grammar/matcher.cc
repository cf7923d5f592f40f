#include "text/grammar/matcher.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "text/unicode.h"

namespace sx {
namespace {

using Kind = GrammarProgram::Kind;

constexpr size_t kNewStates = 32768, kNewParts = 1 << 20;  // that one mask may add

}  // namespace

size_t GrammarMatcher::FrameHash::operator()(const Frame& f) const {
  return size_t(hash_key(f.below_id, f.node, f.count));
}

bool GrammarMatcher::FrameEqual::operator()(const Frame& a, const Frame& b) const {
  return a.below == b.below && a.node == b.node && a.count == b.count;
}

size_t GrammarMatcher::KeyHash::operator()(const Key& key) const {
  uint64_t hash = key.can_end;
  for (const Frame* f : key.stacks) hash = mix64(hash ^ f->id);
  return size_t(hash);
}

GrammarMatcher::GrammarMatcher(std::string_view gbnf, std::shared_ptr<const TokenTrie> trie, const GrammarLimits& limits)
    : program_(compile_grammar(parse_gbnf(gbnf))), trie_(std::move(trie)), limits_(limits), most_states_(limits.states),
      most_parts_(limits.parts) {
  dead_.key = &no_stacks_;
  std::vector<uint32_t> bits(trie_->words(), 0);
  for (Token end : trie_->ends()) bits[size_t(end) / 32] |= 1u << (end % 32);
  ends_only_ = std::make_shared<const std::vector<uint32_t>>(std::move(bits));
  Key key;
  todo_.push_back(push(nullptr, program_.start));
  close(key);
  start_ = State(intern(std::move(key)));
}

GrammarMatcher::~GrammarMatcher() = default;

const GrammarMatcher::Frame* GrammarMatcher::push(const Frame* below, uint32_t node, uint32_t count) {
  const auto [found, fresh] = frames_.insert({below, node, count, next_id_, below ? below->id : 0});
  next_id_ += fresh;
  return &*found;
}

// Follows a stack through everything that takes no byte. What a rule or round must return to is left out where it would return at once:
// rules that end with themselves do not grow the stack.
void GrammarMatcher::visit(const Frame* frame) {
  const GrammarProgram::Node& node = program_.nodes[frame->node];
  const auto onto = [&](uint32_t next) { return next == GrammarProgram::kReturnNode ? frame->below : push(frame->below, next); };
  switch (node.kind) {
    case Kind::kBytes: break;
    case Kind::kReturn:
      if (frame->below) todo_.push_back(frame->below);
      break;
    case Kind::kChoice:
      for (uint32_t i = 0; i < node.count; ++i) todo_.push_back(push(frame->below, program_.targets[node.first + i]));
      break;
    case Kind::kCall: todo_.push_back(push(onto(node.next), node.first)); break;
    case Kind::kRepeat: {
      if (frame->count >= node.least) todo_.push_back(push(frame->below, node.next));
      if (frame->count >= node.most) break;
      // Without a most, rounds beyond the least are all alike; after the last round nothing is left but to go on.
      const uint32_t begun = node.most == kNoLimit ? std::min(frame->count + 1, node.least) : frame->count + 1;
      todo_.push_back(push(begun == node.most ? onto(node.next) : push(frame->below, frame->node, begun), node.first));
      break;
    }
  }
}

// The state of the stacks in todo_.
void GrammarMatcher::close(Key& key) {
  seen_.clear();
  while (!todo_.empty()) {
    const Frame* frame = todo_.back();
    todo_.pop_back();
    if (!seen_.insert(frame).second) continue;
    if (seen_.size() > 4 * limits_.stacks) {
      todo_.clear();
      fail("grammar: too ambiguous: a text of it can be read in more than {} ways at once", limits_.stacks);
    }
    const Kind kind = program_.nodes[frame->node].kind;
    if (kind == Kind::kBytes) key.stacks.push_back(frame);
    if (kind == Kind::kReturn && !frame->below) key.can_end = true;
    visit(frame);
  }
  if (key.stacks.size() > limits_.stacks)
    fail("grammar: too ambiguous: a text of it can be read in more than {} ways at once", limits_.stacks);
  std::sort(key.stacks.begin(), key.stacks.end(), [](const Frame* a, const Frame* b) { return a->id < b->id; });
}

GrammarMatcher::Node* GrammarMatcher::intern(Key key) {
  if (key.stacks.empty() && !key.can_end) return &dead_;
  if (states_.size() >= most_states_ + kNewStates || parts() >= most_parts_ + kNewParts)
    fail("grammar: too ambiguous: one token leads to more than {} states", kNewStates);
  const auto [found, fresh] = states_.try_emplace(std::move(key));
  if (!fresh) return &found->second;
  found->second.key = &found->first;
  stacks_ += found->first.stacks.size();
  return &found->second;
}

GrammarMatcher::Node* GrammarMatcher::step(Node* from, uint8_t byte) {
  if (from == &dead_) return from;
  if (!from->next) from->next = std::make_unique<std::array<Node*, 256>>();
  Node*& next = (*from->next)[byte];
  if (next) return next;
  todo_.clear();
  for (const Frame* frame : from->key->stacks) {
    for (const GrammarProgram::Edge& edge : program_.edges_of(program_.nodes[frame->node])) {
      if (byte < edge.low) break;
      if (byte > edge.high) continue;
      todo_.push_back(push(frame->below, edge.next));
      break;
    }
  }
  Key key;
  close(key);
  return next = intern(std::move(key));
}

GrammarMatcher::State GrammarMatcher::advance(const State& from, std::string_view bytes) {
  if (!from) return {};
  forget();
  Node* node = from.node_;
  for (char c : bytes) node = step(node, uint8_t(c));
  return node == &dead_ ? State() : State(node);
}

GrammarMatcher::State GrammarMatcher::advance(const State& from, Token token) {
  const std::string_view bytes = trie_->bytes_of(token);
  return bytes.empty() ? State() : advance(from, bytes);
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

GrammarMask GrammarMatcher::mask(const State& state) {
  if (!state) return ends_only_;
  Node* const node = state.node_;
  if (node->mask) {
    recent_.splice(recent_.begin(), recent_, node->recent);
    return node->mask;
  }
  if (must_end(state)) return ends_only_;
  forget();
  std::vector<uint32_t> bits(trie_->words(), 0);
  fill_mask(node, bits);
  const bool none = std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; });
  if (can_end(state) || none)
    for (size_t i = 0; i < bits.size(); ++i) bits[i] |= (*ends_only_)[i];
  node->mask = std::make_shared<const std::vector<uint32_t>>(std::move(bits));
  recent_.push_front(node);
  node->recent = recent_.begin();
  while (recent_.size() > 1 && recent_.size() * trie_->words() * sizeof(uint32_t) > limits_.mask_bytes) {
    recent_.back()->mask.reset();
    recent_.pop_back();
  }
  return node->mask;
}

bool GrammarMatcher::can_end(const State& state) const { return state && state.node_->key->can_end; }
bool GrammarMatcher::must_end(const State& state) const { return can_end(state) && state.node_->key->stacks.empty(); }

std::string GrammarMatcher::forced(const State& state, size_t most) {
  std::string out;
  if (!state) return out;
  forget();
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
    node = step(node, uint8_t(byte));
  }
  out.resize(out.size() - utf8_open_tail(out));
  return out;
}

// Keeps the states somebody holds, without where they lead, and their stacks.
void GrammarMatcher::forget() {
  if (states_.size() < most_states_ && parts() < most_parts_) return;
  std::unordered_set<const Frame*> used;
  for (auto it = states_.begin(); it != states_.end();) {
    Node& node = it->second;
    node.next.reset();
    if (node.pins == 0) {
      if (node.mask) recent_.erase(node.recent);
      stacks_ -= it->first.stacks.size();
      it = states_.erase(it);
      continue;
    }
    for (const Frame* f : it->first.stacks)
      for (; f && used.insert(f).second; f = f->below) {}
    ++it;
  }
  std::erase_if(frames_, [&](const Frame& f) { return !used.contains(&f); });
  most_states_ = std::max(limits_.states, 2 * states_.size());
  most_parts_ = std::max(limits_.parts, 2 * parts());
}

std::shared_ptr<GrammarMatcher> GrammarCache::get(const std::string& gbnf) {
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& entry) { return entry.first == gbnf; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
  } else {
    recent_.emplace_front(gbnf, std::make_shared<GrammarMatcher>(gbnf, trie_));
    if (recent_.size() > capacity_) recent_.pop_back();
  }
  return recent_.front().second;
}

}  // namespace sx
