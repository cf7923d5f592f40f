// MTP blocks against PyTorch: logits of a text in chunks and of a tree behind it, on the reference and on every CPU
// backend; and what is refused of files that have such blocks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "every_backend.h"
#include "head_parts.h"
#include "model/heads/eagle.h"

namespace sx {
namespace {

using testing::golden_folder;
using testing::TempFolder;

constexpr double kTolerance = 1e-4;

struct MtpRun {
  std::shared_ptr<ModelFile> file;
  std::unique_ptr<Model> target;
  std::unique_ptr<EagleHead> head;
  std::unique_ptr<KvStore> kv;
  std::vector<float> states, logits;  // [rows, ..] of the text and of the tree

  MtpRun(const std::string& folder, Backend& backend) {
    file = ModelFile::open(folder);
    ModelOptions options;
    options.max_rows = 32;
    target = Model::load(file, backend, options);
    EagleOptions head_options;
    head_options.max_rows = head_options.max_outputs = 32;
    head = EagleHead::load(HeadFile::of_model(file), *target, backend, head_options);
    kv = backend.make_kv(head->kv_geometry(1, 64, DType::kF32));
  }

  void step(std::span<const Token> tokens, int position, const float* fed, const SeqRows& seq, int depth) {
    std::vector<int32_t> positions, outputs;
    for (int i = 0; i < int(tokens.size()); ++i) positions.push_back(depth > 0 ? position : position + i);
    for (int i = 0; i < int(tokens.size()); ++i) outputs.push_back(i);
    EagleStep step{{tokens, positions, {&seq, 1}, outputs}, fed};
    step.depth = depth;
    const EagleOutputs& out = head->forward(step, *kv);
    states.insert(states.end(), out.states, out.states + tokens.size() * size_t(head->state_width()));
    logits.insert(logits.end(), out.logits, out.logits + tokens.size() * size_t(head->config().draft_vocab));
  }
};

std::vector<float> run_golden(MtpRun& run, const SafetensorsFile& golden, int chunk) {
  const auto values = [&](const char* name) { return reinterpret_cast<const int32_t*>(golden.get(name).data); };
  const auto* taps = reinterpret_cast<const float*>(golden.get("taps").data);
  const size_t width = size_t(run.head->config().cell.width), all = size_t(run.head->state_width());
  const int text = int(golden.get("taps").rows()), nodes = int(golden.get("parents").elements());
  const std::span<const Token> tokens(values("tokens"), size_t(text + nodes));
  const std::span<const int32_t> parents(values("parents"), size_t(nodes));
  for (int done = 0, rows; done < text; done += rows) {
    rows = std::min(chunk, text - done);
    std::vector<float> fused(size_t(rows) * width);
    const float* tap = taps;
    run.head->fuse({&tap, 1}, testing::rows_from(done, rows), fused.data());
    run.head->follow(done > 0 ? &run.states[size_t(done - 1) * all] : nullptr);
    run.step(tokens.subspan(size_t(done), size_t(rows)), done, fused.data(), {0, rows, 0, done}, 0);
  }
  std::vector<uint64_t> ancestors;
  std::vector<int> depths;
  for (int i = 0; i < nodes; ++i) {
    const int parent = parents[size_t(i)];
    ancestors.push_back(1ull << i | (parent < 0 ? 0 : ancestors[size_t(parent)]));
    depths.push_back(parent < 0 ? 1 : depths[size_t(parent)] + 1);
  }
  for (int done = 0, rows; done < nodes; done += rows) {
    for (rows = 1; done + rows < nodes && depths[size_t(done + rows)] == depths[size_t(done)];) ++rows;
    std::vector<float> fed;
    for (int i = done; i < done + rows; ++i) {
      const int parent = parents[size_t(i)] < 0 ? text - 1 : text + parents[size_t(i)];
      const auto from = run.states.begin() + ptrdiff_t(size_t(parent) * all);
      fed.insert(fed.end(), from, from + ptrdiff_t(all));
    }
    const int depth = depths[size_t(done)];
    run.step(tokens.subspan(size_t(text + done), size_t(rows)), text + depth - 1, fed.data(),
             {0, rows, 0, text, &ancestors[size_t(done)], 1, done}, depth);
  }
  return run.logits;
}

TEST(Mtp, EveryBackendIsLikePyTorch) {
  for (const char* name : {"mtp-mimo", "mtp-deepseek", "mtp-three-blocks"})
    for (const auto& backend : testing::all_backends())
      for (const int chunk : {32, 5, 1}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, backend->name(), chunk));
        const SafetensorsFile golden(golden_folder(name) + "/golden.safetensors");
        MtpRun run(golden_folder(name), *backend);
        const auto logits = run_golden(run, golden, chunk);
        const Tensor& want = golden.get("logits");
        ASSERT_EQ(int64_t(logits.size()), want.elements());
        EXPECT_LE(
            testing::worst_error({reinterpret_cast<const float*>(want.data), size_t(want.elements())}, logits.data()),
            kTolerance);
      }
}

// Each of these changes must be seen in the numbers: the comparison can fail.
TEST(Mtp, AnotherBlockIsCaught) {
  const auto backend = make_reference_backend();
  const std::pair<const char*, const char*> swaps[] = {
      {"model.mtp_layers.0.token_layernorm.weight", "model.mtp_layers.0.hidden_layernorm.weight"},
      {"model.mtp_layers.0.final_layernorm.weight", "model.norm.weight"},
      {"model.mtp_layers.0.input_layernorm.weight", "model.mtp_layers.0.post_attention_layernorm.weight"}};
  const SafetensorsFile golden(golden_folder("mtp-mimo") + "/golden.safetensors");
  const Tensor& want = golden.get("logits");
  for (const auto& [a, b] : swaps) {
    const TempFolder folder;
    auto parts = testing::read_parts(golden_folder("mtp-mimo"));
    std::swap(parts.get(a).data, parts.get(b).data);
    parts.write(folder.path());
    MtpRun run(folder.path(), *backend);
    const auto logits = run_golden(run, golden, 32);
    EXPECT_GT(testing::worst_error({reinterpret_cast<const float*>(want.data), size_t(want.elements())}, logits.data()),
              10 * kTolerance)
        << a;
  }
}

// The model does not load the blocks that its file has.
TEST(Mtp, BlocksAreNotWeightsOfTheModel) {
  const auto backend = make_reference_backend();
  auto parts = testing::read_parts(golden_folder("mtp-mimo"));
  const auto with = ModelFile::open(golden_folder("mtp-mimo"));
  EXPECT_EQ(with->config().layers, 7);
  EXPECT_EQ(with->config().mtp_blocks, 1);
  std::erase_if(parts.tensors,
                [](const testing::HeadPart& part) { return part.name.starts_with("model.mtp_layers."); });
  const TempFolder folder;
  parts.write(folder.path());
  const auto without = ModelFile::open(folder.path());
  EXPECT_EQ(without->config().mtp_blocks, 0);
  EXPECT_LT(without->tensors().size(), with->tensors().size());
  EXPECT_EQ(Model::load(with, *backend, {})->weight_bytes(), Model::load(without, *backend, {})->weight_bytes());
}

std::string why_not(const testing::HeadParts& parts) {
  const TempFolder folder;
  parts.write(folder.path());
  try {
    HeadFile::of_model(ModelFile::open(folder.path()));
  } catch (const Error& error) { return error.what(); }
  return {};
}

// A block that cannot draft does not keep its model from being opened: ModelFile::open passes in all of these.
TEST(Mtp, BlocksThatCannotDraftAreRefused) {
  const auto whole = testing::read_parts(golden_folder("mtp-deepseek"));
  EXPECT_EQ(why_not(whole), "");
  auto parts = whole;
  parts.remove("model.layers.7.mlp.up_proj.weight");
  EXPECT_NE(why_not(parts).find("layers.0.mlp.up_proj.weight"), std::string::npos) << why_not(parts);
  parts = whole;
  parts.reshape("model.layers.7.eh_proj.weight", {8, 8});
  EXPECT_NE(why_not(parts).find("has shape [8, 8], expected [8, 16]"), std::string::npos) << why_not(parts);
  parts = whole;
  parts.rename("model.layers.7.mlp.up_proj.weight", "model.layers.7.mlp.other.weight");
  EXPECT_NE(why_not(parts), "");
  parts = whole;  // a file from which the blocks were taken and whose config still promises them
  std::erase_if(parts.tensors, [](const testing::HeadPart& part) { return part.name.starts_with("model.layers.7."); });
  EXPECT_NE(why_not(parts).find("no MTP block"), std::string::npos) << why_not(parts);
  parts = whole;  // blocks that nobody promised are tensors too many
  parts.config.erase("num_nextn_predict_layers");
  EXPECT_NE(why_not(parts).find("not part of this architecture"), std::string::npos) << why_not(parts);
}

}  // namespace
}  // namespace sx
