// The forward pass against transformers: hidden states before every layer, after the final norm, and the logits, for
// each tiny model of this folder on the reference and on every CPU backend. README.md describes the files.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/far_backend.h"
#include "support/model_writer.h"
#include "support/reference_backend.h"
#include "backend/registry.h"
#include "backends.h"
#include "formats/family.h"
#include "formats/safetensors.h"
#include "model/convert/convert.h"
#include "model/model.h"
#include "model/tree_invariance.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

struct Golden {
  explicit Golden(const std::string& name)
      : folder(std::string(SX_GOLDEN_DIR) + "/" + name), file(folder + "/golden.safetensors") {
    std::ifstream in(folder + "/golden.json");
    context = nlohmann::json::parse(in).at("context").get<int>();
  }
  template <class T>
  std::span<const T> values(const std::string& name) const {
    const Tensor& tensor = file.get(name);
    return {reinterpret_cast<const T*>(tensor.data), static_cast<size_t>(tensor.elements())};
  }
  std::string folder;
  SafetensorsFile file;
  int context = 0;
};

// Largest difference in units of the golden row's root mean square; got: one pointer per kept row.
double worst_error(std::span<const float> golden, const std::vector<const float*>& got) {
  const size_t width = golden.size() / got.size();
  double worst = 0;
  for (size_t r = 0; r < got.size(); ++r) {
    const float* want = golden.data() + r * width;
    double square = 0, largest = 0;
    for (size_t i = 0; i < width; ++i) {
      square += static_cast<double>(want[i]) * want[i];
      const double error = std::fabs(static_cast<double>(got[r][i]) - want[i]);
      largest = error <= largest ? largest : error;  // NaN stays
    }
    const double relative = largest / std::sqrt(square / static_cast<double>(width));
    worst = relative <= worst ? worst : relative;
  }
  return worst;
}

struct Errors {
  double hidden = 0, final = 0, logits = 0;
};

// Passes of the golden tokens through the model of a folder, compared with the golden activations.
class Passes {
 public:
  Passes(const Golden& golden, const std::string& model_folder, Backend& backend, DType kv_type) : golden_(golden) {
    file_ = ModelFile::open(model_folder);
    ModelOptions options;
    options.max_rows = 300;
    options.max_outputs = 300;
    options.context = golden.context;
    layers_ = file_->config().layers;
    for (int layer = 0; layer <= layers_; ++layer) options.taps.hidden.push_back(layer);
    model_ = Model::load(file_, backend, options);
    kv_ = backend.make_kv(model_->kv_geometry(1, golden.context, kv_type));
    width_ = static_cast<size_t>(file_->config().width);
    vocab_ = static_cast<size_t>(file_->config().vocab);
  }

  // The prompt in steps of `chunk` rows.
  Errors in_steps_of(int chunk) {
    const auto tokens = golden_.values<int32_t>("tokens");
    const int length = static_cast<int>(tokens.size());
    std::vector<std::vector<float>> hidden(static_cast<size_t>(layers_) + 1);
    std::vector<float> logits;
    for (int from = 0; from < length; from += chunk) {
      const int rows = std::min(chunk, length - from);
      std::vector<int32_t> positions, outputs;
      for (int i = 0; i < rows; ++i) positions.push_back(from + i), outputs.push_back(i);
      const SeqRows seq = {0, rows, 0, from, nullptr, 0};
      const StepOutputs& out = model_->forward(
          {tokens.subspan(static_cast<size_t>(from), static_cast<size_t>(rows)), positions, {&seq, 1}, outputs}, *kv_);
      for (size_t layer = 0; layer < hidden.size(); ++layer) {
        const float* state = out.hidden[layer];
        hidden[layer].insert(hidden[layer].end(), state, state + static_cast<size_t>(rows) * width_);
      }
      logits.insert(logits.end(), out.logits, out.logits + static_cast<size_t>(rows) * vocab_);
    }
    return compare(hidden, logits);
  }

 private:
  Errors compare(const std::vector<std::vector<float>>& hidden, const std::vector<float>& logits) {
    Errors errors;
    for (size_t layer = 0; layer + 1 < hidden.size(); ++layer) {
      const auto golden = golden_.values<float>("hidden." + std::to_string(layer));
      const double error = worst_error(golden, kept(hidden[layer], width_));
      errors.hidden = error <= errors.hidden ? errors.hidden : error;
    }
    std::vector<float> last = hidden.back();
    const std::vector<float> weight = final_norm("weight"), bias = final_norm("bias");
    make_reference_backend()->norm({.out = last.data(),
                                    .x = last.data(),
                                    .weight = weight.data(),
                                    .rows = static_cast<int>(last.size() / width_),
                                    .width = static_cast<int>(width_),
                                    .eps = file_->config().norm_eps,
                                    .centred = file_->config().centred_norms,
                                    .bias = bias.empty() ? nullptr : bias.data()});
    errors.final = worst_error(golden_.values<float>("final"), kept(last, width_));
    errors.logits = worst_error(golden_.values<float>("logits"), kept(logits, vocab_));
    return errors;
  }
  std::vector<float> final_norm(const std::string& part) const {
    const NamedTensor* found = file_->find("output_norm." + part);
    if (!found) return {};
    std::vector<float> values(width_);
    dequantise(found->tensor.type, found->tensor.data, found->tensor.elements(), values.data());
    if (part == "weight")
      for (float& value : values) value += file_->config().norm_offset;
    return values;
  }
  std::vector<const float*> kept(const std::vector<float>& all, size_t width) const {
    std::vector<const float*> out;
    for (const int32_t r : golden_.values<int32_t>("rows")) out.push_back(all.data() + static_cast<size_t>(r) * width);
    return out;
  }

  const Golden& golden_;
  std::shared_ptr<const ModelFile> file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
  int layers_ = 0;
  size_t width_ = 0, vocab_ = 0;
};

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Runs on the backend at several step sizes and expects errors up to `limit`.
  static void check(const Golden& golden, Backend& backend, DType kv_type, double limit) {
    SCOPED_TRACE(backend.name() + " with K/V in " + dtype_name(kv_type));
    Passes passes(golden, golden.folder, backend, kv_type);
    for (const int chunk : {300, 1, 37}) {
      const Errors errors = passes.in_steps_of(chunk);
      EXPECT_LE(errors.hidden, limit) << "steps of " << chunk;
      EXPECT_LE(errors.final, limit) << "steps of " << chunk;
      EXPECT_LE(errors.logits, limit) << "steps of " << chunk;
    }
  }
};

TEST_P(GoldenTest, Reference) {
  const Golden golden(GetParam());
  const auto backend = make_reference_backend();
  check(golden, *backend, DType::kF32, 1e-4);
}

TEST_P(GoldenTest, Cpu) {
  const Golden golden(GetParam());
  for (const auto& [name, make] : parity::test_backends()) {
    const auto exact = make(1), rounded = make(1);
    check(golden, *exact, DType::kF32, 1e-4);
    check(golden, *rounded, rounded->default_kv_type(), 0.08);
  }
}

// The same models as GGUF: written by convert, or, where the variable SPECEXTEND_GOLDEN_GGUF names a folder, files
// there.
TEST_P(GoldenTest, Gguf) {
  const Golden golden(GetParam());
  const testing::TempFolder temp;
  const char* given = std::getenv("SPECEXTEND_GOLDEN_GGUF");
  std::string path = given ? std::string(given) + "/" + GetParam() + ".gguf" : temp.file("model.gguf");
  const auto folder = ModelFile::open(golden.folder);
  if (given && !std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  if (!given && folder->config().rope.scaling == RopeScaling::kDynamic) GTEST_SKIP() << "GGUF cannot say it";
  if (!given && !folder->config().rope.yarn_truncate) GTEST_SKIP() << "GGUF cannot say it";
  if (!given && !family_of_gguf(folder->config().family->gguf)) GTEST_SKIP() << "it exists in folders only";
  if (!given && !folder->config().family->to_gguf) GTEST_SKIP() << "such files are read, not written";
  if (!given) convert_to_gguf(*folder, {}, {.out = path, .type = DType::kF32});
  const auto backend = make_reference_backend();
  Passes passes(golden, path, *backend, DType::kF32);
  const Errors errors = passes.in_steps_of(37);
  EXPECT_LE(errors.hidden, 1e-4);
  EXPECT_LE(errors.final, 1e-4);
  EXPECT_LE(errors.logits, 1e-4);
}

// Nodes of trees against their paths decoded one token at a time, by memcmp; beyond the window.
TEST_P(GoldenTest, TreesEqualPlainDecoding) {
  const std::string folder = std::string(SX_GOLDEN_DIR) + "/" + GetParam();
  unsigned seed = 0;
  for (const char* p = GetParam(); *p; ++p) seed = seed * 31 + static_cast<unsigned char>(*p);
  const testing::TreeSubject best{"cpu", [](int threads) { return make_cpu_backend({threads, std::nullopt}); }};
  const testing::TreeSubject far{
      "far", [](int threads) {
        return std::make_unique<testing::FarBackend>(make_cpu_backend({threads, std::nullopt}));
      }};
  testing::check_tree(folder, best, DType::kBF16, {90, 30}, 24, seed);
  testing::check_grown(folder, far, DType::kF32, {30, 64}, 20, true, seed + 1);
}

// Models that share weights and tokens but not the configuration: the comparison must tell them apart.
TEST(GoldenNegative, AnotherConfigurationIsCaught) {
  const std::pair<const char*, const char*> pairs[] = {
      {"llama", "llama-linear"}, {"llama", "llama-dynamic"},          {"llama", "llama-llama3"},
      {"llama", "llama-yarn"},   {"llama-yarn", "llama-yarn-factor"}, {"qwen2", "qwen2-window"},
      {"qwen3", "qwen3-yarn"},   {"granite4", "granite4-nope"},       {"internlm3", "internlm3-dynamic"}};
  for (const auto& [model, other] : pairs) {
    const Golden golden(other);
    const auto backend = make_reference_backend();
    Passes passes(golden, fmt::format("{}/{}", SX_GOLDEN_DIR, model), *backend, DType::kF32);
    EXPECT_GT(passes.in_steps_of(150).logits, 0.1) << model << " against " << other;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         ::testing::Values("llama", "llama-linear", "llama-dynamic", "llama-llama3", "llama-yarn",
                                           "llama-yarn-factor", "llama-bias", "mistral", "qwen2", "qwen2-window",
                                           "qwen3", "qwen3-yarn", "gemma3", "gemma2", "smollm3", "phi3", "olmo2",
                                           "olmo3", "granite", "glm4", "seed-oss", "exaone4", "cohere2", "starcoder2",
                                           "ernie4_5", "arcee", "helium", "qwen3moe", "mixtral", "olmoe", "gpt-oss",
                                           "ministral3", "hunyuan-dense", "granite4", "granite4-nope", "internlm3",
                                           "internlm3-dynamic", "falcon3"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace sx
