// Models of every family spread over ranks: logits, hidden states and queries have the bits of one process. Sessions
// move between one process and many, the plan of `inspect --ranks` is what ranks really hold and send, and what cannot
// work is refused with a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "backend/forwarding_backend.h"
#include "comm/family_results.h"
#include "comm/thread_ranks.h"
#include "engine/engine.h"
#include "specextend/ranks.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::family_results;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::ThreadRanks;
using testing::TinySpec;

std::unique_ptr<Backend> one_process() { return make_cpu_backend({1, std::nullopt}); }

class FamilyRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyRanks, GiveTheBitsOfOne) {
  const std::string path = std::string(SX_GOLDEN_DIR) + "/" + GetParam();
  auto alone = one_process();
  const std::vector<float> one = family_results(*alone, path);
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns})
    for (const int size : {1, 2, 3}) {
      ThreadRanks ranks(size, split);
      auto backend = ranks.backend();
      const std::vector<float> many = family_results(*backend, path);
      ASSERT_EQ(many.size(), one.size());
      EXPECT_EQ(std::memcmp(many.data(), one.data(), one.size() * sizeof(float)), 0)
          << size << " ranks by " << split_name(split);
    }
}

INSTANTIATE_TEST_SUITE_P(Golden, FamilyRanks, ::testing::ValuesIn(testing::models_in(SX_GOLDEN_DIR)),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

struct TinyFile {
  TinyFile() {
    TinySpec spec;
    spec.layers = 4, spec.gain = 2, spec.weights = DType::kQ8_0, spec.head_dim = 32;
    testing::write_tiny_gguf(path, spec);
  }
  TempFolder folder;
  std::string path = folder.file("tiny.gguf");
};

EngineOptions options_for(const TinyFile& file) {
  EngineOptions o;
  o.model = file.path, o.context = 256, o.threads = 1;
  return o;
}

TEST(Ranks, SessionsMoveBetweenOneProcessAndMany) {
  const TinyFile file;
  const std::vector<Token> prompt{5, 90, 17, 44, 31, 200, 9, 61, 77, 13, 101, 55};
  const GenerateOptions request{.max_tokens = 12, .ignore_end = true};
  EngineImpl alone(options_for(file), one_process());
  auto text = alone.start();
  const auto first = text->generate(prompt, request).tokens;
  std::stringstream by_one;
  text->save(by_one);
  std::vector<Token> longer(text->text().begin(), text->text().end());
  longer.push_back(7);
  const auto second = text->generate(longer, request).tokens;
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns}) {
    ThreadRanks ranks(3, split);
    EngineImpl many(options_for(file), ranks.backend());
    auto session = many.start();
    EXPECT_EQ(session->generate(prompt, request).tokens, first);
    std::stringstream by_many;
    session->save(by_many);
    EXPECT_EQ(by_many.str(), by_one.str()) << "saved cells, by " << split_name(split);
    session->truncate(0);
    by_many.seekg(0);
    session->restore(by_many);
    EXPECT_EQ(session->generate(longer, request).tokens, second);
  }
}

TEST(Ranks, PlanSaysWhatRankZeroSends) {
  const TinyFile file;
  for (const char* split : {"layers", "columns"})
    for (const int size : {2, 3}) {
      ThreadRanks ranks(size, split_from_name(split));
      EngineImpl engine(options_for(file), ranks.backend());
      auto session = engine.start();
      const std::vector<Token> prompt{5, 90, 17};
      session->evaluate(prompt, 1);
      const auto before = ranks.first().comm().traffic();
      const Token next = 8;
      session->evaluate(std::span(&next, 1), 1);
      const auto after = ranks.first().comm().traffic();
      const RankPlan plan = plan_ranks(file.path, size, split);
      EXPECT_EQ(after.messages - before.messages, plan.parts[0].messages) << split << " " << size;
      EXPECT_EQ(after.bytes - before.bytes, plan.parts[0].sent_bytes) << split << " " << size;
    }
}

TEST(Ranks, PlanDividesEverything) {
  const TinyFile file;
  for (const char* split : {"layers", "columns"}) {
    const RankPlan one = plan_ranks(file.path, 1, split), three = plan_ranks(file.path, 3, split);
    size_t kv = 0;
    int layers = 0, heads = 0;
    for (const RankPart& part : three.parts) {
      kv += part.kv_bytes_per_token, layers += part.layers, heads += part.kv_heads;
      EXPECT_LT(part.weight_bytes, one.parts[0].weight_bytes * 2 / 3);
    }
    EXPECT_EQ(kv, one.parts[0].kv_bytes_per_token);
    EXPECT_EQ(std::string(split) == "layers" ? layers : heads,
              std::string(split) == "layers" ? one.layers : one.kv_heads);
  }
}

// The shape of a 70B model, by its configuration alone.
TEST(Ranks, PlanOfAShapeWithoutWeights) {
  const TempFolder folder;
  testing::write_file(folder.file("config.json"), R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": false, "hidden_act": "silu"})");
  const RankPlan plan = plan_ranks(folder.path(), 4, "columns");
  ASSERT_EQ(plan.parts.size(), 4u);
  size_t weights = plan.parts[0].table_bytes;
  for (const RankPart& part : plan.parts) {
    EXPECT_EQ(part.kv_heads, 2);
    EXPECT_EQ(part.kv_bytes_per_token, 80u * 2 * 2 * 128 * 2);
    weights += part.weight_bytes;
  }
  EXPECT_NEAR(double(weights) / 141.1e9, 1, 0.01);  // 70.55 G parameters in 16 bits
  EXPECT_EQ(plan_ranks(folder.path(), 4, "layers", "q8_0", "q4_0").parts[3].first_layer, 60);
  EXPECT_THROW(plan_ranks(folder.path(), 4, "rows"), Error);
  EXPECT_THROW(plan_ranks(folder.path(), 0, "layers"), Error);
}

// A prompt chunk whose logits nobody wants: the first stage goes on with the next one while later stages are still at
// it. Here they never begin.
TEST(Ranks, AStageIsFreeWhenItHasHandedOn) {
  const TinyFile file;
  auto comms = make_thread_ranks(2);
  auto ranks = std::make_shared<Ranks>(std::shared_ptr<Communicator>(std::move(comms[0])), RankSplit::kLayers);
  ranks->comm().deadline_seconds = 0.2;
  RankedBackend backend(one_process(), ranks);
  ModelOptions options;
  options.max_rows = 8, options.max_outputs = 2, options.context = 64, options.spread = true;
  auto model = Model::load(ModelFile::open(file.path), backend, options);
  auto kv = backend.make_kv(model->kv_geometry(1, 64, DType::kF32));
  const std::vector<Token> tokens{5, 90, 17, 44};
  const auto run = [&](int history, std::vector<int32_t> outputs) {
    const std::vector<int32_t> positions{history, history + 1, history + 2, history + 3};
    const SeqRows seq{.first_row = 0, .rows = 4, .slot = 0, .history = history};
    model->forward(
        {.tokens = tokens, .positions = positions, .seqs = std::span(&seq, 1), .outputs = outputs, .prompt = true},
        *kv);
  };
  run(0, {});
  run(4, {});
  EXPECT_THROW(run(8, {3}), Error);  // logits come from the last stage
}

// A backend whose steps take a millisecond per row, whatever else the machine does.
class SlowSteps final : public ForwardingBackend {
 public:
  SlowSteps() : ForwardingBackend(one_process()) {}
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(inputs.tokens.size()));
    ForwardingBackend::run(inputs, key, body);
  }
};

// Trees of several requests: stages work on different requests at the same time, and the logits are the same.
TEST(Ranks, SeveralRequestsFillTheStages) {
  constexpr int kSeqs = 4, kRows = 10, kVocabRows = kSeqs * kRows;
  const TinyFile file;
  std::vector<double> ms;
  std::vector<std::vector<float>> logits;
  for (const int micro_rows : {1 << 20, kRows}) {
    ThreadRanks ranks(2, RankSplit::kLayers, [](int) { return std::make_unique<SlowSteps>(); });
    ranks.first().micro_rows = micro_rows;
    auto backend = ranks.backend();
    ModelOptions options;
    options.max_rows = options.max_outputs = kVocabRows, options.context = 64;
    auto model = load_on_ranks(ModelFile::open(file.path), *backend, options);
    auto kv = backend->make_kv(model->kv_geometry(kSeqs, 64, DType::kF32));
    std::vector<Token> tokens;
    std::vector<int32_t> positions, outputs;
    std::vector<SeqRows> seqs;
    for (int i = 0; i < kVocabRows; ++i) {
      tokens.push_back(Token(3 + i * 5 % 90)), positions.push_back(i % kRows), outputs.push_back(i);
      if (i % kRows == 0) seqs.push_back({.first_row = i, .rows = kRows, .slot = i / kRows, .history = 0});
    }
    const auto start = std::chrono::steady_clock::now();
    const StepOutputs& out =
        model->forward({.tokens = tokens, .positions = positions, .seqs = seqs, .outputs = outputs}, *kv);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    logits.emplace_back(size_t(kVocabRows) * size_t(model->config().vocab));
    backend->download(logits.back().data(), out.logits, logits.back().size());
    model.reset(), kv.reset();
  }
  EXPECT_EQ(std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)), 0);
  // Two stages of 40 ms one after the other, against five slots of 10 ms.
  EXPECT_GE(ms[0], 80);
  EXPECT_LT(ms[1], ms[0] * 0.85) << ms[0];
  RecordProperty("whole_ms", int(ms[0]));
  RecordProperty("micro_batches_ms", int(ms[1]));
}

// Also one whose text is long enough that its cells are given back.
TEST(Ranks, SessionsEndWhenARankIsLost) {
  const TinyFile file;
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns}) {
    ThreadRanks ranks(2, split);
    EngineOptions options = options_for(file);
    options.context = 2048;
    EngineImpl engine(options, ranks.backend());
    auto session = engine.start();
    session->evaluate(std::vector<Token>(1500, 7), 1);
    ranks.first().comm().abort("rank 1 has ended without a word");
    GenerateOptions request{.max_tokens = 3, .ignore_end = true};
    try {
      session->generate(std::vector<Token>(1501, 7), request);
      FAIL() << "the rank was lost";
    } catch (const Error& e) { EXPECT_THAT(e.what(), HasSubstr("rank 1 has ended without a word")); }
    EXPECT_NO_THROW(session.reset());
  }
}

TEST(Ranks, ARankThatCannotLoadIsNamed) {
  const TinyFile file;
  ThreadRanks ranks(2, RankSplit::kColumns);
  auto backend = ranks.backend();
  const auto model = ModelFile::open(file.path);
  std::filesystem::remove(file.path);  // rank 1 opens it after this
  try {
    load_on_ranks(model, *backend, {});
    FAIL() << "the file was gone";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("rank 1"));
    EXPECT_THAT(e.what(), HasSubstr("cannot open"));
  }
}

TEST(Ranks, AnotherModelIsRefused) {
  const TinyFile file, other;
  TinySpec spec;
  spec.layers = 4, spec.gain = 2, spec.weights = DType::kQ8_0, spec.head_dim = 32, spec.seed = 2;
  ThreadRanks ranks(3, RankSplit::kLayers);
  auto backend = ranks.backend();
  const auto model = ModelFile::open(file.path);
  std::filesystem::remove(file.path);
  testing::write_tiny_gguf(file.path, spec);
  try {
    load_on_ranks(model, *backend, {});
    FAIL() << "rank 1 has another model";
  } catch (const Error& e) { EXPECT_THAT(e.what(), HasSubstr("its model is not that of rank 0")); }
  // The ranks are still there for a job that is right.
  backend = ranks.backend();
  EXPECT_NO_THROW(load_on_ranks(ModelFile::open(other.path), *backend, {}));
}

}  // namespace
}  // namespace sx
