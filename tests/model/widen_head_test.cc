// The wide twin of an EAGLE-3 head beside the wide twin of its target: the same logits as the pair it came from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/widen/widen_head.h"
#include "convert_fixture.h"
#include "heads/head_parts.h"
#include "model/heads/eagle.h"

namespace sx {
namespace {

using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;

// Logits of the head for every position of a text, fed with the states of the target.
std::vector<float> head_logits(const std::string& target_path, const std::string& head_path,
                               const std::vector<Token>& text) {
  auto backend = make_cpu_backend({1, cpu::available_isas().front()});
  const auto file = ModelFile::open(target_path);
  const auto head_file = HeadFile::open(head_path, file->config());
  const int rows = int(text.size());
  ModelOptions o;
  o.max_rows = o.max_outputs = rows;
  o.context = 256;
  o.taps = head_file->taps();
  auto target = Model::load(file, *backend, o);
  auto head = EagleHead::load(head_file, *target, *backend, {rows, rows, 256});
  auto kv = backend->make_kv(target->kv_geometry(1, 256, DType::kF32)),
       head_kv = backend->make_kv(head->kv_geometry(1, 256, DType::kF32));
  std::vector<int32_t> positions, outputs;
  for (int i = 0; i < rows; ++i) positions.push_back(i), outputs.push_back(i);
  const std::vector<SeqRows> seqs{{0, rows, 0, 0, nullptr, 0}};
  const auto& states = target->forward({text, positions, seqs, outputs}, *kv);
  std::vector<float> fused(size_t(rows) * size_t(head->config().cell.width));
  head->fuse(states.hidden, positions, fused.data());
  std::vector<Token> next(text.begin() + 1, text.end());
  next.push_back(text.front());
  const float* logits = head->forward({{next, positions, seqs, outputs}, fused.data()}, *head_kv).logits;
  return {logits, logits + text.size() * size_t(head->config().draft_vocab)};
}

struct Pair {
  TempFolder temp;
  TinySpec spec;
  Pair() {
    spec.layers = 5, spec.gain = 2;
    testing::write_tiny_gguf(temp.file("target.gguf"), spec);
  }
  void write_head(int layers, bool features, const std::vector<std::string>& extra) {
    const ModelConfig target = ModelFile::open(temp.file("target.gguf"))->config();
    auto config = testing::eagle3_config(target, layers, 100);
    if (features) config["eagle_aux_hidden_state_layer_ids"] = {1, 2, 4};
    testing::random_head(config, extra, target, DType::kF32, 3).write(temp.file("head"));
  }
};

TEST(WidenHead, ComputesTheSameBesideTheWideTarget) {
  const WideShape shape{160, 7, 12, 3, 32, 256};
  for (const int layers : {1, 2}) {
    for (const bool norm : {false, true}) {
      Pair pair;
      std::vector<std::string> extra{"d2t", "lm_head.weight"};
      if (norm) extra.push_back("input_norm.weight");
      pair.write_head(layers, true, extra);
      ASSERT_TRUE(is_eagle3_folder(pair.temp.file("head")));
      widen_model(*ModelFile::open(pair.temp.file("target.gguf")), {}, shape,
                  {.out = pair.temp.file("wide.gguf"), .types = {DType::kF32}});
      widen_eagle3(pair.temp.file("head"), shape, {.out = pair.temp.file("wide-head"), .types = {DType::kF32}});
      const auto text = random_text(60, pair.spec.vocab, 21);
      const auto before = head_logits(pair.temp.file("target.gguf"), pair.temp.file("head"), text);
      const auto after = head_logits(pair.temp.file("wide.gguf"), pair.temp.file("wide-head"), text);
      EXPECT_LT(largest_difference(before, after), 2e-4) << layers << " layers";
    }
  }
}

TEST(WidenHead, Refusals) {
  Pair pair;
  pair.write_head(1, false, {"d2t", "lm_head.weight"});
  const auto refusal = [&](DType type) {
    return message_of(
        [&] { widen_eagle3(pair.temp.file("head"), {.width = 128}, {.out = pair.temp.file("x"), .types = {type}}); });
  };
  EXPECT_THAT(refusal(DType::kBF16), HasSubstr("the layers it reads are not given"));
  EXPECT_THAT(refusal(DType::kQ8_0), HasSubstr("not Q8_0"));
  EXPECT_FALSE(is_eagle3_folder(pair.temp.file("target.gguf")));
  testing::write_tiny_hf(pair.temp.file("model"), {});
  EXPECT_FALSE(is_eagle3_folder(pair.temp.file("model")));
}

}  // namespace
}  // namespace sx
