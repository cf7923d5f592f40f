#include "model/tree_invariance.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "kv/sequence_table.h"
#include "model/model.h"

namespace sx::testing {
namespace {

struct Tree {
  std::vector<Token> token;
  std::vector<int> parent, depth;
  std::vector<uint64_t> ancestors;  // [nodes][words]
  int words = 0;
};

Tree random_tree(int nodes, int vocab, std::mt19937& random) {
  Tree t;
  t.words = (nodes + 63) / 64;
  t.ancestors.assign(size_t(nodes * t.words), 0);
  for (int i = 0; i < nodes; ++i) {
    const int parent = i == 0 ? -1 : int(random() % unsigned(i));
    t.token.push_back(Token(random() % unsigned(vocab)));
    t.parent.push_back(parent);
    t.depth.push_back(parent < 0 ? 0 : t.depth[size_t(parent)] + 1);
    for (int w = 0; w < t.words && parent >= 0; ++w)
      t.ancestors[size_t(i * t.words + w)] = t.ancestors[size_t(parent * t.words + w)];
    t.ancestors[size_t(i * t.words + i / 64)] |= 1ull << (i % 64);
  }
  return t;
}

std::vector<NodeId> path_to(const Tree& t, int node) {
  std::vector<NodeId> path;
  for (int at = node; at >= 0; at = t.parent[size_t(at)]) path.insert(path.begin(), at);
  return path;
}

class Runner {
 public:
  Runner(const std::string& path, const TreeSubject& subject, int threads, const KvTypes& kv_type, int slots)
      : backend_(subject.make(threads)) {
    ModelOptions o;
    o.max_rows = 700, o.max_outputs = 700, o.context = 1400;
    model_ = Model::load(ModelFile::open(path), *backend_, o);
    kv_ = backend_->make_kv(model_->kv_geometry(slots, 1400, kv_type));
  }
  int vocab() const { return model_->config().vocab; }

  // Rows of several sequences; logits of all rows.
  std::vector<float> step(const std::vector<Token>& tokens, const std::vector<int32_t>& positions,
                          const std::vector<SeqRows>& seqs) {
    std::vector<int32_t> outputs(tokens.size());
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = int32_t(i);
    const float* logits = model_->forward({tokens, positions, seqs, outputs}, *kv_).logits;
    std::vector<float> out(tokens.size() * size_t(vocab()));
    backend_->download(out.data(), logits, out.size());
    return out;
  }
  std::vector<float> chain(int slot, int history, const std::vector<Token>& tokens) {
    std::vector<int32_t> positions;
    for (size_t i = 0; i < tokens.size(); ++i) positions.push_back(history + int32_t(i));
    return step(tokens, positions, {{0, int(tokens.size()), slot, history, nullptr, 0}});
  }
  // The beginning of a text.
  void fill(int slot, const std::vector<Token>& text) {
    for (size_t at = 0; at < text.size(); at += 500) {
      const std::vector<Token> part(text.begin() + ptrdiff_t(at),
                                    text.begin() + ptrdiff_t(std::min(text.size(), at + 500)));
      std::vector<int32_t> positions(part.size());
      std::iota(positions.begin(), positions.end(), int32_t(at));
      const SeqRows seq{0, int(part.size()), slot, int(at)};
      model_->forward({part, positions, std::span(&seq, 1), {}, true}, *kv_);
    }
  }
  void move(int slot, std::span<const KvMove> moves) {
    backend_->kv_move({kv_.get(), kv_.get(), slot, slot, moves, model_->rope_frequencies().data(),
                       model_->config().rope.dims, model_->config().rope.style});
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
};

std::vector<Token> random_text(int n, int vocab, std::mt19937& random) {
  std::vector<Token> text(static_cast<size_t>(n));
  for (auto& t : text) t = Token(random() % unsigned(vocab));
  return text;
}

bool same_row(const std::vector<float>& a, size_t row_a, const std::vector<float>& b, size_t row_b, int vocab) {
  return std::memcmp(&a[row_a * size_t(vocab)], &b[row_b * size_t(vocab)], size_t(vocab) * sizeof(float)) == 0;
}

// The same tree with its nodes numbered level by level.
Tree by_level(const Tree& t) {
  std::vector<int> order(t.token.size()), number(t.token.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return t.depth[size_t(a)] < t.depth[size_t(b)]; });
  Tree out;
  out.words = t.words;
  out.ancestors.assign(t.ancestors.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto from = size_t(order[i]);
    number[from] = int(i);
    const int parent = t.parent[from] < 0 ? -1 : number[size_t(t.parent[from])];
    out.token.push_back(t.token[from]);
    out.parent.push_back(parent);
    out.depth.push_back(t.depth[from]);
    uint64_t* mine = &out.ancestors[i * size_t(t.words)];
    if (parent >= 0) std::copy_n(&out.ancestors[size_t(parent * t.words)], t.words, mine);
    mine[i / 64] |= 1ull << (i % 64);
  }
  return out;
}

// The sizes of the steps in which a tree is written: its levels (numbered level by level), or anything.
std::vector<int> portions(const Tree& t, bool levels, std::mt19937& random) {
  std::vector<int> sizes;
  for (int done = 0, nodes = int(t.token.size()); done < nodes; done += sizes.back()) {
    int rows = std::min(nodes - done, 1 + int(random() % 60));
    if (levels) rows = int(std::count(t.depth.begin(), t.depth.end(), t.depth[size_t(done)]));
    sizes.push_back(rows);
  }
  return sizes;
}

// A sequence whose tree is written in one step (slot 2 + s) and, portion by portion, in several (slot s).
struct Growing {
  Tree tree;
  int slot, history;
  std::vector<Token> text;  // [history]
  std::vector<int> sizes;   // of the portions
  std::vector<float> once;  // logits of all nodes from the single step
  int done = 0;             // nodes written so far

  std::vector<int32_t> positions(int from, int rows) const {
    std::vector<int32_t> out;
    for (int i = from; i < from + rows; ++i) out.push_back(history + tree.depth[size_t(i)]);
    return out;
  }
  SeqRows rows_at(int first_row, int rows, int into, int uncommitted) const {
    return {first_row, rows, into, history, &tree.ancestors[size_t(uncommitted * tree.words)], tree.words, uncommitted};
  }
};

Growing make_growing(Runner& run, int slot, int history, Tree tree, bool levels, std::mt19937& random) {
  Growing g{std::move(tree), slot, history, random_text(history, run.vocab(), random), {}, {}};
  g.sizes = portions(g.tree, levels, random);
  for (const int s : {slot, 2 + slot}) run.fill(s, g.text);
  const int nodes = int(g.tree.token.size());
  g.once = run.step(g.tree.token, g.positions(0, nodes), {g.rows_at(0, nodes, 2 + slot, 0)});
  return g;
}

// The path to the last node, decoded plainly in slot 4.
void check_last_path(Runner& run, const Growing& g) {
  run.fill(4, g.text);
  int at = g.history;
  for (const NodeId node : path_to(g.tree, int(g.tree.token.size()) - 1)) {
    const auto one = run.chain(4, at++, {g.tree.token[size_t(node)]});
    ASSERT_TRUE(same_row(one, 0, g.once, size_t(node), run.vocab())) << "history " << g.history << " node " << node;
  }
}

}  // namespace

// Two sequences with their own trees in one pass; every node of both against its path decoded one token at a time.
void check_tree(const std::string& path, const TreeSubject& subject, const KvTypes& kv_type,
                std::pair<int, int> histories, int nodes, unsigned seed) {
  std::mt19937 random(seed);
  Runner tree_run(path, subject, 3, kv_type, 2), plain(path, subject, 1, kv_type, 1);
  const int vocab = plain.vocab(), history[2] = {histories.first, histories.second};
  std::vector<Token> text[2];
  Tree trees[2] = {random_tree(nodes, vocab, random), random_tree(nodes / 2 + 1, vocab, random)};
  std::vector<Token> tokens;
  std::vector<int32_t> positions;
  std::vector<SeqRows> seqs;
  for (int s = 0; s < 2; ++s) {
    text[s] = random_text(history[s], vocab, random);
    tree_run.fill(s, text[s]);
    seqs.push_back({int32_t(tokens.size()), int32_t(trees[s].token.size()), s, history[s], trees[s].ancestors.data(),
                    trees[s].words});
    for (size_t i = 0; i < trees[s].token.size(); ++i) {
      tokens.push_back(trees[s].token[i]);
      positions.push_back(history[s] + trees[s].depth[i]);
    }
  }
  const auto logits = tree_run.step(tokens, positions, seqs);
  for (int s = 0; s < 2; ++s) {
    plain.fill(0, text[s]);
    const Tree& t = trees[s];
    for (int probe = 0; probe < 6; ++probe) {
      const auto path_nodes =
          path_to(t, probe == 0 ? int(t.token.size()) - 1 : int(random() % unsigned(t.token.size())));
      for (size_t i = 0; i < path_nodes.size(); ++i) {
        const auto one = plain.chain(0, history[s] + int(i), {t.token[size_t(path_nodes[i])]});
        ASSERT_TRUE(same_row(logits, size_t(seqs[size_t(s)].first_row + path_nodes[i]), one, 0, vocab))
            << subject.name << " KV " << kv_types_name(kv_type) << " history " << history[s] << " node "
            << path_nodes[i];
      }
    }
    // Commit the path to the last node and go on: same bits as if it had been decoded plainly.
    const auto kept = path_to(t, int(t.token.size()) - 1);
    std::vector<KvMove> moves;
    SequenceTable sequences(1, 1400);
    sequences.open();
    sequences.append(0, history[s]);
    sequences.add_uncommitted(0, int(t.token.size()));
    sequences.commit(0, kept, moves);
    tree_run.move(s, moves);
    for (size_t i = 0; i < kept.size(); ++i) plain.chain(0, history[s] + int(i), {t.token[size_t(kept[i])]});
    const auto next_plain = plain.chain(0, sequences.length(0), {7}),
               next = tree_run.chain(s, sequences.length(0), {7});
    ASSERT_TRUE(same_row(next, 0, next_plain, 0, vocab)) << subject.name << " after the commit";
  }
}

// Two sequences grow their trees side by side, each in its own portions; the shorter one drops out of the last steps.
// Every node against the tree written in one step, and some paths against plain decoding.
void check_grown(const std::string& path, const TreeSubject& subject, const KvTypes& kv_type,
                 std::pair<int, int> history, int nodes, bool levels, unsigned seed) {
  SCOPED_TRACE(fmt::format("{} KV {} seed {}", subject.name, kv_types_name(kv_type), seed));
  std::mt19937 random(seed);
  Runner run(path, subject, 2, kv_type, 5);
  const auto tree = [&](int size) {
    const Tree t = random_tree(size, run.vocab(), random);
    return levels ? by_level(t) : t;
  };
  std::vector<Growing> all;
  all.push_back(make_growing(run, 0, history.first, tree(nodes), levels, random));
  all.push_back(make_growing(run, 1, history.second, tree(nodes / 2 + 1), levels, random));
  for (size_t n = 0; n < std::max(all[0].sizes.size(), all[1].sizes.size()); ++n) {
    std::vector<Token> tokens;
    std::vector<int32_t> positions;
    std::vector<SeqRows> seqs;
    for (Growing& g : all) {
      if (n >= g.sizes.size()) continue;
      seqs.push_back(g.rows_at(int(tokens.size()), g.sizes[n], g.slot, g.done));
      const auto more = g.positions(g.done, g.sizes[n]);
      positions.insert(positions.end(), more.begin(), more.end());
      tokens.insert(tokens.end(), g.tree.token.begin() + g.done, g.tree.token.begin() + g.done + g.sizes[n]);
      g.done += g.sizes[n];
    }
    const auto logits = run.step(tokens, positions, seqs);
    for (const SeqRows& q : seqs)
      for (int i = 0; i < q.rows; ++i) {
        const auto& once = all[size_t(q.slot)].once;
        ASSERT_TRUE(same_row(logits, size_t(q.first_row + i), once, size_t(q.uncommitted + i), run.vocab()))
            << "history " << q.history << " node " << q.uncommitted + i << " uncommitted " << q.uncommitted;
      }
  }
  for (const Growing& g : all) check_last_path(run, g);
}

}  // namespace sx::testing
