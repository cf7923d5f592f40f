// Batch invariance of draft heads: a row's states and logits have the same bits whether rows come in one step or in
// many, alone or beside other sequences, as a chain or as nodes of a tree that grows in portions, with one thread or
// with three.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "backend/registry.h"
#include "head_parts.h"
#include "model/heads/eagle.h"
#include "model/heads/medusa.h"

namespace sx {
namespace {

using testing::HeadParts;
using testing::TempFolder;
using testing::TinySpec;

constexpr int kContext = 700;

TinySpec target_spec() {
  TinySpec spec;
  spec.layers = 5;
  return spec;
}

// Rows of one sequence with all that a step wants of them; [rows, ..].
struct Rows {
  std::vector<Token> tokens;
  std::vector<int32_t> positions;
  std::vector<float> states;
  Rows part(size_t from, size_t count, size_t width) const {
    const auto cut = [&](const auto& all, size_t each) {
      return std::decay_t<decltype(all)>(all.begin() + ptrdiff_t(from * each),
                                         all.begin() + ptrdiff_t((from + count) * each));
    };
    return {cut(tokens, 1), cut(positions, 1), cut(states, width)};
  }
  Rows pick(std::span<const int> nodes, size_t width) const {
    Rows out;
    for (const int node : nodes) out.append(part(size_t(node), 1, width));
    return out;
  }
  void append(const Rows& more) {
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
    positions.insert(positions.end(), more.positions.begin(), more.positions.end());
    states.insert(states.end(), more.states.begin(), more.states.end());
  }
};

Rows random_rows(int count, int position, int vocab, size_t width, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Rows out;
  for (int i = 0; i < count; ++i) {
    out.tokens.push_back(Token(random() % unsigned(vocab)));
    out.positions.push_back(position + i);
    for (size_t j = 0; j < width; ++j) out.states.push_back(normal(random));
  }
  return out;
}

// What a step gave: per row its state and its logits, one behind the other.
struct Result {
  std::vector<float> values;
  size_t each = 0;
  void append(const Result& more) {
    each = more.each;
    values.insert(values.end(), more.values.begin(), more.values.end());
  }
  std::span<const float> row(size_t i) const { return std::span(values).subspan(i * each, each); }
};

::testing::AssertionResult same(std::span<const float> a, std::span<const float> b) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "bits differ";
}

class Runner {
 public:
  Runner(const std::string& target, const std::string& head, cpu::Isa isa, int threads, DType kv_type)
      : backend_(make_cpu_backend({threads, isa})) {
    target_ = Model::load(ModelFile::open(target), *backend_, {});
    EagleOptions options;
    options.max_rows = options.max_outputs = options.context = kContext;
    head_ = EagleHead::load(HeadFile::open(head, target_->config()), *target_, *backend_, options);
    kv_ = backend_->make_kv(head_->kv_geometry(3, kContext, kv_type));
  }
  EagleHead& head() { return *head_; }
  size_t width() const { return size_t(head_->config().cell.width); }
  int vocab() const { return head_->config().cell.vocab; }

  Result step(const Rows& rows, const std::vector<SeqRows>& seqs) {
    std::vector<int32_t> outputs;
    for (size_t i = 0; i < rows.tokens.size(); ++i) outputs.push_back(int32_t(i));
    const EagleOutputs& out = head_->forward({{rows.tokens, rows.positions, seqs, outputs}, rows.states.data()}, *kv_);
    const size_t draft = size_t(head_->config().draft_vocab);
    Result result;
    result.each = width() + draft;
    for (size_t i = 0; i < rows.tokens.size(); ++i) {
      result.values.insert(result.values.end(), out.states + i * width(), out.states + (i + 1) * width());
      result.values.insert(result.values.end(), out.logits + i * draft, out.logits + (i + 1) * draft);
    }
    return result;
  }
  Result chain(int slot, int history, const Rows& rows) {
    return step(rows, {{0, int(rows.tokens.size()), slot, history}});
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> target_;
  std::unique_ptr<EagleHead> head_;
  std::unique_ptr<KvStore> kv_;
};

struct Tree {
  std::vector<int> parent, depth;
  std::vector<uint64_t> ancestors;  // one word per node
};

Tree random_tree(int nodes, std::mt19937& random) {
  Tree t;
  for (int i = 0; i < nodes; ++i) {
    const int parent = i == 0 ? -1 : int(random() % unsigned(i + 1)) - 1;
    t.parent.push_back(parent);
    t.depth.push_back(parent < 0 ? 0 : t.depth[size_t(parent)] + 1);
    t.ancestors.push_back(1ull << i | (parent < 0 ? 0 : t.ancestors[size_t(parent)]));
  }
  return t;
}

// A history in one step, in random portions, and beside another sequence.
void check_chains(Runner& run, Runner& other, const Rows& history, std::mt19937& random) {
  const size_t width = run.width(), count = history.tokens.size();
  const Result once = run.chain(0, 0, history);
  Result many;
  for (size_t at = 0; at < count;) {
    const size_t rows = std::min(count - at, size_t(1 + random() % 90));
    many.append(other.chain(0, int(at), history.part(at, rows, width)));
    at += rows;
  }
  EXPECT_TRUE(same(once.values, many.values)) << "portions of a chain";
  const Rows beside = random_rows(40, 0, run.vocab(), width, random);
  Rows both = beside;
  both.append(history);
  const Result together = other.step(both, {{0, 40, 1, 0}, {40, int(count), 2, 0}});
  EXPECT_TRUE(same(once.values, std::span(together.values).subspan(40 * together.each))) << "beside another sequence";
}

// A tree behind the history that both runners hold in slot 0: in one step, in portions, and some paths as chains.
void check_tree(Runner& run, Runner& other, const Rows& history, std::mt19937& random) {
  constexpr int kNodes = 40;
  const size_t width = run.width();
  const int length = int(history.tokens.size());
  const Tree tree = random_tree(kNodes, random);
  Rows nodes = random_rows(kNodes, length, run.vocab(), width, random);
  for (size_t i = 0; i < size_t(kNodes); ++i) nodes.positions[i] = length + tree.depth[i];
  const Result once = run.step(nodes, {{0, kNodes, 0, length, tree.ancestors.data(), 1}});
  Result grown;
  for (int done = 0; done < kNodes;) {
    const int rows = std::min(kNodes - done, 1 + int(random() % 12));
    grown.append(other.step(nodes.part(size_t(done), size_t(rows), width),
                            {{0, rows, 0, length, &tree.ancestors[size_t(done)], 1, done}}));
    done += rows;
  }
  EXPECT_TRUE(same(once.values, grown.values)) << "a tree in portions";
  for (int probe = 0; probe < 5; ++probe) {
    std::vector<int> path;
    for (int at = probe == 0 ? kNodes - 1 : int(random() % kNodes); at >= 0; at = tree.parent[size_t(at)])
      path.insert(path.begin(), at);
    const Rows line = nodes.pick(path, width);
    const Result plain = other.chain(0, length, line);
    for (size_t i = 0; i < path.size(); ++i)
      EXPECT_TRUE(same(plain.row(i), once.row(size_t(path[i])))) << "node " << path[i] << " of a tree";
  }
}

void check_fuse(Runner& run, Runner& other, std::mt19937& random) {
  constexpr int kRows = 33;
  const size_t taps = run.head().config().features.size(), width = run.width();
  const Rows rows = random_rows(kRows * int(taps), 0, run.vocab(), width, random);
  std::vector<const float*> at;
  for (size_t i = 0; i < taps; ++i) at.push_back(rows.states.data() + i * kRows * width);
  std::vector<float> once(kRows * width), single(kRows * width);
  run.head().fuse(at, testing::rows_from(0, kRows), once.data());
  for (int r = 0; r < kRows; ++r) other.head().fuse(at, testing::rows_from(r, 1), &single[size_t(r) * width]);
  EXPECT_TRUE(same(once, single)) << "fuse";
}

void check(const std::string& target, const std::string& head, cpu::Isa isa, DType kv_type, int history,
           unsigned seed) {
  SCOPED_TRACE(std::string(cpu::isa_name(isa)) + " KV " + dtype_name(kv_type) + " history " + std::to_string(history));
  std::mt19937 random(seed);
  Runner run(target, head, isa, 1, kv_type), other(target, head, isa, 3, kv_type);
  const Rows rows = random_rows(history, 0, run.vocab(), run.width(), random);
  check_chains(run, other, rows, random);
  check_tree(run, other, rows, random);
  check_fuse(run, other, random);
}

TEST(HeadInvariance, RowsStepsAndTrees) {
  const TempFolder folder;
  const std::string target = folder.file("target");
  testing::write_tiny_hf(target, target_spec());
  const ModelConfig config = testing::tiny_config(target_spec());
  auto plain = testing::eagle3_config(config, 1, 160), deep = testing::eagle3_config(config, 2, config.vocab);
  deep["norm_output"] = deep["fc_norm"] = true;
  const std::pair<std::string, HeadParts> heads[] = {
      {"eagle1",
       testing::random_head(testing::eagle1_config(config), {"fc.weight", "fc.bias"}, config, DType::kF32, 1)},
      {"eagle1-q8",
       testing::random_head(testing::eagle1_config(config), {"fc.weight", "fc.bias"}, config, DType::kQ8_0, 2)},
      {"eagle3-f16", testing::random_head(plain, {"lm_head.weight", "d2t"}, config, DType::kF16, 3)},
      {"eagle3-q4", testing::random_head(plain, {"lm_head.weight", "d2t"}, config, DType::kQ4_1, 4)},
      {"eagle31-two-layers", testing::random_head(deep, {}, config, DType::kQ8_0, 5)}};
  unsigned seed = 10;
  for (const auto& [name, parts] : heads) {
    parts.write(folder.file(name));
    for (const cpu::Isa isa : cpu::available_isas())
      for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
        SCOPED_TRACE(name);
        check(target, folder.file(name), isa, type, seed % 4 == 0 ? 530 : 60 + int(seed % 3) * 33, seed);
        ++seed;
        if (HasFailure()) return;
      }
  }
}

TEST(HeadInvariance, MedusaRows) {
  const TempFolder folder;
  testing::write_tiny_hf(folder.file("target"), target_spec());
  const ModelConfig config = testing::tiny_config(target_spec());
  for (const DType type : {DType::kF32, DType::kQ8_0}) {
    testing::random_head({{"medusa_num_heads", 2}},
                         {"blocks.1.layers.1.weight", "blocks.0.layers.0.bias", "lm_heads.1.weight"}, config, type, 6)
        .write(folder.file("medusa"));
    for (const cpu::Isa isa : cpu::available_isas()) {
      std::vector<std::vector<float>> results;
      for (const int chunk : {37, 1, 5}) {
        const auto backend = make_cpu_backend({chunk == 1 ? 1 : 3, isa});
        const auto target = Model::load(ModelFile::open(folder.file("target")), *backend, {});
        const auto heads = MedusaHeads::load(HeadFile::open(folder.file("medusa"), config), *target, *backend, 37);
        std::mt19937 fresh(8);
        const Rows rows = random_rows(37, 0, config.vocab, 64, fresh);
        const size_t each = size_t(heads->heads() * heads->config().draft_vocab);
        ASSERT_EQ(each, size_t(2 * config.vocab));
        std::vector<float> all;
        for (int at = 0; at < 37; at += chunk) {
          const int count = std::min(chunk, 37 - at);
          const float* logits = heads->forward(rows.states.data() + at * 64, count);
          all.insert(all.end(), logits, logits + size_t(count) * each);
        }
        results.push_back(std::move(all));
      }
      EXPECT_TRUE(same(results[0], results[1])) << cpu::isa_name(isa);
      EXPECT_TRUE(same(results[0], results[2])) << cpu::isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace sx
