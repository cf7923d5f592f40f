// Which tokens may come next in a text that a grammar describes. A state is the set of stacks the grammar's machine may
// be in; equal states are one object, which keeps its mask and where each byte leads, so that a state met before costs
// nothing. What is kept is bounded: states nobody holds are forgotten when there are too many. For one thread, which
// may lend it to another.
//
// The work of a call is counted as if nothing had been kept: it is a function of the grammar, the state and the
// vocabulary, whatever was asked before. So is whether a mask is refused for its work.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/background.h"
#include "text/grammar/program.h"
#include "text/grammar/token_trie.h"

namespace sx {

using GrammarMask = std::shared_ptr<const std::vector<uint32_t>>;  // [words of the vocabulary] bits

struct GrammarLimits {
  size_t stacks = 2048;                    // of a state, below 65536; a grammar that needs more is too ambiguous
  size_t states = 16384, parts = 1 << 19;  // states, their stacks and frames kept before the unused ones are forgotten
  size_t mask_bytes = 8 << 20;             // of the masks kept, beside those of states that are held
  uint64_t work = 1 << 22;  // of a mask, some nanoseconds each; a grammar that needs more is too ambiguous
};

// Thrown out of a mask whose request has been cancelled. It says nothing about the grammar.
struct GrammarCancelled {};

class GrammarMatcher {
  struct Frame;
  struct Node;

 public:
  // A place in a text of the grammar. Cheap to copy; the matcher must outlive it. Empty: no text of the grammar begins
  // so. While it is held, its mask is kept. Copies may be made and let go while the matcher is lent.
  class State {
   public:
    State() = default;
    State(const State& other) : State(other.node_) {}
    State(State&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
    State& operator=(State other) noexcept { return std::swap(node_, other.node_), *this; }
    ~State() {
      if (node_) unpin(node_);
    }
    explicit operator bool() const { return node_ != nullptr; }
    bool operator==(const State& other) const { return node_ == other.node_; }

   private:
    friend class GrammarMatcher;
    explicit State(Node* node) : node_(node) {
      if (node_) pin(node_);
    }
    Node* node_ = nullptr;
  };

  // Throws sx::Error naming what is wrong with the grammar.
  GrammarMatcher(std::string_view gbnf, std::shared_ptr<const TokenTrie> trie, const GrammarLimits& limits = {});
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  const TokenTrie& trie() const { return *trie_; }

  // advance and mask throw sx::Error when the grammar is too ambiguous: when a text can be read in too many ways, or
  // when a mask would take too much work. advance never does so with a token that the mask of its state allows. Bytes
  // may take any work, a token what a mask may.
  State start() const { return start_; }
  State advance(const State& from, std::string_view bytes);
  State advance(const State& from, Token token);  // empty for tokens that end a text, too
  // Tokens that may follow: those after which some text of the grammar goes on, and the ends where it may end. Never
  // without any: where the vocabulary lacks the bytes to go on, the ends stand in. `cancelled` is asked now and then;
  // when it says yes, GrammarCancelled is thrown.
  GrammarMask mask(const State& state, const std::function<bool()>& cancelled = {});
  GrammarMask ends_only() const { return ends_only_; }
  bool can_end(const State& state) const;
  bool must_end(const State& state) const;  // nothing but the end may follow
  // The bytes that must come next, up to `most`, whole characters and control tokens only. Where the grammar is too
  // ambiguous they end.
  std::string forced(const State& state, size_t most);

  // Of the last advance, mask or forced. That of a refused mask is the whole of GrammarLimits::work.
  uint64_t work() const { return work_; }
  const GrammarLimits& limits() const { return limits_; }

  // For those who must not wait long: that a mask will be found at once, and that a call would first have to go over
  // all that is kept. Where its owner asks that and lends the matcher then, calls that are not for a mask leave it be.
  bool has_mask(const State& state) const;
  bool crowded() const { return full(1); }
  void forget_when_lent() { slack_ = 2; }

  // Another thread makes the mask of a state, which is long work, and forgets what it may. While the matcher is lent()
  // nobody else may use it. take_back() ends that, done or not, and waits for it; give_up() says that nobody wants the
  // mask of this state any more, and does not wait.
  void lend(const State& state, Background& to);
  bool lent() const;
  void take_back();
  void give_up(const State& state);
  // Whether there was no memory to lend it, or to make the mask of a state then. It may be asked for all the same.
  bool failed(const State& state) const { return state && state.node_->failed; }
  // Masks of this grammar may take long: one that was made while it was lent has.
  bool slow() const { return slow_; }

  // About the memory it takes, as of its last mask. Any thread may ask.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  size_t states() const { return states_.size(); }  // for tests
  size_t masks() const { return recent_.size(); }

 private:
  // Where the machine stands in a rule, and below it where it goes on afterwards. Equal stacks are one object.
  struct Frame {
    const Frame* below;
    uint32_t node;
    uint32_t count;              // kRepeat: rounds begun
    uint64_t id;                 // in order of making; not part of its identity
    uint64_t below_id;           // of `below`, 0: none
    mutable uint64_t visit = 0;  // the last closure it was looked at in
  };
  struct FrameHash {
    size_t operator()(const Frame& f) const;
  };
  struct FrameEqual {
    bool operator()(const Frame& a, const Frame& b) const;
  };
  using Stacks = std::vector<const Frame*>;  // by id, each once
  struct StacksHash {
    size_t operator()(const Stacks& stacks) const;
  };
  struct Key {
    Stacks stacks;  // all at kBytes
    bool can_end = false;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  // Stacks a byte leads to, before what takes no byte is followed, and the state they are. Many bytes of many states
  // lead to the same ones. `counted`, here and below: the call that counted its work last.
  struct Landing {
    Node* node = nullptr;
    uint32_t work = 0;
    uint64_t counted = 0;
  };
  struct Edge {
    Landing* to = nullptr;  // null: not known yet
    uint64_t counted : 48 = 0;
    uint64_t landed : 16 = 0;  // stacks that take the byte
  };
  struct Node {
    const Key* key = nullptr;
    std::atomic<int> pins{0};
    std::unique_ptr<Edge[]> next;  // [classes of bytes]; null: none is known yet
    uint64_t counted = 0;
    uint64_t mask_work = 0;
    GrammarMask mask;
    std::string trouble;                // why it can have no mask; empty: not known
    bool failed = false;                // there was no memory for its mask
    std::list<Node*>::iterator recent;  // valid while it has a mask
  };

  // What the owner and the thread that has the matcher know of each other.
  struct Loan {
    std::mutex mutex;
    std::condition_variable changed;
    bool begun = false, over = false;
    std::atomic<bool> wanted{false};  // back
  };

  State advance(const State& from, std::string_view bytes, uint64_t most_work);
  // The thread that has the matcher forgets a node only after it has seen the last holder let it go.
  static void pin(Node* node) { node->pins.fetch_add(1, std::memory_order_relaxed); }
  static void unpin(Node* node) { node->pins.fetch_sub(1, std::memory_order_release); }
  static bool held(const Node& node) { return node.pins.load(std::memory_order_acquire) > 0; }
  const Frame* push(const Frame* below, uint32_t node, uint32_t count = 0);
  const Frame* go(const Frame* below, uint32_t node);
  void visit(const Frame* frame);
  uint32_t close(Key& key, const Node* from);
  Node* intern(Key key);
  void land(const Node* from, uint8_t byte, Edge& edge);
  Node* step(Node* from, uint8_t byte);
  void fill_mask(Node* from, std::vector<uint32_t>& bits);
  void keep_mask(Node* node, GrammarMask mask);
  void make_lent_mask();
  void begin(uint64_t most_work);
  void count(uint64_t work, const Node* at);
  [[noreturn]] void too_ambiguous(const Node* at) const;
  std::string rule_at(const Node* at) const;
  bool full(size_t slack) const { return states_.size() >= slack * most_states_ || parts() >= slack * most_parts_; }
  void forget();
  size_t parts() const { return frames_.size() + parts_; }
  void count_bytes();

  const GrammarProgram program_;
  const std::shared_ptr<const TokenTrie> trie_;
  const GrammarLimits limits_;
  std::unordered_set<Frame, FrameHash, FrameEqual> frames_;
  std::unordered_map<Key, Node, KeyHash> states_;
  std::unordered_map<Stacks, Landing, StacksHash> landings_;
  std::list<Node*> recent_;  // states with masks, the latest first
  uint64_t next_id_ = 1;
  size_t parts_ = 0;                 // stacks and edges of all states, stacks of all landings
  size_t most_states_, most_parts_;  // that are kept before the unused ones are forgotten
  size_t slack_ = 1;                 // times as many are kept between masks
  std::atomic<size_t> bytes_{0};
  Key no_stacks_;
  Node dead_;  // where no stack is left
  GrammarMask ends_only_;
  State start_, lent_;
  std::shared_ptr<Loan> loan_;  // null: not lent
  bool slow_ = false;
  // The work of a call: which one it is, how much so far and at most, and who may cancel it.
  uint64_t call_ = 0, work_ = 0, most_work_ = 0, next_question_ = 0;
  const std::function<bool()>* cancelled_ = nullptr;
  // Working memory of step: frames to look at, the closure they are looked at in, and the stacks of a landing.
  std::vector<const Frame*> todo_;
  uint64_t visit_ = 0;
  Stacks landing_;
};

struct GrammarCacheLimits {
  size_t most = 64, always = 8;  // matchers that are kept; beyond `always` while all together take
  size_t bytes = 256 << 20;      // no more than this. One alone is bounded by its GrammarLimits
};

// Matchers by their grammar's text: the latest ones, and all that are held elsewhere. Any thread may ask; it compiles
// what is not there while others go on. A matcher itself belongs to one thread at a time; it may have a lot to free,
// and does so in the background.
class GrammarCache {
 public:
  explicit GrammarCache(std::shared_ptr<const TokenTrie> trie, const GrammarCacheLimits& limits = {})
      : trie_(std::move(trie)), limits_(limits) {}
  std::shared_ptr<GrammarMatcher> get(const std::string& gbnf);
  std::shared_ptr<GrammarMatcher> known(const std::string& gbnf);  // null: it is not there
  Background& background() { return *background_; }

 private:
  std::shared_ptr<GrammarMatcher> compile(const std::string& gbnf);
  std::shared_ptr<GrammarMatcher> find(const std::string& gbnf);
  void keep(const std::string& gbnf, const std::shared_ptr<GrammarMatcher>& matcher);

  const std::shared_ptr<const TokenTrie> trie_;
  const GrammarCacheLimits limits_;
  const std::shared_ptr<Background> background_ = std::make_shared<Background>();
  std::mutex mutex_;                                   // of what follows
  std::list<std::shared_ptr<GrammarMatcher>> recent_;  // the latest first
  std::unordered_map<std::string, std::weak_ptr<GrammarMatcher>> known_;
};

}  // namespace sx
