// Prompt lookup: the text's last n tokens are looked for earlier in the text, long n first, and what followed the most
// recent occurrence is copied. Index: per n, a hash table from n-grams to the last two places where they end.
#include <algorithm>
#include <bit>
#include <vector>

#include "base/rng.h"
#include "speculative/draft/index.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

constexpr int kLongestMatch = 64;  // tokens compared backwards to tell how good a match is

class NgramDrafter final : public IndexDrafter {
 public:
  NgramDrafter(const IndexConfig& config, const TreeConfig& tree, const IndexLimits& limits)
      : IndexDrafter(tree, limits), min_(config.ngram_min), max_(config.ngram_max), tables_(size_t(limits.slots)) {
    if (min_ < 1 || max_ < min_)
      fail("n-gram drafter: lengths {} to {}, expected 1 <= ngram_min <= ngram_max", min_, max_);
  }

 protected:
  void make_index(SeqId seq, int capacity) override {
    const size_t size = std::bit_ceil(2 * static_cast<size_t>(capacity));
    tables_[size_t(seq)].assign(size_t(max_ - min_ + 1), std::vector<Entry>(size));
  }

  void clear_index(SeqId seq) override {
    for (auto& table : tables_[size_t(seq)]) std::fill(table.begin(), table.end(), Entry());
  }

  void extend_index(SeqId seq, std::span<const Token> text, int from, int to) override {
    for (int end = from + 1; end <= to; ++end) {
      uint64_t hash = 0;
      for (int n = 1; n <= std::min(max_, end); ++n) {
        hash = extend_hash(hash, text[size_t(end - n)]);
        if (n < min_) continue;
        Entry& entry = find(seq, text, end, n, hash);
        entry = {end, entry.last};
      }
    }
  }

  Cut propose(SeqId seq, std::span<const Token> text, const TreeLimits& limits, Proposal& proposal) override {
    const int size = static_cast<int>(text.size());
    const int source = earlier_end(seq, text);
    if (source == 0) return {};
    int matched = 1;
    const auto agree = [&](int back) { return text[size_t(source - 1 - back)] == text[size_t(size - 1 - back)]; };
    while (matched < std::min(source, kLongestMatch) && agree(matched)) ++matched;
    const int nodes = std::min(limits.nodes, limits.depth);
    for (int i = 0; i < nodes; ++i) {
      Proposal::Node& parent = proposal.nodes.back();
      parent.bucket = Calibration::bucket(matched + i, 1);
      // A copy that has reached the end of the text goes on with what it has copied.
      const Token token = text[size_t(source + i % (size - source))];
      const float probability = parent.probability * calibration(seq).chance(parent.bucket);
      proposal.nodes.push_back({i, token, i + 1, 1, probability, 0});
    }
    return cut(proposal, limits.verify_cost);
  }

 private:
  // Ends of occurrences, counted in tokens from the beginning: the n-gram is text[end - n, end). 0: none.
  struct Entry {
    int32_t last = 0, previous = 0;
  };

  static uint64_t extend_hash(uint64_t hash, Token token) {
    return (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15ull + 0x94d049bb133111ebull;
  }

  // Of the n-gram that ends at `end`; an unused entry if it is new. Tables are at most half full.
  Entry& find(SeqId seq, std::span<const Token> text, int end, int n, uint64_t hash) {
    auto& table = tables_[size_t(seq)][size_t(n - min_)];
    const size_t mask = table.size() - 1;
    size_t i = mix64(hash) & mask;
    const auto begin = text.begin() + (end - n);
    while (table[i].last != 0 && !std::equal(begin, begin + n, text.begin() + (table[i].last - n))) i = (i + 1) & mask;
    return table[i];
  }

  // Where the longest n-gram at the text's end ended before, or 0.
  int earlier_end(SeqId seq, std::span<const Token> text) {
    const int size = static_cast<int>(text.size());
    uint64_t hash = 0;
    int end = 0;
    for (int n = 1; n <= std::min(max_, size); ++n) {
      hash = extend_hash(hash, text[size_t(size - n)]);
      if (n < min_) continue;
      const int found = find(seq, text, size, n, hash).previous;
      if (found == 0) break;  // then no longer one has come before either
      end = found;
    }
    return end;
  }

  int min_, max_;
  std::vector<std::vector<std::vector<Entry>>> tables_;  // [slots][max - min + 1][entries]
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter(const IndexConfig& config, const TreeConfig& tree,
                                            const IndexLimits& limits) {
  return std::make_unique<NgramDrafter>(config, tree, limits);
}

const DrafterEntry kNgramDrafter{
    .name = "ngram",
    .claims = [](const DraftSource& source) { return source.kind == DrafterKind::kNgram; },
    .make =
        [](const DraftContext& c) {
          return make_ngram_drafter(c.config->index, c.tree, {c.slots, c.context, c.target->config().vocab});
        },
};

}  // namespace sx
