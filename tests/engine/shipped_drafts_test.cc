// Drafts that come with the engine: found by what they were made for, refused when they are not what was shipped, and
// what a target looks like to them in all its forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/convert_vocabulary.h"
#include "engine/sha256.h"
#include "model/heads/head_parts.h"
#include "formats/model_file.h"
#include "specextend/convert.h"
#include "specextend/drafts.h"
#include "specextend/inspect.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

TinySpec target_spec() {
  TinySpec spec;
  spec.layers = 6, spec.gain = 2, spec.weights = DType::kQ8_0;
  return spec;
}

// A target, and drafts for it in a folder of their own with their list.
class ShippedDrafts : public ::testing::Test {
 protected:
  void SetUp() override {
    TinySpec spec = target_spec();
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    TinySpec small;
    small.layers = 1, small.width = 32, small.ffn = 64, small.seed = 3;
    testing::write_tiny_hf(temp.file("small"), small);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
      fs::remove(temp.file("small/") + name);
    testing::random_head(testing::eagle3_config(config, 1, 160), {"lm_head.weight", "d2t"}, config, DType::kBF16, 4)
        .write(temp.file("eagle3"));
    testing::random_head({{"medusa_num_heads", 2}, {"hidden_size", config.width}, {"vocab_size", config.vocab}},
                         {"blocks.1.layers.0.weight", "lm_heads.1.weight"}, config, DType::kBF16, 5)
        .write(temp.file("medusa"));
    fs::create_directories(temp.file("models/tiny-small"));
    quantize({.model = temp.file("small"),
              .out = small_file,
              .type = "Q4_0",
              .embedding = "Q4_0",
              .nearest = true,
              .vocabulary = target});
    for (const char* kind : {"eagle3", "medusa"})
      quantize({.model = temp.file(kind),
                .out = temp.file("models/tiny-") + kind,
                .type = "Q8_0",
                .output = "Q4_0",
                .nearest = true});
    add("tiny-small", "model", "tiny-small/draft.gguf", small_file);
    add("tiny-eagle3", "eagle3", "tiny-eagle3", temp.file("models/tiny-eagle3/model.safetensors"));
    add("tiny-medusa", "medusa", "tiny-medusa", temp.file("models/tiny-medusa/model.safetensors"));
    write_list();
    setenv("SPECEXTEND_MODELS", temp.file("models").c_str(), 1);
  }
  void TearDown() override { unsetenv("SPECEXTEND_MODELS"); }

  void add(const char* name, const char* kind, const char* path, const std::string& weights) {
    const DraftTarget t = draft_target(target);
    list.push_back({{"name", name},
                    {"kind", kind},
                    {"path", path},
                    {"size", fs::file_size(weights)},
                    {"sha256", sha256_of_file(weights)},
                    {"target",
                     {{"architecture", t.architecture},
                      {"layers", t.layers},
                      {"width", t.width},
                      {"vocab", t.vocab},
                      {"vocabulary", t.vocabulary}}}});
  }
  void write_list() { testing::write_file(list_file, std::string_view(list.dump())); }

  EngineOptions options(const std::string& preset, const std::string& model = {}) const {
    EngineOptions o;
    o.model = model.empty() ? target : model, o.context = 200, o.threads = 1;
    o.spec.preset = preset;
    if (preset != "off") o.spec.settings = {{"cost-model", "off"}};
    return o;
  }
  std::string found_by(const EngineOptions& o) const { return Engine::open(o)->options().spec.draft_model; }
  std::string refusal(const EngineOptions& o) const {
    return message_of([&] { Engine::open(o); });
  }

  TempFolder temp;
  std::string target = temp.file("target.gguf"), list_file = temp.file("models/drafts.json"),
              small_file = temp.file("models/tiny-small/draft.gguf"), eagle3 = temp.file("models/tiny-eagle3"),
              medusa = temp.file("models/tiny-medusa");
  Json list = Json::array();
};

TEST(Sha256, Vectors) {
  const auto of = [](const std::string& text, size_t piece) {
    Sha256 sum;
    const auto bytes = std::as_bytes(std::span(text));
    for (size_t i = 0; i < text.size(); i += piece) sum.add(bytes.subspan(i, std::min(piece, text.size() - i)));
    return sum.hex();
  };
  EXPECT_EQ(of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  for (const size_t piece : {1, 55, 64, 65, 1000000})
    EXPECT_EQ(of(std::string(1000000, 'a'), piece), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(DraftTargets, AreTheSameInEveryForm) {
  const TempFolder temp;
  TinySpec spec = target_spec();
  testing::write_tiny_gguf(temp.file("a.gguf"), spec);
  const DraftTarget a = draft_target(temp.file("a.gguf"));
  EXPECT_EQ(a.architecture, "llama");
  EXPECT_EQ(a.layers, 6);
  EXPECT_EQ(a.width, 64);
  EXPECT_EQ(a.vocab, 320);
  EXPECT_EQ(a.vocabulary.size(), 16u);
  spec.weights = DType::kBF16;
  testing::write_tiny_hf(temp.file("folder"), spec);
  EXPECT_EQ(draft_target(temp.file("folder")), a);
  spec.weights = DType::kQ4_1;
  testing::write_tiny_gguf(temp.file("b.gguf"), spec);
  EXPECT_EQ(draft_target(temp.file("b.gguf")), a);
  quantize({.model = temp.file("folder"), .out = temp.file("c.gguf"), .type = "Q4_0"});
  EXPECT_EQ(draft_target(temp.file("c.gguf")), a);
  spec.vocab = 321;
  testing::write_tiny_gguf(temp.file("other.gguf"), spec);
  EXPECT_NE(draft_target(temp.file("other.gguf")).vocabulary, a.vocabulary);
  TokenizerData data = ModelFile::open(temp.file("a.gguf"))->tokenizer();
  EXPECT_EQ(vocabulary_fingerprint(data), a.vocabulary);
  ASSERT_EQ(data.tokens[300].size(), data.tokens[301].size());
  std::swap(data.tokens[300], data.tokens[301]);
  EXPECT_NE(vocabulary_fingerprint(data), a.vocabulary);
  quantize({.model = temp.file("folder"), .out = temp.file("mute.gguf"), .type = "Q4_0", .tokenizer = false});
  EXPECT_THAT(message_of([&] { draft_target(temp.file("mute.gguf")); }), HasSubstr("mute.gguf"));
}

TEST_F(ShippedDrafts, AreFoundByKind) {
  for (const char* preset : {"sd", "eagle2-tree", "specinfer", "opt-tree", "sequoia", "specexec", "fuse"})
    EXPECT_EQ(found_by(options(preset)), small_file) << preset;
  for (const char* preset : {"eagle1", "eagle2", "eagle3", "specextend-eagle3"})
    EXPECT_EQ(found_by(options(preset)), eagle3) << preset;
  EXPECT_EQ(found_by(options("medusa")), medusa);
  for (const char* preset : {"off", "suffix", "self-skip"}) EXPECT_EQ(found_by(options(preset)), "") << preset;
  EngineOptions json = options("off");
  json.spec.settings.clear();
  json.spec.json = R"({"method": "eagle3", "num_speculative_tokens": 3})";
  EXPECT_EQ(found_by(json), eagle3);
  json.spec.json = R"({"method": "draft_model", "num_speculative_tokens": 3})";
  EXPECT_EQ(found_by(json), small_file);
  EngineOptions given = options("sd");
  given.spec.draft_model = target;
  EXPECT_EQ(found_by(given), target);
}

TEST_F(ShippedDrafts, DraftAndNeverChangeTheText) {
  const auto answer = [&](const std::string& preset, int64_t& drafted) {
    auto engine = Engine::open(options(preset));
    GenerateOptions o;
    o.max_tokens = 40, o.ignore_end = true;
    const auto result = engine->start()->generate(engine->tokenizer().tokenize("a fox, a dog, a fox", true), o);
    drafted = result.spec.drafted;
    return result.tokens;
  };
  int64_t drafted = 0;
  const auto plain = answer("off", drafted);
  for (const char* preset : {"sd", "eagle3", "medusa"}) {
    EXPECT_EQ(answer(preset, drafted), plain) << preset;
    EXPECT_GT(drafted, 0) << preset;
  }
}

// A head has no prompt to read; it fits one target only.
TEST_F(ShippedDrafts, AutoTakesTheHeadThatFitsElseTheModel) {
  EXPECT_EQ(found_by(options("auto")), eagle3);
  TinySpec deeper = target_spec();
  deeper.layers = 7;
  testing::write_tiny_gguf(temp.file("deeper.gguf"), deeper);
  EXPECT_EQ(found_by(options("auto", temp.file("deeper.gguf"))), small_file);
  EngineOptions given = options("auto");
  given.spec.draft_model = small_file;
  EXPECT_EQ(found_by(given), small_file);
}

// The head has to see the target run a text. Preset auto does without it rather than run again what is in the cache;
// without costs, where nothing is decided, it is run again.
TEST_F(ShippedDrafts, AutoRunsNoTextAgainForItsHead) {
  for (const char* costs : {"on", "off"}) {
    EngineOptions o = options("auto");
    o.spec.settings = {{"cost-model", costs}};
    const bool again = costs == std::string("off");
    const auto engine = Engine::open(o);
    ASSERT_EQ(engine->options().spec.draft_model, eagle3);
    const auto session = engine->start();
    std::vector<Token> prompt;
    for (int i = 0; i < 120; ++i) prompt.push_back(Token(3 + i * 7 % 250));
    GenerateOptions how;
    how.max_tokens = 40, how.ignore_end = true, how.preset = "off";
    const auto plain = session->generate(prompt, how);
    how.preset = "auto";
    const auto without = session->generate(prompt, how);
    EXPECT_EQ(without.tokens, plain.tokens) << costs;
    EXPECT_EQ(without.timings.cached_tokens, again ? 0 : int(prompt.size()) - 1) << costs;
    session->truncate(0);
    const auto with = session->generate(prompt, how);
    EXPECT_EQ(with.tokens, plain.tokens) << costs;
    EXPECT_EQ(with.timings.cached_tokens, 0);
    const auto next = session->generate(prompt, how);  // it has seen this text
    EXPECT_EQ(next.tokens, plain.tokens) << costs;
    EXPECT_GE(next.timings.cached_tokens, int(prompt.size()) - 2) << costs;
  }
}

// Nor does the head read a prompt along for an answer that cannot repay it; the index drafts alone then, also in later
// answers of the session. The text stays the same, to the bit.
TEST_F(ShippedDrafts, AutosHeadReadsNoPromptForAFewTokens) {
  EngineOptions costs = options("auto");
  costs.spec.settings = {{"cost-model", "on"}};
  const auto engine = Engine::open(costs);
  ASSERT_EQ(engine->options().spec.draft_model, eagle3);
  std::vector<Token> prompt;
  for (int i = 0; i < 120; ++i) prompt.push_back(Token(3 + i * 7 % 250));
  struct Seen {
    std::vector<Token> tokens;
    std::vector<float> logits;
    int unread = 0, rounds = 0;
  };
  const auto answer = [&](Session& session, const char* preset, int tokens) {
    Seen out;
    GenerateOptions how;
    how.max_tokens = tokens, how.ignore_end = true, how.preset = preset;
    how.sampling.temperature = 0.8f, how.sampling.seed = 3;
    how.on_logits = [&](std::span<const float> row) { out.logits.insert(out.logits.end(), row.begin(), row.end()); };
    how.on_round = [&](const RoundInfo& r) {
      ++out.rounds, out.unread += r.decision.why == "the model has not read the text";
    };
    out.tokens = session.generate(prompt, how).tokens;
    return out;
  };
  const auto same = [](const Seen& found, const Seen& expected) {
    EXPECT_EQ(found.tokens, expected.tokens);
    ASSERT_EQ(found.logits.size(), expected.logits.size());
    EXPECT_EQ(std::memcmp(found.logits.data(), expected.logits.data(), found.logits.size() * sizeof(float)), 0);
  };
  const Seen few = answer(*engine->start(), "off", 8), many = answer(*engine->start(), "off", 60);
  const auto session = engine->start();
  const Seen without = answer(*session, "auto", 8), later = answer(*session, "auto", 60);
  same(without, few), same(later, many);
  EXPECT_GE(without.unread, without.rounds - 1) << "nothing is asked for before the last token";
  EXPECT_GT(without.unread, 0);
  EXPECT_GE(later.unread, later.rounds - 1);
  session->truncate(0);
  answer(*session, "auto", 0);  // the text is made ready for a later answer
  const Seen with = answer(*session, "auto", 8);
  same(with, few);
  EXPECT_EQ(with.unread, 0);
}

TEST_F(ShippedDrafts, MustFitTheTarget) {
  TinySpec deeper = target_spec();
  deeper.layers = 7;
  testing::write_tiny_gguf(temp.file("deeper.gguf"), deeper);
  const std::string head = refusal(options("eagle3", temp.file("deeper.gguf")));
  EXPECT_THAT(head, AllOf(HasSubstr("speculation eagle3 drafts with a model and none is given"), HasSubstr("-md FILE"),
                          HasSubstr("\nno shipped draft fits: one of kind eagle3 for llama, 7 layers of width 64"),
                          HasSubstr("tiny-eagle3 (kind eagle3, for llama, 6 layers")));
  EXPECT_EQ(std::count(head.begin(), head.end(), '\n'), 1);
  EXPECT_EQ(found_by(options("sd", temp.file("deeper.gguf"))), small_file);  // the tokens are the same
  TinySpec other = target_spec();
  other.vocab = 330;
  testing::write_tiny_gguf(temp.file("other.gguf"), other);
  EXPECT_THAT(refusal(options("sd", temp.file("other.gguf"))), HasSubstr("no shipped draft fits: one of kind model"));
  // Of two that share the tokens, the one that was made for the target.
  auto first = list[0];
  first["name"] = "elsewhere", first["target"]["layers"] = 7;
  const auto path = fs::path(temp.file("models/second.gguf"));
  fs::copy_file(small_file, path);
  first["path"] = "second.gguf";
  list.insert(list.begin(), first);
  write_list();
  EXPECT_EQ(found_by(options("sd")), small_file);
  EXPECT_EQ(found_by(options("sd", temp.file("deeper.gguf"))), path.string());
}

TEST_F(ShippedDrafts, NoneAtAll) {
  fs::create_directories(temp.file("empty"));
  setenv("SPECEXTEND_MODELS", temp.file("empty").c_str(), 1);
  EXPECT_TRUE(shipped_drafts().empty());
  EXPECT_THAT(refusal(options("sd")), AllOf(HasSubstr("none is given"), HasSubstr("there are none")));
  EngineOptions wrong = options("sd");
  wrong.spec.settings = {{"nodes", "0"}};
  EXPECT_THAT(refusal(wrong), HasSubstr("nodes"));
}

TEST_F(ShippedDrafts, ADamagedListIsNamed) {
  const auto with = [&](const std::string& text) {
    testing::write_file(list_file, std::string_view(text));
    return refusal(options("sd"));
  };
  EXPECT_THAT(with("[{"), HasSubstr(list_file));
  EXPECT_THAT(with("{}"), AllOf(HasSubstr(list_file), HasSubstr("a list of drafts")));
  EXPECT_THAT(with("[1]"), HasSubstr("draft 0"));
  const auto change = [&](const std::function<void(Json&)>& body) {
    Json copy = list;
    body(copy[1]);
    return with(copy.dump());
  };
  for (const char* key : {"name", "kind", "path", "size", "sha256", "target"})
    EXPECT_THAT(change([&](Json& d) { d.erase(key); }), AllOf(HasSubstr("draft 1"), HasSubstr(key))) << key;
  for (const char* key : {"architecture", "layers", "width", "vocab", "vocabulary"})
    EXPECT_THAT(change([&](Json& d) { d["target"].erase(key); }), AllOf(HasSubstr("draft 1, target"), HasSubstr(key)));
  EXPECT_THAT(change([](Json& d) { d["kind"] = "magic"; }), HasSubstr("'magic'"));
  EXPECT_THAT(change([](Json& d) { d["path"] = "../x"; }), HasSubstr("'../x'"));
  EXPECT_THAT(change([](Json& d) { d["path"] = "/x"; }), HasSubstr("'/x'"));
  EXPECT_THAT(change([](Json& d) { d["size"] = 0; }), HasSubstr("'size' is 0"));
  EXPECT_EQ(refusal(options("off")), "no error");  // nobody asked for a draft
}

TEST_F(ShippedDrafts, ADamagedFileIsNamed) {
  auto bytes = testing::read_file(small_file);
  bytes.back() ^= std::byte{1};
  testing::write_file(small_file, bytes);
  EXPECT_THAT(refusal(options("sd")), AllOf(HasSubstr(small_file), HasSubstr("SHA-256")));
  bytes.pop_back();
  testing::write_file(small_file, bytes);
  EXPECT_THAT(refusal(options("sd")), AllOf(HasSubstr(small_file), HasSubstr("should have")));
  fs::remove(small_file);
  EXPECT_THAT(refusal(options("sd")), AllOf(HasSubstr(small_file), HasSubstr("cannot be read")));
  fs::remove(temp.file("models/tiny-eagle3/model.safetensors"));
  EXPECT_THAT(refusal(options("eagle3")), AllOf(HasSubstr("tiny-eagle3/model.safe"), HasSubstr("cannot be read")));
}

TEST_F(ShippedDrafts, HeadsCanBeLookedAt) {
  EXPECT_TRUE(is_head(eagle3));
  EXPECT_FALSE(is_head(target));
  const HeadSummary e = inspect_head(eagle3);
  EXPECT_EQ(e.kind, "EAGLE-3");
  EXPECT_EQ(e.layers, 1);
  EXPECT_EQ(e.draft_vocab, 160);
  EXPECT_EQ(e.vocab, 320);
  EXPECT_THAT(e.types, AllOf(HasSubstr("Q4_0 1"), HasSubstr("Q8_0 8")));
  const HeadSummary m = inspect_head(medusa);
  EXPECT_EQ(m.kind, "Medusa");
  EXPECT_EQ(m.heads, 2);
  EXPECT_TRUE(m.own_output);
  EXPECT_GT(m.parameters, 40000u);
}

}  // namespace
}  // namespace sx
