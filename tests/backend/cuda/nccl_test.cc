// The link between devices that NCCL makes. On far memory a stand-in for the library joins ranks that are threads
// (support/nccl_stand_in.h), loses messages and reports errors; on CUDA it is NCCL itself, of a rank with itself, and
// of two processes that share the GPU. A rank that is lost while a device waits for its messages gives every request
// an error that names it.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>

#include "backend/cuda/subject.h"
#include "backend/nccl_link.h"
#include "backend/ranks/link_watch.h"
#include "base/error.h"
#include "comm/thread_ranks.h"
#include "engine/engine.h"
#include "engine/engine_cases.h"
#include "support/model_writer.h"
#include "support/nccl_stand_in.h"

extern char** environ;

namespace sx {
namespace {

using namespace std::chrono_literals;
using testing::FarBackend;
using ::testing::HasSubstr;
using testing::run_engine;
using testing::ThreadRanks;
using Clock = std::chrono::steady_clock;

constexpr const char* kLostRank = "rank 1 (here, process 17) has ended without a word";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What the link throws, and "" if it does not.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& e) { return e.what(); }
  return "";
}

// The functions of the stand-in, which is loaded as the link loads it.
struct StandIn {
  StandIn() {
    void* const library = ::dlopen(SX_NCCL_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    SX_ASSERT(library);
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      SX_ASSERT(function);
    };
    find("nccl_stand_in_wait", wait), find("nccl_stand_in_silence", silence), find("nccl_stand_in_lost", lost);
    find("nccl_stand_in_received", received), find("nccl_stand_in_aborted", aborted);
    find("nccl_stand_in_error", error), find("nccl_stand_in_hold_aborts", hold_aborts);
  }
  decltype(&nccl_stand_in_wait) wait;
  decltype(&nccl_stand_in_silence) silence;
  decltype(&nccl_stand_in_lost) lost;
  decltype(&nccl_stand_in_received) received;
  decltype(&nccl_stand_in_aborted) aborted;
  decltype(&nccl_stand_in_error) error;
  decltype(&nccl_stand_in_hold_aborts) hold_aborts;
};
const StandIn& stand_in() {
  static const StandIn one;
  return one;
}

// Far memory with a link by NCCL's stand-in. Ops of far memory are done when they return, so every exchange is waited
// for, as the host waits for a GPU.
class NcclFar final : public FarBackend, public DeviceLink {
 public:
  explicit NcclFar(int rank)
      : FarBackend(make_cpu_backend({1, std::nullopt})), link_(make_nccl_link(std::make_unique<Device>(rank, this))) {}
  DeviceLink* link() override { return this; }
  std::string name() const override { return FarBackend::name(); }
  Offer offer() override { return link_->offer(); }
  std::vector<std::byte> new_id() override { return link_->new_id(); }
  void join(std::span<const std::byte> id, int rank, int size) override { link_->join(id, rank, size); }
  void exchange(std::span<const Part> out, std::span<const Part> in) override {
    std::vector<Part> sent(out.begin(), out.end()), received(in.begin(), in.end());
    for (auto* parts : {&sent, &received})
      for (Part& part : *parts) part.data = reach(part.data, part.count);
    link_->exchange(sent, received);
    const Wait waits(this);
    stand_in().wait(this);
    waits.check();
  }
  void give_up(const std::string& why) noexcept override { link_->give_up(why); }
  void check() const override { link_->check(); }
  std::string trouble() override { return link_->trouble(); }

 private:
  class Device final : public NcclDevice {
   public:
    Device(int rank, void* stream) : rank_(rank), stream_(stream) {}
    std::string name() override { return fmt::format("far {}", rank_); }
    void* stream() override { return stream_; }
    void bind() override {}
    float* allocate(size_t count) override { return new float[count](); }
    void release(float* data) override { delete[] data; }
    void wait() override { stand_in().wait(stream_); }

   private:
    int rank_;
    void* stream_;
  };
  std::unique_ptr<DeviceLink> link_;
};

std::unique_ptr<Backend> far_rank(int rank) { return std::make_unique<NcclFar>(rank); }

class FarNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    // The library is looked for once in the life of a process; the CUDA backend looks for its own.
    ::setenv("SPECEXTEND_NCCL_LIBRARY", SX_NCCL_STAND_IN, 1);
    const auto offer = NcclFar(0).offer();
    ::unsetenv("SPECEXTEND_NCCL_LIBRARY");
    ASSERT_EQ(offer.why_not, "");
    testing::TinySpec spec;
    spec.gain = 2;
    testing::write_tiny_gguf(options_.model = folder_.file("tiny.gguf"), spec);
    options_.context = 256, options_.startup_cache.clear();
  }
  void TearDown() override {
    stand_in().silence(-1, 0);
    stand_in().error(0);
  }

  // The logits of what is generated, as far as it goes.
  std::vector<float> generate(EngineImpl& engine, std::vector<float>* out) const {
    GenerateOptions request;
    request.max_tokens = 40, request.ignore_end = true, request.sampling.temperature = 1, request.sampling.seed = 5;
    request.on_logits = [out](std::span<const float> row) { out->insert(out->end(), row.begin(), row.end()); };
    std::vector<Token> prompt(20);
    std::iota(prompt.begin(), prompt.end(), 3);
    engine.start()->generate(prompt, request);
    return *out;
  }

  testing::TempFolder folder_;
  EngineOptions options_;
};

TEST_F(FarNccl, GivesTheBitsOfOne) {
  for (const char* name : {"plain", "suffix", "eagle3"}) {
    SpecOptions spec;
    for (const testing::EngineCase& c : testing::engine_cases())
      if (c.name == name) spec = c.spec;
    const auto one = run_engine(spec, testing::far_subject().make(1));
    for (const int size : {2, 3}) {
      const int before = stand_in().received();
      ThreadRanks ranks(size, RankSplit::kColumns, far_rank);
      EXPECT_EQ(tree_difference(run_engine(spec, ranks.backend()), one), "") << name << " on " << size << " ranks";
      EXPECT_GT(stand_in().received() - before, 100 * size);
    }
  }
}

TEST_F(FarNccl, TwoRanksOfOneDeviceJoinAsTwoMachines) {
  const auto before = NcclFar(0).offer();
  ::setenv("NCCL_HOSTID", "another", 1);
  const auto other = NcclFar(0).offer();
  ::unsetenv("NCCL_HOSTID");
  EXPECT_EQ(before.device, "far 0");
  EXPECT_NE(other.device, before.device);
}

// A rank whose messages stop, at any of them: as long as nobody says that it is lost the others wait; then every
// request fails with the reason, on all ranks, and no wrong number has come out.
TEST_F(FarNccl, ALostRankGivesRequestsAnError) {
  std::vector<float> expected;
  {
    EngineImpl engine(options_, testing::far_subject().make(1));
    generate(engine, &expected);
  }
  for (const int size : {2, 3})
    for (const int after : {0, 1, 9, 10, 100, 200}) {
      const int lost_before = stand_in().lost(), aborted_before = stand_in().aborted();
      stand_in().silence(1, after);
      auto ranks = std::make_unique<ThreadRanks>(size, RankSplit::kColumns, far_rank);
      Clock::time_point said;
      std::thread watch([&] {  // as a RankMonitor would
        const auto start = Clock::now();
        while (stand_in().lost() == lost_before && seconds_since(start) < 60) std::this_thread::sleep_for(1ms);
        EXPECT_GT(stand_in().lost(), lost_before) << "no rank has fallen silent";
        std::this_thread::sleep_for(50ms);
        said = Clock::now();
        ranks->first().comm().abort(kLostRank);
      });
      std::vector<float> logits;
      std::unique_ptr<EngineImpl> engine;
      const std::string error = error_of([&] {
        engine = std::make_unique<EngineImpl>(options_, ranks->backend());
        generate(*engine, &logits);
      });
      const auto failed = Clock::now();
      watch.join();
      EXPECT_THAT(error, HasSubstr(kLostRank)) << size << " ranks, after " << after;
      EXPECT_GE(failed, said) << "it has not waited";
      EXPECT_LT(std::chrono::duration<double>(failed - said).count(), 10);
      ASSERT_LE(logits.size(), expected.size());
      EXPECT_EQ(logits.empty(), after < 100) << "lost where nothing is learnt from it";
      EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0);
      if (engine) {
        EXPECT_THAT(error_of([&] { generate(*engine, &logits); }), HasSubstr(kLostRank)) << "a later request";
      }
      engine.reset();
      ranks.reset();  // the other ranks come back as well
      EXPECT_LT(seconds_since(said), 10);
      EXPECT_EQ(stand_in().aborted() - aborted_before, size);
    }
}

// A host that is still enqueuing when a rank is lost has to hear of it, though NCCL's abort waits for its recorded
// steps.
TEST_F(FarNccl, AnExchangeDoesNotWaitForAnAbort) {
  NcclFar far(0);
  far.join(far.new_id(), 0, 1);
  const int before = stand_in().aborted();
  stand_in().hold_aborts(true);
  far.give_up(kLostRank);
  for (int i = 0; i < 5000 && stand_in().aborted() == before; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(stand_in().aborted(), before + 1);
  auto error = std::async(std::launch::async, [&] { return error_of([&] { far.exchange({}, {}); }); });
  EXPECT_EQ(error.wait_for(10s), std::future_status::ready) << "it waits for the abort";
  stand_in().hold_aborts(false);
  EXPECT_THAT(error.get(), HasSubstr(kLostRank));
}

// A link that only says what a test wants.
class Told final : public DeviceLink {
 public:
  std::string name() const override { return "told"; }
  Offer offer() override { return {}; }
  std::vector<std::byte> new_id() override { return {}; }
  void join(std::span<const std::byte>, int, int) override {}
  void exchange(std::span<const Part>, std::span<const Part>) override {}
  void give_up(const std::string& why) noexcept override { given_up.set_value(why); }
  void check() const override {}
  std::string trouble() override { return in_trouble ? "NCCL: a broken cable" : ""; }
  std::promise<std::string> given_up;
  std::atomic<bool> in_trouble{false};
};
std::string given_up(Told& link) {
  auto future = link.given_up.get_future();
  return future.wait_for(10s) == std::future_status::ready ? future.get() : "";
}

TEST(FarLinkWatch, TroubleOfTheLinkEndsTheJob) {
  const auto comms = make_thread_ranks(2);
  Told link;
  const LinkWatch watch(*comms[0], link, 0.05);
  link.in_trouble = true;
  EXPECT_EQ(given_up(link), "the ranks have given up: rank 0: NCCL: a broken cable");
  EXPECT_EQ(comms[1]->lost(), "rank 0: NCCL: a broken cable");
}

TEST(FarLinkWatch, WhoIsLostIsTheCommunicatorsToSay) {
  const auto comms = make_thread_ranks(2);
  Told link;
  const LinkWatch watch(*comms[0], link);
  link.in_trouble = true;  // as NCCL is when a process has gone
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(comms[0]->lost(), "");
  comms[1]->abort(kLostRank);
  EXPECT_EQ(given_up(link), std::string("the ranks have given up: ") + kLostRank);
}

TEST(FarLinkWatch, WaitsForTheDeviceEndAtTheDeadline) {
  const auto comms = make_thread_ranks(2);
  comms[0]->deadline_seconds = 0.1;
  Told link;
  const LinkWatch watch(*comms[0], link);
  std::this_thread::sleep_for(150ms);
  EXPECT_EQ(comms[0]->lost(), "");
  const DeviceLink::Wait waits(&link);
  EXPECT_THAT(given_up(link), HasSubstr("rank 0 has waited 0.1 s for messages to its device"));
}

// NCCL itself.
class CudaLink : public ::testing::Test {
 protected:
  static constexpr size_t kCount = 8192;

  void SetUp() override {
    if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
    backend_ = make_cuda_backend({});
    link_ = backend_->link();
    if (const auto offer = link_->offer(); !offer.why_not.empty()) GTEST_SKIP() << offer.why_not;
    StepLimits limits;
    limits.rows = 4, limits.width = 64, limits.context = 64, limits.outputs = 4, limits.vocab = 64;
    backend_->reserve(limits);
    from_ = backend_->allocate(kCount, "from"), to_ = backend_->allocate(kCount, "to");
  }

  // A step whose key is `key`, recorded the first time; how often its body was called.
  template <class Body>
  int run(const void* key, Body body) {
    int calls = 0;
    backend_->run({.tokens = tokens_, .positions = positions_, .seqs = std::span(&seq_, 1), .outputs = {}},
                  {key, nullptr, nullptr, 0}, [&] { ++calls, body(); });
    return calls;
  }
  void exchange_with(int peer) {
    const DeviceLink::Part out{peer, from_, kCount}, in{peer, to_, kCount};
    link_->exchange(std::span(&out, 1), std::span(&in, 1));
  }
  std::vector<float> received() {
    std::vector<float> got(kCount);
    backend_->download(got.data(), to_, kCount);
    return got;
  }
  static std::vector<float> numbers(int from) {
    std::vector<float> all(kCount);
    std::iota(all.begin(), all.end(), float(from));
    return all;
  }
  void send_numbers(int from) { backend_->upload(from_, numbers(from).data(), kCount); }

  // Two processes that share the GPU: NCCL takes them for two machines.
  static void be_machine(const std::string& name) {
    ::setenv("NCCL_HOSTID", name.c_str(), 1), ::setenv("NCCL_NET", "Socket", 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1), ::setenv("NCCL_IB_DISABLE", "1", 1);
  }
  static constexpr int kTurns = 4;
  void turn_with(int peer, int me, int turn) {
    send_numbers(1000 * turn + me);
    EXPECT_EQ(run(&kTurns, [&] { exchange_with(peer); }), turn == 0 ? 1 : 0);
    EXPECT_EQ(received(), numbers(1000 * turn + peer)) << "turn " << turn;
  }

  std::unique_ptr<Backend> backend_;
  DeviceLink* link_ = nullptr;
  float *from_ = nullptr, *to_ = nullptr;
  const std::vector<Token> tokens_{1};
  const std::vector<int32_t> positions_{0};
  const SeqRows seq_{.first_row = 0, .rows = 1, .slot = 0, .history = 0};
};

TEST_F(CudaLink, AMessageIsPartOfARecordedStep) {
  link_->join(link_->new_id(), 0, 1);
  std::printf("%s\n", link_->name().c_str());
  for (int turn = 0; turn < 3; ++turn) {
    send_numbers(1000 * turn);
    EXPECT_EQ(run(&tokens_, [&] { exchange_with(0); }), turn == 0 ? 1 : 0);
    EXPECT_EQ(received(), numbers(1000 * turn));
  }
}

// What an exchange by NCCL adds to a recorded step: a rank with itself, which is all that one GPU allows. Between GPUs
// the way to the other one comes on top.
TEST_F(CudaLink, TimeOfARecordedMessage) {
  link_->join(link_->new_id(), 0, 1);
  constexpr int kRuns = 200, kMany = 33;
  const auto time = [&](int exchanges, const void* key) {
    const auto step = [&] {
      run(key, [&] {
        for (int i = 0; i < exchanges; ++i) exchange_with(0);
      });
    };
    std::vector<double> all;
    step(), step(), received();
    for (int turn = 0; turn < 7; ++turn) {
      const auto start = Clock::now();
      for (int i = 0; i < kRuns; ++i) step();
      backend_->wait();
      all.push_back(1e6 * seconds_since(start) / kRuns);
    }
    return *std::min_element(all.begin(), all.end());
  };
  const double few = time(1, &positions_), many = time(kMany, &seq_);
  EXPECT_GT(few, 0);
  std::printf(
      "measured: %s, a rank with itself in a recorded step, %zu numbers: %.2f us for each exchange (%.1f us with 1, "
      "%.1f us with %d)\n",
      link_->name().c_str(), kCount, (many - few) / (kMany - 1), few, many, kMany);
}

// The other rank of the next test, in a process of its own: a few turns, and then it says nothing more.
TEST_F(CudaLink, IsTheOtherRank) {
  const char* const text = std::getenv("SX_LINK_ID");
  if (!text) GTEST_SKIP() << "only for ALostRankEndsTheWait";
  std::vector<std::byte> id;
  for (const char* at = text; at[0] && at[1]; at += 2)
    id.push_back(std::byte(std::stoi(std::string(at, 2), nullptr, 16)));
  link_->join(id, 1, 2);
  for (int turn = 0; turn < kTurns; ++turn) turn_with(0, 1, turn);
  for (;;) ::pause();
}

TEST_F(CudaLink, ALostRankEndsTheWait) {
  for (const int how : {SIGKILL, SIGSTOP}) {
    if (!backend_) SetUp();
    const auto id = link_->new_id();
    std::string text;
    for (const std::byte byte : id) text += fmt::format("{:02x}", int(byte));
    ::setenv("SX_LINK_ID", text.c_str(), 1);
    be_machine("rank-1");
    char program[] = "/proc/self/exe", filter[] = "--gtest_filter=CudaLink.IsTheOtherRank";
    char* words[] = {program, filter, nullptr};
    pid_t child = 0;
    ASSERT_EQ(::posix_spawn(&child, program, nullptr, nullptr, words, environ), 0);
    be_machine("rank-0");
    const auto comms = make_thread_ranks(2);
    const LinkWatch watch(*comms[0], *link_);
    link_->join(id, 0, 2);
    for (int turn = 0; turn < kTurns; ++turn) turn_with(1, 0, turn);
    Clock::time_point said;
    std::thread monitor([&] {  // as a RankMonitor would
      std::this_thread::sleep_for(100ms);
      ::kill(child, how);
      std::this_thread::sleep_for(900ms);
      said = Clock::now();
      comms[0]->abort(kLostRank);
    });
    const std::string error = error_of([&] {
      run(&kTurns, [&] { ADD_FAILURE() << "the step was recorded"; });
      received();
    });
    const auto failed = Clock::now();
    monitor.join();
    EXPECT_THAT(error, HasSubstr(kLostRank));
    EXPECT_GE(failed, said) << "it has not waited";
    const double took = std::chrono::duration<double>(failed - said).count();
    EXPECT_LT(took, 2);
    EXPECT_THAT(error_of([&] { run(&kTurns, [] {}); }), HasSubstr(kLostRank)) << "a later step";
    backend_.reset();
    std::printf(
        "measured: %s, a rank lost by signal %d: the wait for the device failed %.3f s after it was known, all ended after %.3f s\n",
        "NCCL", how, took, seconds_since(said));
    EXPECT_LT(seconds_since(said), 5);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace
}  // namespace sx
