// LongSpec's drafter against PyTorch (tests/golden/heads), on a target from a folder and from GGUF, whose keys lie in
// another order; and the distribution: what a row gets depends on itself, its own path and the target's cells it is
// shown, not on the rows beside it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "every_backend.h"
#include "head_parts.h"
#include "model/convert/convert.h"
#include "model/heads/longspec.h"

namespace sx {
namespace {

using testing::all_backends;
using testing::golden_folder;
using testing::TempFolder;
using testing::worst_error;

constexpr double kTolerance = 1e-4;
constexpr int kNodes = 7;

// The golden's chain goes through the target without its last token, which is pending, and through the head; then the
// tree, level by level.
struct HeadOnTarget {
  HeadOnTarget(const std::string& target_path, const std::string& head_folder, const std::string& golden_name,
               Backend& backend)
      : golden(golden_folder(golden_name) + "/golden.safetensors") {
    ModelOptions options;
    options.max_rows = 32;
    target = Model::load(ModelFile::open(target_path), backend, options);
    target_kv = backend.make_kv(target->kv_geometry(1, 64, DType::kF32));
    const LongSpecOptions limits{.max_rows = 32, .max_outputs = 32, .cells = 64};
    head = LongSpecHead::load(HeadFile::open(head_folder, target->config()), *target, backend, limits);
    kv = backend.make_kv(head->kv_geometry(1, DType::kF32));
    window = head->config().window;
    tokens = values<int32_t>("tokens"), positions = values<int32_t>("positions"), parents = values<int32_t>("parents");
    chain = int(tokens.size()) - kNodes;
    const SeqRows seq{0, chain - 1, 0, 0};
    target->forward({tokens.first(size_t(chain) - 1), positions.first(size_t(chain) - 1), {&seq, 1}, {}}, *target_kv);
  }
  template <class T>
  std::span<const T> values(const std::string& name) const {
    const Tensor& tensor = golden.get(name);
    return {reinterpret_cast<const T*>(tensor.data), size_t(tensor.elements())};
  }
  // Appends the logits of the step's last `outputs` rows.
  void step(int first, int rows, const SeqRows& seq, int outputs) {
    std::vector<int32_t> which;
    for (int i = rows - outputs; i < rows; ++i) which.push_back(i);
    head->forward(
        {tokens.subspan(size_t(first), size_t(rows)), positions.subspan(size_t(first), size_t(rows)), {&seq, 1}, which},
        *kv, window);
    const float* out = head->look(*target_kv, 0, chain - 1);
    logits.insert(logits.end(), out, out + size_t(outputs) * size_t(head->config().draft_vocab));
  }
  std::vector<uint64_t> ancestors() const {
    std::vector<uint64_t> bits;
    for (size_t i = 0; i < parents.size(); ++i)
      bits.push_back(1ull << i | (parents[i] < 0 ? 0 : bits[size_t(parents[i])]));
    return bits;
  }
  // The cells of the first tokens alone, the others with the pending one; nodes by levels, or one by one.
  std::vector<float> whole(bool singly = false) {
    logits.clear();
    const SeqRows begin{0, 4, 0, 0}, rest{0, chain - 4, 0, 4};
    head->forward({tokens.first(4), positions.first(4), {&begin, 1}, {}}, *kv, window);
    step(4, chain - 4, rest, 1);
    const auto bits = ancestors();
    for (int done = 0, rows; done < kNodes; done += rows) {
      rows = 1;
      while (!singly && done + rows < kNodes &&
             positions[size_t(chain + done + rows)] == positions[size_t(chain + done)])
        ++rows;
      step(chain + done, rows, {0, rows, 0, chain, &bits[size_t(done)], 1, done}, rows);
    }
    return logits;
  }

  SafetensorsFile golden;
  std::unique_ptr<Model> target;
  std::unique_ptr<LongSpecHead> head;
  std::unique_ptr<KvStore> target_kv, kv;
  std::span<const int32_t> tokens, positions, parents;
  std::vector<float> logits;
  int chain = 0, window = 0;
};

std::string gguf_target(const TempFolder& folder) {
  const std::string path = folder.file("target.gguf");
  convert_to_gguf(*ModelFile::open(golden_folder("target")), {}, {.out = path, .type = DType::kF32});
  return path;
}

TEST(LongSpecGolden, EveryBackendAndBothFormsOfTheTarget) {
  const TempFolder folder;
  const std::string gguf = gguf_target(folder);
  ASSERT_NE(ModelFile::open(gguf)->config().rope.style, ModelFile::open(golden_folder("target"))->config().rope.style);
  for (const char* name : {"longspec", "longspec-merged", "longspec-own-head"})
    for (const std::string& target : {golden_folder("target"), gguf})
      for (const auto& backend : all_backends()) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, target, backend->name()));
        HeadOnTarget run(target, golden_folder(name), name, *backend);
        EXPECT_LE(worst_error(run.values<float>("logits"), run.whole().data()), kTolerance);
        EXPECT_EQ(run.logits.size(), run.values<float>("logits").size());
        EXPECT_EQ(run.head->config().window, 5);
        std::span<const int32_t> map;
        if (run.golden.find("token_map")) map = run.values<int32_t>("token_map");
        EXPECT_TRUE(std::equal(map.begin(), map.end(), run.head->token_map().begin(), run.head->token_map().end()));
        EXPECT_EQ(map.empty(), std::string(name) != "longspec-own-head");
        EXPECT_EQ(run.head->config().cross_bias, std::string(name) == "longspec-merged");
      }
}

TEST(LongSpecGolden, WhatWouldBeWrongShows) {
  const auto backend = make_reference_backend();
  const auto error = [&](const std::function<void(testing::HeadParts&)>& change,
                         const std::function<void(HeadOnTarget&)>& then) {
    const TempFolder folder;
    auto parts = testing::read_parts(golden_folder("longspec"));
    change(parts);
    parts.write(folder.path());
    HeadOnTarget run(golden_folder("target"), folder.path(), "longspec", *backend);
    then(run);
    return worst_error(run.values<float>("logits"), run.whole().data());
  };
  const auto as_it_is = [](auto&) {};
  EXPECT_LE(error(as_it_is, as_it_is), kTolerance);
  EXPECT_GT(error([](auto& parts) { parts.config["longspec_window"] = 6; }, as_it_is), 10 * kTolerance);
  EXPECT_GT(error([](auto& parts) { parts.config["rms_norm_eps"] = 0.05; }, as_it_is), 10 * kTolerance);
  EXPECT_GT(error(as_it_is,
                  [](HeadOnTarget& run) {  // another token in the target's cells, not in the head's
                    std::vector<Token> other(run.tokens.begin(), run.tokens.begin() + run.chain - 1);
                    other[0] = (other[0] + 1) % 40;
                    const SeqRows seq{0, run.chain - 1, 0, 0};
                    run.target->forward({other, run.positions.first(other.size()), {&seq, 1}, {}}, *run.target_kv);
                  }),
            10 * kTolerance);
}

TEST(LongSpecInvariance, RowsAreThemselvesInAnyCompany) {
  for (const auto& backend : all_backends()) {
    SCOPED_TRACE(backend->name());
    HeadOnTarget run(golden_folder("target"), golden_folder("longspec"), "longspec", *backend);
    const std::vector<float> levels = run.whole(), singly = run.whole(true);
    ASSERT_EQ(levels.size(), singly.size());
    EXPECT_EQ(std::memcmp(levels.data(), singly.data(), levels.size() * sizeof(float)), 0);
  }
}

// Long histories of the target, some at the borders of blocks: many rows that look at the same cells get what one alone
// gets.
TEST(LongSpecInvariance, ManyRowsAtLongHistories) {
  for (const auto& backend : all_backends()) {
    SCOPED_TRACE(backend->name());
    ModelOptions options;
    options.max_rows = 256, options.context = 1024;
    const auto target = Model::load(ModelFile::open(golden_folder("target")), *backend, options);
    const auto target_kv = backend->make_kv(target->kv_geometry(1, 1100, DType::kF32));
    const LongSpecOptions limits{.max_rows = 64, .max_outputs = 64, .cells = 128};
    const auto head =
        LongSpecHead::load(HeadFile::open(golden_folder("longspec"), target->config()), *target, *backend, limits);
    const auto kv = backend->make_kv(head->kv_geometry(1, DType::kF32));
    std::mt19937 random(9);
    std::vector<Token> text(768);
    std::vector<int32_t> places(text.size());
    for (size_t i = 0; i < text.size(); ++i) text[i] = Token(random() % 40), places[i] = int(i);
    for (int at = 0; at < 768; at += 256) {
      const SeqRows seq{0, 256, 0, at};
      target->forward(
          {std::span(text).subspan(size_t(at), 256), std::span(places).subspan(size_t(at), 256), {&seq, 1}, {}, true},
          *target_kv);
    }
    for (const int seen : {1, 63, 64, 65, 128, 500, 513, 767, 768}) {
      std::vector<uint64_t> bits;  // siblings
      std::vector<int32_t> positions(33, seen), outputs;
      for (int i = 0; i < 33; ++i) bits.push_back(1ull << i), outputs.push_back(i);
      const SeqRows all{0, 33, 0, 0, bits.data(), 1};
      head->forward({std::span(text).first(33), positions, {&all, 1}, outputs}, *kv, 16);
      const float* out = head->look(*target_kv, 0, seen);
      const std::vector<float> together(out, out + 33 * 40);
      for (const int row : {0, 1, 16, 32}) {
        const SeqRows alone{0, 1, 0, 0};
        head->forward({std::span(text).subspan(size_t(row), 1),
                       std::span(positions).first(1),
                       {&alone, 1},
                       std::span(outputs).first(1)},
                      *kv, 16);
        EXPECT_EQ(std::memcmp(head->look(*target_kv, 0, seen), &together[size_t(row) * 40], 40 * sizeof(float)), 0)
            << seen << ' ' << row;
      }
    }
  }
}

}  // namespace
}  // namespace sx
