// A device whose memory for cells is full: the request that asks for more ends and says why, others go on with the
// bytes they have alone; whoever has texts at rest may make room; and a draft without memory costs speed only.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <vector>

#include "backend/cpu/kv/store.h"
#include "backend/kv_stream.h"
#include "backend/registry.h"
#include "engine/engine.h"
#include "engine/engine_cases.h"
#include "specextend/costs.h"
#include "specextend/kv_memory.h"
#include "specextend/no_memory.h"
#include "specextend/specextend.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

// Cells that stores of a device may hold together.
struct Cells {
  int most = 0, held = 0;
};

// The CPU's store with memory of such a device. Slots do not share it.
class LimitedKv final : public cpu::CpuKvStore {
 public:
  LimitedKv(const KvGeometry& geometry, cpu::Isa isa, std::shared_ptr<Cells> cells)
      : CpuKvStore(geometry, isa), cells_(std::move(cells)), held_(size_t(geometry.slots)) {}
  ~LimitedKv() override {
    for (const int held : held_) EXPECT_EQ(held, 0) << "no session is left";
  }
  bool share(int, int to, int) override { return leave(to), false; }
  bool hold(int slot, int first, int end) override {
    EXPECT_LE(first, end);
    const int more = std::min(end, geometry().capacity) - held_[size_t(slot)];
    if (more <= 0) return true;
    if (cells_->held + more > cells_->most) return false;
    return change(slot, more), true;
  }
  void leave(int slot) override { change(slot, -held_[size_t(slot)]), CpuKvStore::leave(slot); }
  void cut(int slot, int cells) override { change(slot, std::min(0, cells - held_[size_t(slot)])); }

 private:
  void change(int slot, int by) { held_[size_t(slot)] += by, cells_->held += by; }
  const std::shared_ptr<Cells> cells_;
  std::vector<int> held_;
};

// Its ops hold what they write, and throw where there is no memory for it, as those of a device.
class LimitedBackend final : public testing::ForwardingBackend {
 public:
  static constexpr int kPlenty = 1 << 20;
  static inline int unasked = 0;  // cells that ops had to ask for themselves
  LimitedBackend(int target, int drafts) : LimitedBackend(cpu::available_isas().front(), target) {
    drafts_ = std::make_shared<Cells>(Cells{drafts});
  }
  explicit LimitedBackend(int all) : LimitedBackend(cpu::available_isas().front(), all) { drafts_ = target_; }
  std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) override {
    if (geometry.slots == 1) return right_->make_kv(geometry);                               // scratch
    return std::make_unique<LimitedKv>(geometry, isa_, stores_++ == 0 ? target_ : drafts_);  // the target's comes first
  }
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override {
    for (const SeqRows& s : inputs.seqs)
      hold(static_cast<const KvStore*>(key.kv), s.slot, s.history + s.uncommitted, s.rows);
    ForwardingBackend::run(inputs, key, body);
  }
  void kv_move(const KvMoveArgs& a) override {
    for (const KvMove& move : a.moves) hold(a.to, a.to_slot, move.dst, 1);
    ForwardingBackend::kv_move(a);
  }
  void kv_retrieve(const KvRetrieveArgs& a, KvChoice& choice) override {
    hold(a.to, a.slot, 0, a.plan.count);
    ForwardingBackend::kv_retrieve(a, choice);
  }
  void kv_write(KvStore& kv, const KvCellsArgs& a, const std::byte* from) override {
    hold(&kv, a.slot, a.first, a.count);
    ForwardingBackend::kv_write(kv, a, from);
  }

 private:
  LimitedBackend(cpu::Isa isa, int target)
      : ForwardingBackend(make_cpu_backend({1, isa})), isa_(isa), target_(std::make_shared<Cells>(Cells{target})) {}
  void hold(const KvStore* kv, int slot, int first, int count) {
    const int before = target_->held + drafts_->held;
    if (kv && !hold_cells(const_cast<KvStore&>(*kv), slot, first, first + count))
      throw NoMemory("an op has no memory for its cells");
    unasked += target_->held + drafts_->held - before;
  }
  const cpu::Isa isa_;
  const std::shared_ptr<Cells> target_;
  std::shared_ptr<Cells> drafts_;
  int stores_ = 0;
};

std::vector<Token> text(int length, int salt) {
  std::vector<Token> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(Token(3 + (i * i + 7 * salt + i * salt) % 40));
  return tokens;
}

GenerateOptions answer_of(int tokens) {
  GenerateOptions o;
  o.max_tokens = tokens, o.ignore_end = true;
  return o;
}

class FullMemory : public ::testing::Test {
 protected:
  FullMemory() {
    testing::TinySpec spec;
    spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    spec.weights = DType::kQ4_0;
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
  }
  std::unique_ptr<EngineImpl> open(std::unique_ptr<LimitedBackend> backend, const std::string& preset = "off",
                                   bool costs = false,
                                   const std::vector<std::pair<std::string, std::string>>& settings = {}) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 400, o.threads = 1, o.chunk = 32, o.max_sessions = 3;
    o.spec.preset = preset;
    if (preset == "sd") o.spec.draft_model = folder_.file("draft.gguf");
    if (preset != "off") o.spec.settings = {{"cost-model", costs ? "on" : "off"}};
    o.spec.settings.insert(o.spec.settings.end(), settings.begin(), settings.end());
    return std::make_unique<EngineImpl>(o, std::move(backend));
  }
  std::unique_ptr<EngineImpl> open(int cells) {
    return open(std::make_unique<LimitedBackend>(cells, LimitedBackend::kPlenty));
  }
  std::vector<Token> alone(const std::vector<Token>& prompt, const GenerateOptions& options) {
    return open(LimitedBackend::kPlenty)->start()->generate(prompt, options).tokens;
  }
  static bool run(Batch& batch, std::vector<Finished>& finished) {
    const bool more = batch.step();
    for (Finished& f : batch.take_finished()) finished.push_back(std::move(f));
    return more;
  }
  static const Finished* of(const std::vector<Finished>& all, const std::unique_ptr<Session>& session) {
    const auto found = std::ranges::find(all, session.get(), &Finished::session);
    return found == all.end() ? nullptr : &*found;
  }

  testing::TempFolder folder_;
};

TEST_F(FullMemory, OnlyTheRequestThatAsksEnds) {
  const auto engine = open(300);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<Token>> prompts;
  std::vector<GenerateOptions> options{answer_of(30), answer_of(250), answer_of(60)};
  const auto batch = engine->batch();
  for (int i = 0; i < 3; ++i) prompts.push_back(text(40, i)), sessions.push_back(engine->start());
  for (size_t i = 0; i < 3; ++i) batch->add({sessions[i].get(), prompts[i], &options[i]});
  std::vector<Finished> finished;
  while (run(*batch, finished)) {}
  ASSERT_EQ(finished.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Finished* f = of(finished, sessions[i]);
    ASSERT_TRUE(f);
    auto expected = alone(prompts[i], options[i]);
    EXPECT_EQ(f->no_memory, i == 1) << f->error;
    EXPECT_EQ(f->error.empty(), i != 1) << f->error;
    if (i == 1) {
      // The two others keep 69 and 99 cells, this one had the rest.
      EXPECT_NE(f->error.find("memory"), std::string::npos) << f->error;
      EXPECT_GT(f->result.tokens.size(), 60u);
      ASSERT_LT(f->result.tokens.size(), expected.size());
      expected.resize(f->result.tokens.size());
    }
    EXPECT_EQ(f->result.tokens, expected) << i;
  }
}

TEST_F(FullMemory, TextsAtRestMakeRoom) {
  const auto engine = open(300);
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(engine->start());
  const auto first = answer_of(40), second = answer_of(200);
  sessions[0]->generate(text(80, 1), first);
  sessions[1]->generate(text(80, 2), first);
  int asked = 0;
  on_full_memory(*engine, [&] {
    const auto rests =
        std::ranges::find_if(sessions, [&](const auto& s) { return s != sessions[2] && s->length() > 0; });
    if (rests == sessions.end()) return false;
    (*rests)->truncate(0);
    return ++asked, true;
  });
  const auto batch = engine->batch();
  const auto prompt = text(60, 3);
  batch->add({sessions[2].get(), prompt, &second});
  std::vector<Finished> finished;
  while (run(*batch, finished)) {}
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].error, "");
  EXPECT_EQ(finished[0].result.tokens, alone(prompt, second));
  EXPECT_EQ(asked, 2);
}

TEST_F(FullMemory, APromptThatDoesNotFitIsRefused) {
  const auto engine = open(100);
  const auto session = engine->start();
  const auto batch = engine->batch();
  const auto options = answer_of(5);
  const auto prompt = text(150, 1), shorter = text(80, 1);
  batch->add({session.get(), prompt, &options});
  std::vector<Finished> finished;
  while (run(*batch, finished)) {}
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_TRUE(finished[0].no_memory);
  EXPECT_TRUE(finished[0].result.tokens.empty());
  EXPECT_EQ(session->generate(shorter, options).tokens, alone(shorter, options)) << "the session goes on";
}

TEST_F(FullMemory, ARequestGivesUpItsOwnDraftFirst) {
  const auto options = answer_of(200);
  const auto prompt = text(100, 1), expected = alone(prompt, options);
  for (int most = 960; most < 970; ++most) {  // the target asks for the last cell, or the draft
    const auto engine = open(std::make_unique<LimitedBackend>(most), "sd");
    const auto result = engine->start()->generate(prompt, options);
    EXPECT_EQ(result.tokens, expected) << most;
    EXPECT_GT(result.spec.drafted, 0) << most;
    EXPECT_LT(result.spec.drafted_rounds, result.spec.rounds) << most;
  }
}

// The target drafts for itself, with nodes in its own cells behind the text.
TEST_F(FullMemory, ASelfDraftIsPartOfWhatIsAskedFor) {
  auto options = answer_of(60);
  options.sampling.temperature = 1, options.sampling.seed = 3;  // much of what is guessed is wrong
  const auto prompt = text(150, 1), expected = alone(prompt, options);
  const std::vector<std::pair<std::string, std::string>> trees[] = {
      {}, {{"tree", "eagle2"}, {"nodes", "4"}, {"depth", "6"}}, {{"tree", "best-first"}, {"nodes", "4"}}};
  for (const char* preset : {"self-skip", "self-suffix"})
    for (const auto& tree : trees)
      for (const int most : {LimitedBackend::kPlenty, 240, 215, 210}) {
        const auto engine = open(std::make_unique<LimitedBackend>(most, 0), preset, false, tree);
        const auto session = engine->start();
        LimitedBackend::unasked = 0;
        const auto result = session->generate(prompt, options);
        EXPECT_EQ(result.tokens, expected) << preset << " " << most;
        EXPECT_TRUE(result.spec.drafted > 0 || most < LimitedBackend::kPlenty) << preset;
        EXPECT_EQ(LimitedBackend::unasked, 0) << preset << " " << most << ", tree " << &tree - trees;
      }
}

TEST_F(FullMemory, NothingIsMeasuredWhileIdle) {
  const auto engine = open(std::make_unique<LimitedBackend>(500, LimitedBackend::kPlenty), "suffix", true);
  const auto one = engine->start(), other = engine->start();
  one->evaluate(text(300, 1), 0), other->evaluate(text(200, 2), 0);
  EXPECT_FALSE(measure_when_idle(*engine));
  other->truncate(0);
  EXPECT_TRUE(measure_when_idle(*engine));
  one->truncate(0);
}

// Cells that are restored or taken over: texts at rest make room for them, too, and where that does not help nothing
// else is lost.
TEST_F(FullMemory, StatesFindRoomOrSayWhyNot) {
  const auto engine = open(300);
  const auto rests = engine->start(), session = engine->start(), third = engine->start();
  std::ostringstream saved;
  session->evaluate(text(120, 1), 0), session->save(saved);
  const auto restore = [&](Session& to) {
    std::istringstream from(saved.str());
    to.restore(from);
  };
  session->truncate(0), rests->evaluate(text(200, 2), 0);
  EXPECT_THROW(restore(*session), NoMemory);
  EXPECT_EQ(session->length(), 0);
  EXPECT_EQ(rests->length(), 200);
  on_full_memory(*engine, [&] { return rests->length() > 0 && (rests->truncate(0), true); });
  restore(*session);
  EXPECT_EQ(session->length(), 120);
  EXPECT_EQ(rests->length(), 0);

  rests->evaluate(text(100, 2), 0);
  third->copy_from(*session, 120);
  EXPECT_EQ(third->length(), 120);
  EXPECT_EQ(rests->length(), 0);
  const auto options = answer_of(10);
  auto prompt = text(120, 1);
  prompt.push_back(9);
  EXPECT_EQ(third->generate(prompt, options).tokens, alone(prompt, options));
  third->truncate(0);

  rests->truncate(0), session->evaluate(text(100, 4), 0), rests->evaluate(text(70, 3), 0);
  third->evaluate(text(60, 5), 0);
  EXPECT_EQ(rests->length(), 0);
  EXPECT_THROW(third->evaluate(text(60, 6), 0), NoMemory);
  EXPECT_EQ(third->length(), 60);
  third->truncate(0), session->truncate(0), session->evaluate(text(120, 1), 0);

  rests->evaluate(text(160, 3), 0);  // the one to take over is the one that rests
  EXPECT_THROW(third->copy_from(*rests, 160), NoMemory);
  EXPECT_EQ(third->length(), 0);
  EXPECT_EQ(rests->length(), 0);
}

TEST_F(FullMemory, StatesComeWithoutTheirDrafts) {
  const auto plenty = open(std::make_unique<LimitedBackend>(LimitedBackend::kPlenty, LimitedBackend::kPlenty), "sd");
  const auto giver = plenty->start();
  const auto options = answer_of(10);
  auto prompt = text(80, 1);
  giver->generate(prompt, options);
  std::stringstream saved;
  giver->save(saved);
  const auto full = open(std::make_unique<LimitedBackend>(LimitedBackend::kPlenty, 700), "sd");
  const auto others = full->start(), session = full->start(), third = full->start();
  others->generate(text(90, 2), options);  // whose draft has the memory
  session->restore(saved);
  third->copy_from(*session, session->length());
  EXPECT_EQ(session->length(), giver->length());
  prompt.assign(giver->text().begin(), giver->text().end());
  prompt.push_back(9);
  for (Session* each : {session.get(), third.get()}) {
    const auto result = each->generate(prompt, options);
    EXPECT_EQ(result.tokens, alone(prompt, options));
    EXPECT_EQ(result.timings.cached_tokens, int(prompt.size()) - 1);
    EXPECT_EQ(result.spec.drafted, 0);
  }
  third->copy_from(*others, others->length());  // the target's cells, without those of the draft
  EXPECT_EQ(third->length(), others->length());
}

TEST(FullMemoryOfDrafts, IsTheTextWithoutDrafts) {
  const auto plain = testing::run_engine({}, make_cpu_backend({1, std::nullopt}));
  for (const testing::EngineCase& c : testing::engine_cases()) {
    if (!c.exact || c.spec.draft_model.empty()) continue;
    SCOPED_TRACE(c.name);
    const auto with = [&](int cells) -> int {
      try {
        const auto run = testing::run_engine(c.spec, std::make_unique<LimitedBackend>(LimitedBackend::kPlenty, cells));
        EXPECT_EQ(testing::text_difference(run, plain), "") << cells;
        return run.drafted;
      } catch (const Error& e) { ADD_FAILURE() << cells << ": " << e.what(); }
      return 0;
    };
    const int none = with(0), all = with(LimitedBackend::kPlenty);
    for (const int some : {500, 1200, 2100}) with(some);  // for one store or request, and not for another
    const std::string name = c.name;
    if (name == "medusa" || name == "assistant") EXPECT_EQ(none, all);  // they keep no cells
    else EXPECT_LT(none, all);
  }
}

}  // namespace
}  // namespace sx
