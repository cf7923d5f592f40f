// A tree against plain decoding: every node's logits must have the bits its path has when decoded token by token, on
// every instruction set, across block and span borders, with several ragged sequences in one pass, and after a commit.
// And trees that grow over several steps, level by level or in any portions, against both.
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "model/tree_invariance.h"
#include "support/far_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::check_grown;
using testing::check_tree;
using testing::TempFolder;
using testing::TinySpec;
using testing::TreeSubject;

TreeSubject subject_of(cpu::Isa isa) {
  return {cpu::isa_name(isa), [isa](int threads) { return make_cpu_backend({threads, isa}); }};
}

// Every instruction set, and the best one with memory that the host cannot reach.
std::vector<TreeSubject> subjects() {
  std::vector<TreeSubject> all;
  for (const cpu::Isa isa : cpu::available_isas()) all.push_back(subject_of(isa));
  all.push_back({"far", [](int threads) {
                   return std::make_unique<testing::FarBackend>(make_cpu_backend({threads, std::nullopt}));
                 }});
  return all;
}

TEST(Tree, GrownOverSeveralStepsIsTheSameTree) {
  const TempFolder folder;
  TinySpec spec;
  spec.weights = DType::kQ8_0, spec.heads = 6, spec.kv_heads = 2, spec.width = 96, spec.ffn = 96;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  spec.window = 40, spec.layers = 1;
  testing::write_tiny_gguf(folder.file("window.gguf"), spec);
  unsigned seed = 100;
  for (const TreeSubject& subject : subjects())
    for (const KvTypes& type : {KvTypes(DType::kF32), KvTypes(DType::kF16), KvTypes(DType::kBF16),
                                KvTypes(DType::kQ8_0), KvTypes(DType::kQ8_0, DType::kQ4_0)})
      for (bool levels : {false, true}) {
        check_grown(folder.file("tiny.gguf"), subject, type, {levels ? 500 : 60, levels ? 3 : 490}, 60, levels, ++seed);
        check_grown(folder.file("window.gguf"), subject, type, {levels ? 30 : 90, 64}, 40, levels, ++seed);
      }
}

TEST(Tree, LargeTreesGrowAcrossBordersOfSpans) {
  const TempFolder folder;
  TinySpec spec;
  spec.weights = DType::kQ4_1, spec.layers = 1;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  unsigned seed = 200;
  for (bool levels : {false, true}) {
    for (DType type : {DType::kBF16, DType::kF32})
      check_grown(folder.file("tiny.gguf"), subject_of(cpu::available_isas().front()), type, {400, 880}, 512, levels,
                  ++seed);
    check_grown(folder.file("tiny.gguf"), subject_of(cpu::Isa::kGeneric), DType::kF16, {1010, 2}, 300, levels, ++seed);
  }
}

TEST(Tree, EveryNodeEqualsItsPathDecodedPlainly) {
  const TempFolder folder;
  TinySpec spec;
  spec.weights = DType::kQ8_0, spec.heads = 6, spec.kv_heads = 2, spec.width = 96, spec.ffn = 96;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  unsigned seed = 1;
  for (const TreeSubject& subject : subjects())
    for (const KvTypes& type : {KvTypes(DType::kF32), KvTypes(DType::kF16), KvTypes(DType::kBF16),
                                KvTypes(DType::kQ8_0), KvTypes(DType::kQ8_0, DType::kQ4_0)})
      for (auto [a, b] : {std::pair{0, 5}, {63, 64}, {100, 511}, {508, 130}})
        check_tree(folder.file("tiny.gguf"), subject, type, {a, b}, 1 + int(seed * 7 % 40), seed), ++seed;
}

TEST(Tree, LargeTreesAndLongHistories) {
  const TempFolder folder;
  TinySpec spec;
  spec.weights = DType::kQ4_1, spec.layers = 1;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  const TreeSubject subject = subject_of(cpu::available_isas().front());
  check_tree(folder.file("tiny.gguf"), subject, DType::kBF16, {600, 1}, 300, 91);
  spec.window = 40;
  testing::write_tiny_gguf(folder.file("window.gguf"), spec);
  check_tree(folder.file("window.gguf"), subject, DType::kBF16, {130, 30}, 30, 92);
}

}  // namespace
}  // namespace sx
