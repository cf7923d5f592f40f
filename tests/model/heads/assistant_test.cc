// Gemma 4's assistants against transformers' own class (tests/golden/heads), on a target with and without windows, from
// folders and from GGUF, whose keys lie in another order; and rows that do not depend on the rows beside them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/error.h"
#include "every_backend.h"
#include "head_parts.h"
#include "model/convert/convert.h"
#include "model/heads/assistant.h"

namespace sx {
namespace {

using testing::all_backends;
using testing::golden_folder;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::worst_error;

constexpr double kTolerance = 1e-4;

std::string model_folder(const std::string& name) { return golden_folder("../" + name); }

// The golden's text goes through the target without its last token; then the assistant drafts its tree.
struct AssistantOnTarget {
  AssistantOnTarget(const std::string& target_path, const std::string& folder, const std::string& golden_name,
                    Backend& on)
      : golden(golden_folder(golden_name) + "/golden.safetensors"), backend(on) {
    ModelOptions options;
    options.max_rows = 128;
    target = Model::load(ModelFile::open(target_path), backend, options);
    kv = backend.make_kv(target->kv_geometry(1, 128, DType::kF32));
    head = AssistantHead::load(HeadFile::open(folder, target->config()), *target, backend, 16);
    const auto text = values<int32_t>("text");
    pending = text.back();
    std::vector<int32_t> positions;
    for (int i = 0; i < int(text.size()); ++i) positions.push_back(i);
    seen = int(text.size()) - 1;
    const SeqRows seq{0, seen, 0, 0};
    const auto count = size_t(seen);
    target->forward({text.first(count), std::span(positions).first(count), {&seq, 1}, {}}, *kv);
    nodes = values<int32_t>("nodes"), parents = values<int32_t>("parents");
    width = size_t(head->config().target_width), vocab = size_t(target->config().vocab);
  }
  template <class T>
  std::span<const T> values(const std::string& name) const {
    const Tensor& tensor = golden.get(name);
    return {reinterpret_cast<const T*>(tensor.data), size_t(tensor.elements())};
  }
  void pass(const std::vector<Token>& tokens, const std::vector<float>& fed, bool of_target) {
    const int rows = int(tokens.size());
    float* placed = backend.allocate(size_t(backend.row_capacity(rows)) * width, "states");
    backend.upload(placed, fed.data(), fed.size());
    if (of_target) head->take(placed, rows, placed);
    const TargetCells cells{kv.get(), 0, seen};
    const AssistantOutputs out =
        head->forward({.tokens = tokens, .states = placed, .position = seen, .whole = cells, .windows = cells});
    const auto keep = [&](std::vector<float>& to, const float* from, size_t count) {
      to.resize(to.size() + count);
      backend.download(to.data() + to.size() - count, from, count);
    };
    keep(logits, out.logits, size_t(rows) * vocab);
    keep(states, out.states, size_t(rows) * width);
  }
  // The pending token, then the nodes level by level, or one by one.
  void draft(bool singly = false) {
    logits.clear(), states.clear();
    const auto tap = values<float>("tap");
    pass({pending}, {tap.begin(), tap.end()}, true);
    for (size_t first = 0, end; first < nodes.size(); first = end) {
      end = first + 1;
      while (!singly && end < nodes.size() && parents[end] < int(first)) ++end;  // parents of the level come before it
      std::vector<float> fed;
      for (size_t n = first; n < end; ++n) {
        const auto from = states.begin() + ptrdiff_t(size_t(1 + parents[n]) * width);
        fed.insert(fed.end(), from, from + ptrdiff_t(width));
      }
      pass({nodes.begin() + ptrdiff_t(first), nodes.begin() + ptrdiff_t(end)}, fed, false);
    }
  }

  SafetensorsFile golden;
  Backend& backend;
  std::unique_ptr<Model> target;
  std::unique_ptr<AssistantHead> head;
  std::unique_ptr<KvStore> kv;
  std::span<const int32_t> nodes, parents;
  std::vector<float> logits, states;
  size_t width = 0, vocab = 0;
  Token pending = 0;
  int seen = 0;
};

struct GoldenCase {
  const char *name, *target;
};
constexpr GoldenCase kCases[] = {{"assistant", "gemma3"}, {"assistant-full", "heads/target"}};

TEST(AssistantGolden, EveryBackendAndBothFormsOfTheTarget) {
  for (const GoldenCase& c : kCases) {
    const TempFolder folder;
    const std::string gguf = folder.file("target.gguf");
    convert_to_gguf(*ModelFile::open(model_folder(c.target)), {}, {.out = gguf, .type = DType::kF32});
    for (const std::string& target : {model_folder(c.target), gguf})
      for (const auto& backend : all_backends()) {
        SCOPED_TRACE(fmt::format("{} {} {}", c.name, target, backend->name()));
        AssistantOnTarget run(target, golden_folder(c.name), c.name, *backend);
        run.draft();
        ASSERT_EQ(run.logits.size(), run.values<float>("logits").size());
        EXPECT_LE(worst_error(run.values<float>("logits"), run.logits.data()), kTolerance);
        EXPECT_LE(worst_error(run.values<float>("states"), run.states.data()), kTolerance);
      }
  }
}

TEST(AssistantGolden, WhatWouldBeWrongShows) {
  const auto backend = make_reference_backend();
  const auto error = [&](const GoldenCase& c, const std::function<void(testing::HeadParts&)>& change, int fewer = 0) {
    const TempFolder folder;
    auto parts = testing::read_parts(golden_folder(c.name));
    change(parts);
    parts.write(folder.path());
    AssistantOnTarget run(model_folder(c.target), folder.path(), c.name, *backend);
    run.seen -= fewer;
    run.draft();
    return worst_error(run.values<float>("logits"), run.logits.data());
  };
  for (const GoldenCase& c : kCases) {
    EXPECT_LE(error(c, [](auto&) {}), kTolerance);
    EXPECT_GT(error(
                  c, [](auto&) {}, 1),
              10 * kTolerance)
        << "a cell less, another position";
    EXPECT_GT(error(c, [](auto& parts) { parts.config["text_config"]["rms_norm_eps"] = 0.05; }), 10 * kTolerance);
  }
  const auto one_kind = [](auto& parts) {
    for (auto& kind : parts.config["text_config"]["layer_types"]) kind = "full_attention";
  };
  EXPECT_GT(error(kCases[0], one_kind), 10 * kTolerance) << "windows";
}

TEST(AssistantInvariance, RowsAreThemselvesInAnyCompany) {
  for (const GoldenCase& c : kCases)
    for (const auto& backend : all_backends()) {
      SCOPED_TRACE(fmt::format("{} {}", c.name, backend->name()));
      AssistantOnTarget run(model_folder(c.target), golden_folder(c.name), c.name, *backend);
      run.draft();
      const std::vector<float> levels = run.logits;
      run.draft(true);
      ASSERT_EQ(levels.size(), run.logits.size());
      EXPECT_EQ(std::memcmp(levels.data(), run.logits.data(), levels.size() * sizeof(float)), 0);
    }
}

// What needs a Gemma 4 target, or another one, is said.
TEST(AssistantRefusal, NamesWhatDoesNotFit) {
  using Parts = testing::HeadParts;
  const auto text = [](Parts & parts) -> auto& { return parts.config["text_config"]; };
  const struct {
    int at;
    std::function<void(Parts&)> change;
    std::vector<std::string> words;
  } cases[] = {
      {0, [&](Parts& p) { text(p)["global_head_dim"] = 32; }, {"32 numbers", "Gemma 4 target"}},
      {0, [&](Parts& p) { text(p)["head_dim"] = text(p)["global_head_dim"] = 32; }, {"32 numbers", "keys", "Gemma 4"}},
      {0,
       [&](Parts& p) { text(p)["rope_parameters"]["full_attention"]["rope_type"] = "proportional"; },
       {"full_attention", "proportional", "Gemma 4 target"}},
      {0,
       [&](Parts& p) { text(p)["rope_parameters"]["sliding_attention"]["rope_theta"] = 500.0; },
       {"'rope_theta'", "sliding_attention", "500"}},
      {0, [](Parts& p) { p.config["use_ordered_embeddings"] = true; }, {"'use_ordered_embeddings'", "Gemma 4 target"}},
      {0, [](Parts& p) { p.config["backbone_hidden_size"] = 48; }, {"'backbone_hidden_size' is 48", "width is 32"}},
      {0, [&](Parts& p) { text(p)["sliding_window"] = 41; }, {"'sliding_window' is 41", "40 in the target"}},
      {0, [&](Parts& p) { text(p)["layer_types"] = {"full_attention"}; }, {"'layer_types'", "3 kinds"}},
      {0, [&](Parts& p) { text(p)["hidden_activation"] = "silu"; }, {"'hidden_activation' is 'silu'"}},
      {0, [&](Parts& p) { text(p)["enable_moe_block"] = true; }, {"'enable_moe_block'"}},
      {0, [](Parts& p) { p.config.erase("text_config"); }, {"'text_config' is missing"}},
      {0, [](Parts& p) { p.remove("model.layers.1.layer_scalar"); }, {"layers.1.layer_scalar", "missing"}},
      {0, [](Parts& p) { p.rename("pre_projection.weight", "masked_embedding.centroids.weight"); }, {"is missing"}},
      {1, [&](Parts& p) { text(p)["layer_types"][0] = "sliding_attention"; }, {"with a sliding window", "has none"}},
  };
  for (const auto& c : cases) {
    const TempFolder folder;
    auto parts = testing::read_parts(golden_folder(kCases[c.at].name));
    c.change(parts);
    parts.write(folder.path());
    std::string error;
    try {
      HeadFile::open(folder.path(), ModelFile::open(model_folder(kCases[c.at].target))->config());
    } catch (const Error& e) { error = e.what(); }
    for (const std::string& word : c.words) EXPECT_THAT(error, HasSubstr(word));
  }
}

}  // namespace
}  // namespace sx
