// DFlash, DSpark and P-EAGLE drafters against PyTorch, on the reference and on every CPU backend; and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "every_backend.h"
#include "head_parts.h"
#include "model/heads/dflash.h"
#include "model/heads/eagle.h"

namespace sx {
namespace {

using testing::golden_folder;
using testing::TempFolder;

constexpr double kTolerance = 1e-4;

template <class T>
std::span<const T> values(const SafetensorsFile& file, const char* name) {
  const Tensor& tensor = file.get(name);
  return {reinterpret_cast<const T*>(tensor.data), size_t(tensor.elements())};
}

struct Errors {
  double block = 0, nodes = 0;
};

// The cells in chunks, then a block, then nodes of a tree.
Errors run_golden(const std::string& folder, const SafetensorsFile& golden, Backend& backend, int chunk) {
  ModelOptions model_options;
  model_options.max_rows = 32;
  const auto target = Model::load(ModelFile::open(golden_folder("target")), backend, model_options);
  const auto head = DFlashHead::load(HeadFile::open(folder, target->config()), *target, backend, {});
  const auto kv = backend.make_kv(head->kv_geometry(1, 64, DType::kF32));
  const HeadConfig& c = head->config();
  const auto taps = values<float>(golden, "taps");
  const size_t count = c.features.size();
  const int text = int(taps.size() / count) / c.target_width;
  std::vector<const float*> each;
  for (size_t i = 0; i < count; ++i) each.push_back(&taps[i * taps.size() / count]);
  for (int done = 0, rows; done < text; done += rows) {
    rows = std::min(chunk, text - done);
    std::vector<float> features(size_t(rows) * head->feature_width());
    head->take(each, testing::rows_from(done, rows), features.data());
    const std::vector<Token> tokens(size_t(rows), 1);
    const auto positions = testing::rows_from(done, rows);
    const SeqRows seq{0, rows, 0, done};
    head->context({tokens, positions, {&seq, 1}, {}}, features.data(), *kv);
  }
  std::vector<Token> tokens(size_t(c.block), Token(c.mask_token));
  tokens[0] = values<int32_t>(golden, "pending")[0];
  const auto positions = testing::rows_from(text, c.block),
             outputs = testing::rows_from(c.block - head->levels(), head->levels());
  const std::vector<uint64_t> all(size_t(c.block), (1u << c.block) - 1);
  const SeqRows together{0, c.block, 0, text, all.data(), 1, 0}, in_order{0, c.block, 0, text};
  const float* logits =
      head->block({tokens, positions, {&together, 1}, outputs}, {tokens, positions, {&in_order, 1}, outputs}, *kv);
  EXPECT_EQ(golden.get("logits").rows(), head->levels());
  Errors errors{testing::worst_error(values<float>(golden, "logits"), logits)};
  const auto features = values<int32_t>(golden, "features");
  EXPECT_TRUE(std::equal(c.features.begin(), c.features.end(), features.begin(), features.end()));
  if (!golden.find("levels")) return errors;
  const auto nodes = values<int32_t>(golden, "tokens");
  const auto rows = testing::rows_from(0, int(nodes.size()));
  const SeqRows seq{0, int(nodes.size()), 0, text};
  const float* with_bias = head->markov_logits({nodes, rows, {&seq, 1}, rows}, values<int32_t>(golden, "levels"));
  errors.nodes = testing::worst_error(values<float>(golden, "node_logits"), with_bias);
  return errors;
}

constexpr const char* kHeads[] = {"dflash", "dflash-sliding", "dflash-speculators", "dspark"};

TEST(DFlash, EveryBackendIsLikePyTorch) {
  for (const char* name : kHeads)
    for (const auto& backend : testing::all_backends())
      for (const int chunk : {32, 5, 1}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, backend->name(), chunk));
        const SafetensorsFile golden(golden_folder(name) + "/golden.safetensors");
        const Errors errors = run_golden(golden_folder(name), golden, *backend, chunk);
        EXPECT_LE(errors.block, kTolerance);
        EXPECT_LE(errors.nodes, kTolerance);
      }
}

// Each of these changes must be seen in the numbers: the comparison can fail.
TEST(DFlash, AnotherDrafterIsCaught) {
  const auto backend = make_reference_backend();
  const auto off_by = [&](const char* name, const std::function<void(testing::HeadParts&)>& change) {
    const TempFolder folder;
    auto parts = testing::read_parts(golden_folder(name));
    change(parts);
    parts.write(folder.path());
    const SafetensorsFile golden(golden_folder(name) + "/golden.safetensors");
    const Errors errors = run_golden(folder.path(), golden, *backend, 32);
    return std::max(errors.block, errors.nodes);
  };
  EXPECT_GT(off_by("dflash", [](auto& p) { p.config["is_causal"] = true; }), 10 * kTolerance);
  EXPECT_GT(off_by("dflash-sliding", [](auto& p) { p.config["is_causal"] = false; }), 10 * kTolerance);
  EXPECT_GT(off_by("dflash-sliding", [](auto& p) { p.config["sliding_window"] = 9; }), 10 * kTolerance);
  EXPECT_GT(off_by("dflash", [](auto& p) { p.config["dflash_config"]["mask_token_id"] = 3; }), 10 * kTolerance);
  EXPECT_GT(off_by("dspark",
                   [](auto& p) {
                     std::swap(p.get("markov_head.markov_w1.weight").data, p.get("markov_head.markov_w2.weight").data);
                   }),
            10 * kTolerance);
}

TEST(DFlash, Refusals) {
  const auto target = ModelFile::open(golden_folder("target"))->config();
  const auto why = [&](const std::function<void(testing::HeadParts&)>& change) -> std::string {
    const TempFolder folder;
    auto parts = testing::read_parts(golden_folder("dflash"));
    change(parts);
    parts.write(folder.path());
    try {
      HeadFile::open(folder.path(), target);
    } catch (const Error& error) { return error.what(); }
    return {};
  };
  const auto expect = [](const std::string& text, const char* word) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  EXPECT_EQ(why([](auto&) {}), "");
  expect(why([](auto& p) { p.config.erase("block_size"); }), "'block_size' is missing");
  expect(why([](auto& p) { p.config["block_size"] = 65; }), "2 to 64");
  expect(why([](auto& p) { p.config["dflash_config"]["mask_token_id"] = 40; }), "'mask_token_id' is 40");
  expect(why([](auto& p) { p.config["dflash_config"]["target_layer_ids"] = {1, 7}; }), "lists 7");
  expect(why([](auto& p) { p.config["dflash_config"].erase("target_layer_ids"); }), "aux_hidden_state_layer_ids");
  expect(why([](auto& p) { p.config["hidden_size"] = 16; }), "the target's width is 8");
  expect(why([](auto& p) { p.config["dflash_config"]["output_multiplier"] = 0.5; }), "output_multiplier");
  expect(why([](auto& p) { p.remove("layers.1.self_attn.k_norm.weight"); }), "layers.1.self_attn.k_norm.weight");
  expect(why([](auto& p) { p.rename("norm.weight", "candidate_selector.norm.weight"); }), "DFlash 2");
}

// P-EAGLE: rows of masks behind the text give the levels of a tree in one pass.
TEST(ParallelEagle, EveryBackendIsLikePyTorch) {
  const SafetensorsFile golden(golden_folder("p-eagle") + "/golden.safetensors");
  for (const auto& backend : testing::all_backends()) {
    SCOPED_TRACE(backend->name());
    ModelOptions model_options;
    model_options.max_rows = 32;
    const auto target = Model::load(ModelFile::open(golden_folder("target")), *backend, model_options);
    const auto head =
        EagleHead::load(HeadFile::open(golden_folder("p-eagle"), target->config()), *target, *backend, {});
    const HeadConfig& c = head->config();
    EXPECT_EQ(c.mask_token, 39);
    const auto kv = backend->make_kv(head->kv_geometry(1, 64, DType::kF32));
    const auto taps = values<float>(golden, "taps");
    const auto known = values<int32_t>(golden, "tokens");
    std::vector<const float*> each;
    for (size_t i = 0; i < c.features.size(); ++i) each.push_back(&taps[i * taps.size() / c.features.size()]);
    const int text = int(known.size()), levels = int(golden.get("logits").rows()), rows = text + levels - 1;
    const size_t width = size_t(c.cell.width);
    std::vector<float> states(size_t(rows) * width);
    head->fuse(each, testing::rows_from(0, text), states.data());
    for (int i = text; i < rows; ++i) std::copy_n(head->mask_state(), width, &states[size_t(i) * width]);
    std::vector<Token> tokens(known.begin(), known.end());
    tokens.resize(size_t(rows), Token(c.mask_token));
    const auto positions = testing::rows_from(0, rows), outputs = testing::rows_from(text - 1, levels);
    const SeqRows seq{0, rows, 0, 0};
    const EagleOutputs& out = head->forward({{tokens, positions, {&seq, 1}, outputs}, states.data()}, *kv);
    EXPECT_LE(testing::worst_error(values<float>(golden, "logits"), out.logits), kTolerance);
  }
}

}  // namespace
}  // namespace sx
