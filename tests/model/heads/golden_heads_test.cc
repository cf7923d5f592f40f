// Draft heads against PyTorch: fused states, and states and logits of a chain and of a tree grown behind it, for each
// head of tests/golden/heads on the reference and on every CPU backend.
#include <gtest/gtest.h>

#include <cmath>

#include "every_backend.h"
#include "head_parts.h"
#include "model/heads/eagle.h"
#include "model/heads/medusa.h"

namespace sx {
namespace {

using testing::all_backends;
using testing::golden_folder;
using testing::worst_error;

struct Golden {
  explicit Golden(const std::string& name) : file(golden_folder(name) + "/golden.safetensors") {}
  template <class T>
  std::span<const T> values(const std::string& name) const {
    const Tensor& tensor = file.get(name);
    return {reinterpret_cast<const T*>(tensor.data), static_cast<size_t>(tensor.elements())};
  }
  SafetensorsFile file;
};

// |got - want| / |want| of all values together.
double mean_error(std::span<const float> want, const float* got) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    size += double(want[i]) * want[i];
  }
  return std::sqrt(error / size);
}

constexpr double kTolerance = 1e-4;
constexpr double kRoundedTolerance = 0.03;  // of CPU backends on quantised weights: they round activations to 8 bits

bool is_quantised(const std::string& name) { return name.ends_with("q8_0"); }

std::unique_ptr<Model> load_target(Backend& backend) {
  ModelOptions options;
  options.max_rows = 32;
  return Model::load(ModelFile::open(golden_folder("target")), backend, options);
}

// A run of a head over the golden's chain, then over its tree, level by level.
class HeadRun {
 public:
  HeadRun(const Golden& golden, const std::string& head_folder, Backend& backend, DType kv_type, bool rounds = false)
      : golden_(golden), error_(rounds ? mean_error : worst_error) {
    target_ = load_target(backend);
    auto file = HeadFile::open(head_folder, target_->config());
    EagleOptions options;
    options.max_rows = options.max_outputs = 32;
    head_ = EagleHead::load(file, *target_, backend, options);
    kv_ = backend.make_kv(head_->kv_geometry(1, 64, kv_type));
    width_ = size_t(head_->config().cell.width);
    vocab_ = size_t(head_->config().draft_vocab);
    tokens_ = golden.values<int32_t>("tokens");
    positions_ = golden.values<int32_t>("positions");
    parents_ = golden.values<int32_t>("parents");
    chain_ = int(tokens_.size() - parents_.size());
    states_.resize(tokens_.size() * width_);
    logits_.resize(tokens_.size() * vocab_);
  }

  const EagleHead& head() const { return *head_; }
  const Model& target() const { return *target_; }

  void check() {
    std::vector<float> fused(size_t(chain_) * width_);
    std::vector<const float*> taps;
    const auto values = golden_.values<float>("taps");
    const size_t features = head_->config().features.size();
    for (size_t i = 0; i < features; ++i) taps.push_back(values.data() + i * values.size() / features);
    head_->fuse(taps, testing::rows_from(0, 5), fused.data());
    head_->fuse(taps, testing::rows_from(5, chain_ - 5), fused.data() + 5 * width_);
    fused_error = error_(golden_.values<float>("fused"), fused.data());
    step(0, chain_, fused, {0, chain_, 0, 0});
    std::vector<uint64_t> ancestors;
    for (size_t i = 0; i < parents_.size(); ++i)
      ancestors.push_back(1ull << i | (parents_[i] < 0 ? 0 : ancestors[size_t(parents_[i])]));
    for (int done = 0, nodes = int(parents_.size()); done < nodes;) {  // nodes of one position are a level
      int rows = 1;
      while (done + rows < nodes && positions_[size_t(chain_ + done + rows)] == positions_[size_t(chain_ + done)])
        ++rows;
      std::vector<float> fed;
      for (int i = done; i < done + rows; ++i) {
        const int parent = parents_[size_t(i)];
        const auto from = states_.begin() + ptrdiff_t(size_t(parent < 0 ? chain_ - 1 : chain_ + parent) * width_);
        fed.insert(fed.end(), from, from + ptrdiff_t(width_));
      }
      step(chain_ + done, rows, fed, {0, rows, 0, chain_, &ancestors[size_t(done)], 1, done});
      done += rows;
    }
    states_error = error_(golden_.values<float>("states"), states_.data());
    logits_error = error_(golden_.values<float>("logits"), logits_.data());
  }

  // The state that one tap of 1 gives, all others 0, is a column of fc.
  std::vector<float> fc() {
    const size_t features = head_->config().features.size(), inputs = size_t(head_->config().target_width);
    std::vector<float> out(width_ * features * inputs), unit(features * inputs), column(width_);
    for (size_t i = 0; i < unit.size(); ++i) {
      std::fill(unit.begin(), unit.end(), 0.0f);
      unit[i] = 1;
      std::vector<const float*> taps;
      for (size_t f = 0; f < features; ++f) taps.push_back(&unit[f * inputs]);
      head_->fuse(taps, testing::rows_from(0, 1), column.data());
      for (size_t row = 0; row < width_; ++row) out[row * unit.size() + i] = column[row];
    }
    return out;
  }

  double fused_error = 0, states_error = 0, logits_error = 0;

 private:
  void step(int first, int rows, const std::vector<float>& fed, const SeqRows& seq) {
    std::vector<int32_t> outputs;  // backwards, as nobody says that they ascend
    for (int i = rows - 1; i >= 0; --i) outputs.push_back(i);
    const auto at = size_t(first), count = size_t(rows);
    const EagleOutputs& out = head_->forward(
        {{tokens_.subspan(at, count), positions_.subspan(at, count), {&seq, 1}, outputs}, fed.data()}, *kv_);
    std::copy_n(out.states, count * width_, &states_[at * width_]);
    for (size_t i = 0; i < count; ++i)
      std::copy_n(out.logits + (count - 1 - i) * vocab_, vocab_, &logits_[(at + i) * vocab_]);
  }

  const Golden& golden_;
  double (*error_)(std::span<const float> want, const float* got);
  std::unique_ptr<Model> target_;
  std::unique_ptr<EagleHead> head_;
  std::unique_ptr<KvStore> kv_;
  std::span<const int32_t> tokens_, positions_, parents_;
  std::vector<float> states_, logits_;  // [chain + nodes, width or vocab]
  size_t width_ = 0, vocab_ = 0;
  int chain_ = 0;
};

std::string test_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

void expect_map(const Golden& golden, std::span<const Token> map) {
  std::span<const int32_t> want;
  if (golden.file.find("token_map")) want = golden.values<int32_t>("token_map");
  EXPECT_TRUE(std::equal(map.begin(), map.end(), want.begin(), want.end()));
}

class EagleGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(EagleGolden, EveryBackend) {
  const Golden golden(GetParam());
  for (const auto& backend : all_backends()) {
    SCOPED_TRACE(backend->name());
    const bool rounds = is_quantised(GetParam()) && backend->name() != make_reference_backend()->name();
    HeadRun run(golden, golden_folder(GetParam()), *backend, DType::kF32, rounds);
    run.check();
    const double tolerance = rounds ? kRoundedTolerance : kTolerance;
    EXPECT_LE(run.fused_error, tolerance);
    EXPECT_LE(run.states_error, tolerance);
    EXPECT_LE(run.logits_error, tolerance);
    expect_map(golden, run.head().token_map());
    const auto features = golden.values<int32_t>("features");
    const auto& found = run.head().config().features;
    EXPECT_TRUE(std::equal(found.begin(), found.end(), features.begin(), features.end()));
    EXPECT_EQ(run.head().config().trained_length(), 64);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, EagleGolden,
                         ::testing::Values("eagle1", "eagle1-bias", "eagle3", "eagle3-speculators",
                                           "eagle3-speculators-default", "eagle3-before-residual", "eagle3-before-fc",
                                           "eagle31", "eagle3-own-embedding", "eagle3-shared-head", "eagle3-two-layers",
                                           "eagle1-own-head", "eagle1-three-layers", "eagle1-f16", "eagle3-f16",
                                           "eagle3-bf16", "eagle3-q8_0"),
                         test_name);

// Stored in 16 bits or quantised: every value of fc is the one that the file means, to the last bit.
TEST(StoredHead, ValuesAreThoseOfTheFile) {
  const auto backend = make_reference_backend();
  const std::pair<const char*, DType> heads[] = {
      {"eagle3-f16", DType::kF16}, {"eagle3-bf16", DType::kBF16}, {"eagle3-q8_0", DType::kQ8_0}};
  for (const auto& [name, type] : heads) {
    SCOPED_TRACE(name);
    const Golden golden(name);
    HeadRun run(golden, golden_folder(name), *backend, DType::kF32);
    const auto want = golden.values<float>("fc");
    EXPECT_EQ(run.fc(), std::vector<float>(want.begin(), want.end()));
    EXPECT_EQ(HeadFile::open(golden_folder(name), run.target().config())->get("fc.weight").type, type);
  }
}

class MedusaGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(MedusaGolden, EveryBackend) {
  const Golden golden(GetParam());
  for (const auto& backend : all_backends()) {
    SCOPED_TRACE(backend->name());
    const auto target = load_target(*backend);
    const auto heads =
        MedusaHeads::load(HeadFile::open(golden_folder(GetParam()), target->config()), *target, *backend, 8);
    const auto states = golden.values<float>("states"), logits = golden.values<float>("logits");
    const int rows = int(states.size()) / target->config().width;
    ASSERT_EQ(logits.size(), size_t(rows * heads->heads() * heads->config().draft_vocab));
    EXPECT_LE(worst_error(logits, heads->forward(states.data(), rows)), kTolerance);
    expect_map(golden, heads->token_map());
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, MedusaGolden,
                         ::testing::Values("medusa", "medusa-merged", "medusa-vllm", "medusa-shared",
                                           "medusa-three-blocks", "medusa-bf16"),
                         test_name);

// Each of these changes of a head's config or names must be seen in the numbers: the comparison can fail.
TEST(EagleGoldenNegative, AnotherConfigurationIsCaught) {
  const std::tuple<const char*, const char*, nlohmann::ordered_json> changes[] = {
      {"eagle3", "norm_before_residual", true},
      {"eagle3", "rope_theta", 500000.0},
      {"eagle3", "norm_output", true},
      {"eagle31", "norm_output", false},
      {"eagle3-before-residual", "norm_before_residual", false},
      {"eagle1", "rms_norm_eps", 0.05},
      {"eagle1", "rope_theta", 10000.0},
      {"eagle1-own-head", "rope_theta", 10000.0},
      {"eagle1-three-layers", "rms_norm_eps", 0.05},
      {"eagle3-speculators-default", "norm_before_residual", false}};
  const auto backend = make_reference_backend();
  for (const auto& [name, key, value] : changes) {
    const testing::TempFolder folder;
    auto parts = testing::read_parts(golden_folder(name));
    parts.config[key] = value;
    parts.write(folder.path());
    const Golden golden(name);
    HeadRun run(golden, folder.path(), *backend, DType::kF32);
    run.check();
    EXPECT_GT(run.logits_error, 10 * kTolerance) << name << ' ' << key;
  }
}

// The whole way: the states that a target's own pass taps, fused, drafted with.
TEST(EagleHead, ReadsTheTapsOfItsTarget) {
  const auto backend = make_reference_backend();
  const auto target_file = ModelFile::open(golden_folder("target"));
  for (const char* name : {"eagle3-speculators", "eagle1"}) {
    const auto file = HeadFile::open(golden_folder(name), target_file->config());
    ModelOptions options;
    options.max_rows = 8;
    options.taps = file->taps();
    const auto target = Model::load(target_file, *backend, options);
    const auto target_kv = backend->make_kv(target->kv_geometry(1, 64, DType::kF32));
    const Token tokens[] = {3, 1, 4, 1, 5};
    const int32_t positions[] = {0, 1, 2, 3, 4}, outputs[] = {4};
    const SeqRows seq = {0, 5, 0, 0};
    const StepOutputs& out = target->forward({tokens, positions, {&seq, 1}, outputs}, *target_kv);
    const auto head = EagleHead::load(file, *target, *backend, {});
    std::vector<float> fused(5 * 8);
    head->fuse(out.hidden, testing::rows_from(0, 5), fused.data());
    if (file->config().kind == HeadConfig::Kind::kEagle1) {  // post-norm: the target's head makes its logits of it
      std::vector<float> logits(40);
      backend->linear({logits.data(), &fused[4 * 8], &target->head(), nullptr, 1, 40});
      EXPECT_EQ(logits, std::vector<float>(out.logits, out.logits + 40));
    }
    const auto kv = backend->make_kv(head->kv_geometry(1, 64, DType::kF32));
    const EagleOutputs& draft = head->forward({{tokens, positions, {&seq, 1}, outputs}, fused.data()}, *kv);
    const size_t vocab = size_t(head->config().draft_vocab);
    const std::vector<float> first(draft.logits, draft.logits + vocab);
    // The next level may be given the states where they lie.
    const SeqRows next = {0, 1, 0, 5};
    const int32_t at = 5, zero = 0;
    std::vector<float> copied(draft.states + 4 * 8, draft.states + 5 * 8);
    head->forward({{{tokens, 1}, {&at, 1}, {&next, 1}, {&zero, 1}}, copied.data()}, *kv);
    const std::vector<float> second(draft.logits, draft.logits + vocab);
    head->forward({{tokens, positions, {&seq, 1}, outputs}, fused.data()}, *kv);
    std::copy_n(copied.data(), 8, const_cast<float*>(draft.states));
    head->forward({{{tokens, 1}, {&at, 1}, {&next, 1}, {&zero, 1}}, draft.states}, *kv);
    EXPECT_EQ(second, std::vector<float>(draft.logits, draft.logits + vocab));
    EXPECT_NE(first, second);
  }
}

}  // namespace
}  // namespace sx
