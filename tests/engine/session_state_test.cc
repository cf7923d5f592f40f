// Saved sessions: restored where the same tokens would give the same cells, refused anywhere else with the reason, and
// refused at any length but their own.
#include <gtest/gtest.h>

#include <sstream>

#include "backend/registry.h"
#include "engine/engine.h"
#include "engine/session_origin.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::TinySpec;

class SessionStateTest : public ::testing::Test {
 protected:
  SessionStateTest() {
    TinySpec spec;
    spec.layers = 1, spec.context = 64, spec.gain = 2;
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
    testing::write_tiny_hf(folder_.file("fixed"), spec);
    spec.scaling = RopeScaling::kDynamic, spec.factor = 2, spec.original_context = 64;
    testing::write_tiny_hf(folder_.file("dynamic"), spec);
  }
  EngineOptions options(const std::string& model, int context, const std::string& preset = "off") {
    EngineOptions o;
    o.model = folder_.file(model), o.context = context, o.threads = 1, o.chunk = 32, o.max_sessions = 2,
    o.spec.preset = preset;
    if (preset != "off") o.spec.draft_model = folder_.file("draft.gguf"), o.spec.settings = {{"cost-model", "off"}};
    return o;
  }
  static std::string saved(Engine& engine, int tokens) {
    auto session = engine.start();
    session->evaluate(std::vector<Token>(size_t(tokens), 7), 0);
    if (engine.options().spec.preset != "off") {  // the drafter reads the text too
      GenerateOptions few;
      few.max_tokens = 4, few.ignore_end = true;
      session->generate(std::vector<Token>(size_t(tokens), 7), few);
    }
    std::ostringstream to;
    session->save(to);
    EXPECT_EQ(to.str().size(), session->save_bytes());
    return to.str();
  }
  // Why the state is refused; "" if it is taken.
  static std::string refusal(Session& session, const std::string& state) {
    std::istringstream from(state);
    try {
      session.restore(from);
    } catch (const Error& error) {
      EXPECT_EQ(session.length(), 0);
      return error.what();
    }
    return {};
  }
  testing::TempFolder folder_;
};

TEST_F(SessionStateTest, ContextMattersWhereFrequenciesDependOnIt) {
  const auto small = Engine::open(options("dynamic", 100)), large = Engine::open(options("dynamic", 200));
  const auto state = saved(*small, 20);
  const std::string why = refusal(*large->start(), state);
  for (const char* word : {"RoPE", "100", "200"}) EXPECT_NE(why.find(word), why.npos) << why;
  EXPECT_EQ(refusal(*Engine::open(options("dynamic", 100))->start(), state), "");
  // Within the original context nothing is scaled.
  const auto within = Engine::open(options("dynamic", 40));
  EXPECT_EQ(refusal(*Engine::open(options("dynamic", 64))->start(), saved(*within, 20)), "");
  // Without dynamic scaling only the room matters.
  const auto fixed = saved(*Engine::open(options("fixed", 100)), 20);
  const auto other = Engine::open(options("fixed", 200));
  auto session = other->start();
  EXPECT_EQ(refusal(*session, fixed), "");
  EXPECT_EQ(session->length(), 20);
  EXPECT_NE(refusal(*Engine::open(options("fixed", 16))->start(), fixed).find("context"), std::string::npos);
  EXPECT_NE(refusal(*session, state).find("RoPE"), std::string::npos);  // the same tensors, other frequencies
}

TEST_F(SessionStateTest, NamesWhatDiffers) {
  const SessionOrigin here{"m", "1.0", "cpu (avx2)", "F16", "r", 100};
  const auto why = [&](SessionOrigin saved) {
    try {
      check_origin(saved, here);
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string();
  };
  EXPECT_EQ(why(here), "");
  SessionOrigin other = here;
  other.context = 50;  // says nothing by itself
  EXPECT_EQ(why(other), "");
  other = here, other.device = "cpu (generic)";
  EXPECT_NE(why(other).find("cpu (generic)"), std::string::npos);
  other = here, other.version = "0.9";
  EXPECT_NE(why(other).find("0.9"), std::string::npos);
  other = here, other.kv_type = "Q8_0";
  EXPECT_NE(why(other).find("Q8_0"), std::string::npos);
  other = here, other.model = "n";
  EXPECT_NE(why(other).find("model"), std::string::npos);
}

// Every set of this machine takes its own states and no other's.
TEST_F(SessionStateTest, InstructionSetsAreNotMixed) {
  const auto sets = cpu::available_isas();
  std::vector<std::unique_ptr<EngineImpl>> engines;
  std::vector<std::string> states;
  for (const cpu::Isa isa : sets) {
    engines.push_back(std::make_unique<EngineImpl>(options("fixed", 100), make_cpu_backend({1, isa})));
    states.push_back(saved(*engines.back(), 20));
  }
  for (size_t from = 0; from < sets.size(); ++from)
    for (size_t to = 0; to < sets.size(); ++to) {
      const std::string why = refusal(*engines[to]->start(), states[from]);
      EXPECT_EQ(why.find(isa_name(sets[from])) != why.npos, from != to) << why;
      EXPECT_EQ(why.empty(), from == to) << why;
    }
}

TEST_F(SessionStateTest, KvTypeIsNamed) {
  auto o = options("fixed", 100);
  o.kv_type = "f32";
  const auto state = saved(*Engine::open(o), 3);
  o.kv_type = "q8_0";
  const std::string why = refusal(*Engine::open(o)->start(), state);
  EXPECT_NE(why.find("F32"), why.npos) << why;
}

// Keys of one type and values of another: the state goes back into an engine of the same pair, and into no other one,
// also where its cells have the same size.
TEST_F(SessionStateTest, BothKvTypesCount) {
  auto o = options("fixed", 100);
  o.kv_type = "q8_0/q4_0";
  const auto engine = Engine::open(o);
  EXPECT_EQ(engine->kv_type(), "Q8_0/Q4_0");
  const auto state = saved(*engine, 40);
  auto restored = engine->start();
  EXPECT_EQ(refusal(*restored, state), "");
  for (const char* other : {"q4_0/q8_0", "q8_0", "q4_0", "q8_0/q4_1"}) {
    o.kv_type = other;
    const std::string why = refusal(*Engine::open(o)->start(), state);
    EXPECT_NE(why.find("Q8_0/Q4_0"), why.npos) << other << ": " << why;
  }
  GenerateOptions few;
  few.max_tokens = 10, few.ignore_end = true;
  auto fresh = engine->start();
  const std::vector<Token> text(restored->text().begin(), restored->text().end());
  EXPECT_EQ(restored->generate(text, few).tokens, fresh->generate(text, few).tokens);
}

// Also by an engine that passes over the part of a preset which it does not have.
TEST_F(SessionStateTest, EveryCutIsRefused) {
  const auto drafting = Engine::open(options("fixed", 64, "sd"));
  const std::string state = saved(*drafting, 3);
  ASSERT_LT(state.size(), 8000u);
  for (const char* preset : {"sd", "off"}) {
    const auto engine = Engine::open(options("fixed", 64, preset));
    auto session = engine->start();
    EXPECT_EQ(refusal(*session, state), "");
    for (size_t length = 0; length < state.size(); ++length)
      EXPECT_NE(refusal(*session, state.substr(0, length)), "") << preset << ", " << length << " of " << state.size();
    EXPECT_NE(refusal(*session, state + '\0'), "") << "something follows";
    EXPECT_EQ(refusal(*session, state), "");
  }
}

// Cells of another draft are not taken for this one's: it reads the text anew.
TEST_F(SessionStateTest, AnotherDraftsCellsArePassedOver) {
  const auto state = saved(*Engine::open(options("fixed", 64, "sd")), 20);
  TinySpec spec;
  spec.layers = 1, spec.context = 64, spec.gain = 2, spec.seed = 9;
  testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
  const auto engine = Engine::open(options("fixed", 64, "sd"));
  auto restored = engine->start(), fresh = engine->start();
  ASSERT_EQ(refusal(*restored, state), "");
  std::vector<Token> text(restored->text().begin(), restored->text().end());
  GenerateOptions few;
  few.max_tokens = 20, few.ignore_end = true;
  const auto a = restored->generate(text, few), b = fresh->generate(text, few);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.spec.accepted, b.spec.accepted);  // the draft saw what it would have seen
  EXPECT_EQ(a.spec.drafted, b.spec.drafted);
}

}  // namespace
}  // namespace sx
