// A tree against plain decoding: every node's logits must have the bits its path has when decoded token by token, on every
// instruction set, across block and span borders, with several ragged sequences in one pass, and after a commit.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "backend/registry.h"
#include "kv/book.h"
#include "model/llama.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;

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
    for (int w = 0; w < t.words && parent >= 0; ++w) t.ancestors[size_t(i * t.words + w)] = t.ancestors[size_t(parent * t.words + w)];
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
  Runner(const std::string& path, cpu::Isa isa, int threads, DType kv_type, int slots)
      : backend_(make_cpu_backend({threads, isa})) {
    ModelOptions o;
    o.max_rows = 700, o.max_outputs = 700, o.context = 1400;
    model_ = Model::load(ModelFile::open(path), *backend_, o);
    kv_ = backend_->make_kv(model_->kv_geometry(slots, 1400, kv_type));
  }
  int vocab() const { return model_->config().vocab; }

  // Rows of several sequences; logits of all rows.
  std::vector<float> step(const std::vector<Token>& tokens, const std::vector<int32_t>& positions, const std::vector<SeqRows>& seqs) {
    std::vector<int32_t> outputs(tokens.size());
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = int32_t(i);
    const float* logits = model_->forward({tokens, positions, seqs, outputs}, *kv_).logits;
    return {logits, logits + tokens.size() * size_t(vocab())};
  }
  std::vector<float> chain(int slot, int history, const std::vector<Token>& tokens) {
    std::vector<int32_t> positions;
    for (size_t i = 0; i < tokens.size(); ++i) positions.push_back(history + int32_t(i));
    return step(tokens, positions, {{0, int(tokens.size()), slot, history, nullptr, 0}});
  }
  void move(int slot, std::span<const KvMove> moves) {
    backend_->kv_move({kv_.get(), kv_.get(), slot, slot, moves, model_->rope_frequencies().data(), model_->config().rope.dims,
                       model_->config().rope.style});
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

// Two sequences with their own trees in one pass; every node of both against its path decoded one token at a time.
void check(const std::string& path, cpu::Isa isa, DType kv_type, int history_a, int history_b, int nodes, unsigned seed) {
  std::mt19937 random(seed);
  Runner tree_run(path, isa, 3, kv_type, 2), plain(path, isa, 1, kv_type, 1);
  const int vocab = plain.vocab(), history[2] = {history_a, history_b};
  std::vector<Token> text[2];
  Tree trees[2] = {random_tree(nodes, vocab, random), random_tree(nodes / 2 + 1, vocab, random)};
  std::vector<Token> tokens;
  std::vector<int32_t> positions;
  std::vector<SeqRows> seqs;
  for (int s = 0; s < 2; ++s) {
    text[s] = random_text(history[s], vocab, random);
    if (history[s] > 0) tree_run.chain(s, 0, text[s]);
    seqs.push_back({int32_t(tokens.size()), int32_t(trees[s].token.size()), s, history[s], trees[s].ancestors.data(), trees[s].words});
    for (size_t i = 0; i < trees[s].token.size(); ++i) {
      tokens.push_back(trees[s].token[i]);
      positions.push_back(history[s] + trees[s].depth[i]);
    }
  }
  const auto logits = tree_run.step(tokens, positions, seqs);
  for (int s = 0; s < 2; ++s) {
    if (history[s] > 0) plain.chain(0, 0, text[s]);
    const Tree& t = trees[s];
    for (int probe = 0; probe < 6; ++probe) {
      const auto path_nodes = path_to(t, probe == 0 ? int(t.token.size()) - 1 : int(random() % unsigned(t.token.size())));
      for (size_t i = 0; i < path_nodes.size(); ++i) {
        const auto one = plain.chain(0, history[s] + int(i), {t.token[size_t(path_nodes[i])]});
        ASSERT_TRUE(same_row(logits, size_t(seqs[size_t(s)].first_row + path_nodes[i]), one, 0, vocab))
            << cpu::isa_name(isa) << " KV " << dtype_name(kv_type) << " history " << history[s] << " node " << path_nodes[i];
      }
    }
    // Commit the path to the last node and go on: same bits as if it had been decoded plainly.
    const auto kept = path_to(t, int(t.token.size()) - 1);
    std::vector<KvMove> moves;
    KvBook book(1, 1400);
    book.open();
    book.append(0, history[s]);
    book.stage(0, int(t.token.size()));
    book.commit(0, kept, moves);
    tree_run.move(s, moves);
    for (size_t i = 0; i < kept.size(); ++i) plain.chain(0, history[s] + int(i), {t.token[size_t(kept[i])]});
    const auto next_plain = plain.chain(0, book.length(0), {7}), next = tree_run.chain(s, book.length(0), {7});
    ASSERT_TRUE(same_row(next, 0, next_plain, 0, vocab)) << cpu::isa_name(isa) << " after the commit";
  }
}

TEST(Tree, EveryNodeEqualsItsPathDecodedPlainly) {
  const TempFolder folder;
  TinySpec spec;
  spec.weights = DType::kQ8_0, spec.heads = 6, spec.kv_heads = 2, spec.width = 96, spec.ffn = 96;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  unsigned seed = 1;
  for (cpu::Isa isa : cpu::available_isas())
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0})
      for (auto [a, b] : {std::pair{0, 5}, {63, 64}, {100, 511}, {508, 130}})
        check(folder.file("tiny.gguf"), isa, type, a, b, 1 + int(seed * 7 % 40), seed), ++seed;
}

TEST(Tree, LargeTreesAndLongHistories) {
  const TempFolder folder;
  TinySpec spec;
  spec.weights = DType::kQ4_1, spec.layers = 1;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  const cpu::Isa isa = cpu::available_isas().front();
  check(folder.file("tiny.gguf"), isa, DType::kBF16, 600, 1, 300, 91);
  spec.window = 40;
  testing::write_tiny_gguf(folder.file("window.gguf"), spec);
  check(folder.file("window.gguf"), isa, DType::kBF16, 130, 30, 30, 92);
}

}  // namespace
}  // namespace sx
