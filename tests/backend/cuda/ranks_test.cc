// Ranks on devices: N ranks give the bits of one, by layers and by columns, with rows that travel through host memory
// and with rows that the devices exchange themselves (a stand-in for NCCL that is part of recorded steps). The ranks
// are threads, and on CUDA all of them share the first GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "backend/cuda/subject.h"
#include "comm/thread_ranks.h"
#include "engine/engine.h"
#include "engine/engine_cases.h"
#include "specextend/ranks.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::engine_cases;
using testing::EngineCase;
using testing::EngineRun;
using testing::FarBackend;
using testing::run_engine;
using testing::ThreadRanks;

// Far memory, and a link between far memories over a communicator of its own.
class LinkedFar final : public FarBackend, public DeviceLink {
 public:
  LinkedFar(std::shared_ptr<Communicator> comm, std::string device)
      : FarBackend(make_cpu_backend({1, std::nullopt})), comm_(std::move(comm)), device_(std::move(device)) {}
  DeviceLink* link() override { return this; }
  std::string name() const override { return FarBackend::name(); }
  Offer offer() override { return {device_, ""}; }
  std::vector<std::byte> new_id() override { return {std::byte{42}}; }
  void join(std::span<const std::byte> id, int rank, int size) override {
    EXPECT_EQ(id[0], std::byte{42});
    EXPECT_EQ(rank, comm_->rank());
    EXPECT_EQ(size, comm_->size());
  }
  void give_up(const std::string& why) noexcept override { comm_->abort(why); }
  void check() const override {}  // every exchange is over when it returns
  void exchange(std::span<const Part> out, std::span<const Part> in) override {
    std::vector<Outgoing> sent;
    std::vector<Incoming> received;
    for (const Part& part : out)
      sent.push_back({part.rank, std::as_bytes(std::span(reach(part.data, part.count), part.count))});
    for (const Part& part : in)
      received.push_back({part.rank, std::as_writable_bytes(std::span(reach(part.data, part.count), part.count))});
    comm_->exchange(sent, received);
  }

 private:
  std::shared_ptr<Communicator> comm_;
  std::string device_;
};

// Backends of `size` ranks that are linked; one_device: all of them say that they are on the same.
sx::ThreadRanks::MakeBackend linked(int size, bool one_device = false) {
  std::vector<std::shared_ptr<Communicator>> comms;
  for (auto& comm : make_thread_ranks(size)) comms.push_back(std::move(comm));
  return [comms, one_device](int rank) -> std::unique_ptr<Backend> {
    return std::make_unique<LinkedFar>(comms[size_t(rank)], one_device ? "one" : std::to_string(rank));
  };
}

struct Subject {
  std::string name;
  std::function<sx::ThreadRanks::MakeBackend(int size)> ranks;
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

const Subject kFar{"far", [](int) { return [](int) { return testing::far_subject().make(1); }; }};
const Subject kLinked{"linked", [](int size) { return linked(size); }};
const Subject kCuda{"cuda", [](int) { return [](int) { return make_cuda_backend({}); }; }};

class RanksOn : public ::testing::TestWithParam<std::tuple<Subject, EngineCase>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()).name != "cuda") return;
    if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(RanksOn, GiveTheBitsOfOne) {
  const auto& [subject, c] = GetParam();
  const EngineRun one = run_engine(c.spec, subject.ranks(1)(0));
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns})
    for (const int size : {2, 3}) {
      if (size > 2 && subject.name == "cuda") continue;  // they share one GPU, and its time is dear
      ThreadRanks ranks(size, split, subject.ranks(size));
      const EngineRun many = run_engine(c.spec, ranks.backend());
      EXPECT_EQ(c.name == "with_costs" ? text_difference(many, one) : tree_difference(many, one), "")
          << size << " ranks by " << split_name(split);
    }
}

std::vector<EngineCase> cases(bool all) {
  std::vector<EngineCase> chosen{{"plain", {}}};
  for (const EngineCase& c : engine_cases())
    if (!c.name.starts_with("longspec") &&
        (all || c.name == "specextend" || c.name == "eagle3" || c.name == "self_skip" || c.name == "suffix"))
      chosen.push_back(c);
  return chosen;
}
std::string name_of(const ::testing::TestParamInfo<std::tuple<Subject, EngineCase>>& test) {
  return std::get<0>(test.param).name + "_" + std::get<1>(test.param).name;
}
INSTANTIATE_TEST_SUITE_P(Far, RanksOn,
                         ::testing::Combine(::testing::Values(kFar, kLinked), ::testing::ValuesIn(cases(false))),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, RanksOn, ::testing::Combine(::testing::Values(kCuda), ::testing::ValuesIn(cases(true))),
                         name_of);

// Who shares a device has no link: rows go through host memory, and the name says why.
TEST(FarRanks, OneDeviceForTwoRanksHasNoLink) {
  const EngineRun one = run_engine({}, testing::far_subject().make(1));
  ThreadRanks ranks(2, RankSplit::kColumns, linked(2, true));
  EXPECT_EQ(tree_difference(run_engine({}, ranks.backend()), one), "");
  const testing::TempFolder folder;
  const std::string path = folder.file("tiny.gguf");
  testing::write_tiny_gguf(path, {});
  auto backend = ranks.backend();
  load_on_ranks(ModelFile::open(path), *backend, {});
  EXPECT_NE(backend->name().find("through host memory: ranks 0 and 1 share a device"), std::string::npos)
      << backend->name();
  backend.reset();
  ThreadRanks apart(2, RankSplit::kColumns, linked(2));
  backend = apart.backend();
  load_on_ranks(ModelFile::open(path), *backend, {});
  EXPECT_NE(backend->name().find(" with far cpu"), std::string::npos) << backend->name();
}

// Golden models of every family, mixtures among them: a prompt, a token and a tree.
void compare_families(const Subject& subject) {
  for (const char* name : {"llama", "qwen3", "olmo2", "mixtral", "gpt-oss"}) {
    const auto texts = [&](std::unique_ptr<Backend> backend) {
      EngineOptions options;
      options.model = std::string(SX_GOLDEN_DIR) + "/" + name;
      options.context = 128, options.startup_cache.clear();
      EngineImpl engine(options, std::move(backend));
      auto session = engine.start();
      std::vector<Token> prompt(40);
      for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = Token(3 + i * 7 % 50);
      std::vector<float> logits;
      const auto add = [&](std::span<const Token> tokens, int rows) {
        const auto got = session->evaluate(tokens, rows);
        logits.insert(logits.end(), got.begin(), got.end());
      };
      add(prompt, 3);
      for (Token t = 5; t < 9; ++t) add(std::span(&t, 1), 1);
      return logits;
    };
    const auto one = texts(subject.ranks(1)(0));
    for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns}) {
      ThreadRanks ranks(2, split, subject.ranks(2));
      const auto many = texts(ranks.backend());
      ASSERT_EQ(many.size(), one.size());
      EXPECT_EQ(std::memcmp(many.data(), one.data(), one.size() * sizeof(float)), 0)
          << name << " on 2 ranks by " << split_name(split);
    }
  }
}
TEST(FarRanks, EveryFamily) { compare_families(kFar), compare_families(kLinked); }
TEST(CudaRanks, EveryFamily) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  compare_families(kCuda);
}

// The fastest of several runs and the one in the middle.
struct Times {
  explicit Times(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    best = all.front(), median = all[all.size() / 2];
  }
  double best, median;
};
double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

// What a token costs with ranks that share a device: messages, bytes, and time; bench/cuda/run_ranks.sh collects it.
// The numbers that are sent do not depend on the device, the times are only printed.
void measure_tokens(const Subject& subject, int tokens, int runs) {
  constexpr int kLayers = 16;
  const testing::TempFolder folder;
  const std::string path = folder.file("tiny.gguf");
  testing::TinySpec spec;
  spec.layers = kLayers, spec.weights = DType::kBF16, spec.width = 256, spec.heads = 8, spec.kv_heads = 4,
  spec.head_dim = 64, spec.ffn = 512;
  testing::write_tiny_gguf(path, spec);
  double one = 0;
  const auto measure = [&](const std::string& what, std::unique_ptr<Backend> backend, Ranks* ranks) {
    EngineOptions options;
    options.model = path, options.startup_cache.clear();
    EngineImpl engine(options, std::move(backend));
    auto session = engine.start();
    std::vector<Token> prompt(32, 7);
    session->evaluate(prompt, 1);
    const Token next = 9;
    const auto step = [&] { session->evaluate(std::span(&next, 1), 1); };
    step(), step();
    const Communicator::Traffic before = ranks ? ranks->comm().traffic() : Communicator::Traffic{};
    std::vector<double> all;
    for (int run = 0; run < runs; ++run) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < tokens; ++i) step();
      all.push_back(microseconds_since(start) / tokens);
    }
    const Communicator::Traffic after = ranks ? ranks->comm().traffic() : Communicator::Traffic{};
    const Times times(all);
    const int steps = tokens * runs;
    std::printf("measured: %s: %.1f us a token (median %.1f)", what.c_str(), times.best, times.median);
    if (!ranks) one = times.best;
    if (ranks) {
      const bool columns = ranks->by_columns();
      const int waits = columns ? 4 * kLayers : 1;
      std::printf(
          ", %.1f us more than one rank: %.1f us for each of %d %s; rank 0 sends %.1f messages, %.0f bytes a token",
          times.best - one, (times.best - one) / waits, waits, columns ? "gathers" : "borders",
          double(after.messages - before.messages) / steps, double(after.bytes - before.bytes) / steps);
      const RankPlan plan = plan_ranks(path, 2, split_name(ranks->split()));
      if (subject.name != "linked") {
        EXPECT_EQ(after.messages - before.messages, plan.parts[0].messages * size_t(steps));
      }
    }
    std::printf("\n");
  };
  measure(subject.name + ", one rank", subject.ranks(1)(0), nullptr);
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns}) {
    ThreadRanks ranks(2, split, subject.ranks(2));
    measure(subject.name + ", 2 ranks by " + split_name(split), ranks.backend(), &ranks.first());
  }
}
TEST(FarRanks, MessagesAndTime) { measure_tokens(kFar, 4, 1); }
TEST(CudaRanks, MessagesAndTime) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  measure_tokens(kCuda, 64, 7);
}

}  // namespace
}  // namespace sx
