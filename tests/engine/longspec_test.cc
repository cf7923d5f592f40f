// Drafting with LongSpec's head: the text never changes; what is drafted is what the head makes of the text and of the
// target's cells, run from the beginning by hand; and it is a function of the text, wherever windows begin and whatever
// the session held before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/registry.h"
#include "engine/head_allocations.h"
#include "engine/head_answers.h"
#include "model/heads/head_parts.h"
#include "model/heads/longspec.h"
#include "specextend/convert.h"
#include "specextend/drafts.h"
#include "specextend/inspect.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
using testing::expect_same;
using testing::TempFolder;
using testing::TinySpec;
using Settings = std::vector<std::pair<std::string, std::string>>;

constexpr int kWindow = 24;

TinySpec target_spec() {
  TinySpec spec;
  spec.layers = 3, spec.gain = 2, spec.weights = DType::kQ8_0;
  return spec;
}

struct Files {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), head = folder.file("head"), other = folder.file("other"),
              reduced = folder.file("reduced");
  ModelConfig config = testing::tiny_config(target_spec());
  Files() {
    testing::write_tiny_gguf(target, target_spec());
    testing::random_head(testing::longspec_config(config, kWindow), testing::kLongSpecParts, config, DType::kF32, 3)
        .write(head);
    auto json = testing::longspec_config(config, kWindow);
    json["num_key_value_heads"] = config.kv_heads * 2;
    auto parts = testing::read_parts(head);
    parts.config = json;
    parts.write(other);
    json = testing::longspec_config(config, kWindow);
    json["draft_vocab_size"] = 150;
    auto names = testing::kLongSpecParts;
    names.insert(names.end(), {"lm_head.weight", "d2t"});
    testing::random_head(json, names, config, DType::kF32, 4).write(reduced);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

EngineOptions options(const std::string& preset, int chunk, const Settings& settings = {}, int sessions = 1) {
  return testing::with_settings(testing::small_options(files().target, preset, files().head, chunk, sessions),
                                settings);
}

TEST(LongSpec, NeverChangesTheText) {
  const testing::PlainAnswers plain(files().target, {0.0f, 0.9f, 1.1f}, {1, 2, 33, 100, 365}, 30);
  for (const char* preset : {"longspec", "sd", "specinfer", "opt-tree", "specexec", "sequoia", "fuse"})
    for (const char* window : {"-1", "0", "7"})
      plain.expect_same_text(*Engine::open(options(preset, 33, {{"window", window}})), 25,
                             fmt::format("{} window {}", preset, window));
  const auto prompt = testing::any_text(100, 100);
  const Answer at_a_price =
      answer(*Engine::open(options("longspec", 50, {{"cost-model", "on"}}))->start(), prompt, 0, 30);
  expect_same(at_a_price, answer(*Engine::open(options("", 64))->start(), prompt, 0, 30), "at a price");
}

// The likeliest tokens one after another, everything computed anew for each.
std::vector<Token> chain_by_hand(std::vector<Token> text, int tokens) {
  const auto backend = make_cpu_backend({1, std::nullopt});
  ModelOptions options;
  const auto model = Model::load(ModelFile::open(files().target), *backend, options);
  const auto target_kv = backend->make_kv(model->kv_geometry(1, 512, backend->default_kv_type()));
  const LongSpecOptions limits{.max_rows = 512, .max_outputs = 1, .cells = 512};
  const auto head = LongSpecHead::load(HeadFile::open(files().head, files().config), *model, *backend, limits);
  const auto kv = backend->make_kv(head->kv_geometry(1, backend->default_kv_type()));
  const size_t committed = text.size() - 1;
  std::vector<int32_t> positions;
  for (int i = 0; i < 512; ++i) positions.push_back(i);
  const SeqRows seen{0, int(committed), 0, 0};
  model->forward({std::span(text).first(committed), std::span(positions).first(committed), {&seen, 1}, {}}, *target_kv);
  std::vector<Token> drafted;
  // Cells lie where the drafter has them, for sums are taken in the order of places; which are there does not matter
  // beyond the window.
  const size_t windows = text.size() / kWindow, base = windows < 2 ? 0 : (windows - 1) * kWindow;
  while (int(drafted.size()) < tokens) {
    const size_t rows = text.size() - base;
    const SeqRows all{0, int(rows), 0, 0};
    const int32_t last = int32_t(rows) - 1;
    head->forward({std::span(text).subspan(base), std::span(positions).subspan(base, rows), {&all, 1}, {&last, 1}}, *kv,
                  kWindow);
    const float* logits = head->look(*target_kv, 0, int(committed));
    drafted.push_back(Token(std::max_element(logits, logits + files().config.vocab) - logits));
    text.push_back(drafted.back());
  }
  return drafted;
}

TEST(LongSpec, DraftsAreTheHeadsOwn) {
  auto engine = Engine::open(options("sd", 40));
  for (const int length : {2, 23, 24, 47, 48, 49, 130}) {
    auto text = testing::random_text(length, unsigned(length));
    const Answer found = answer(*engine->start(), text, 0, 40);
    size_t next = 0;  // of the answer
    for (size_t round = 0; round < 12 && round < found.trees.size(); ++round) {
      const auto& tree = found.trees[round];
      ASSERT_EQ(tree.size(), 6u);
      EXPECT_EQ(std::vector<Token>(tree.begin() + 1, tree.end()), chain_by_hand(text, 5))
          << "length " << length << " round " << round;
      for (size_t node = 1;; ++node) {  // what was accepted and the token after it
        text.push_back(found.tokens[next++]);
        if (node == tree.size() || tree[node] != text.back()) break;
      }
    }
  }
}

TEST(LongSpec, DraftsDependOnTheTextAlone) {
  testing::expect_drafts_of_text_alone([](int chunk) { return Engine::open(options("longspec", chunk)); },
                                       {64, 7, 89, 90}, 200, "longspec");
}

Settings with_cache(const char* kind, const char* budget) {
  Settings settings = testing::kFewCells;
  settings.insert(settings.end(), {{"cache", kind}, {"budget", budget}});
  return settings;
}

constexpr const char* kCaches[] = {"window", "streaming", "retrieval", "prune", "random"};

TEST(LongSpec, ChosenCellsNeverChangeTheText) {
  const testing::PlainAnswers plain(files().target, {0.0f, 0.9f}, {1, 33, 120, 300});
  for (const char* kind : kCaches)
    plain.expect_same_text(*Engine::open(options("longspec", 33, with_cache(kind, "48"))), 100, kind);
}

// Few cells are not all: drafts are others; with room for all cells they are the same. And the same whatever the
// session held before.
TEST(LongSpec, ChosenCellsAreSeen) {
  const auto prompt = testing::random_text(150, 7), other = testing::random_text(120, 8);
  const Answer all = answer(*Engine::open(options("longspec", 64))->start(), prompt, 0, 60);
  for (const char* kind : kCaches) {
    EXPECT_EQ(answer(*Engine::open(options("longspec", 64, with_cache(kind, "400")))->start(), prompt, 0, 60).trees,
              all.trees)
        << kind;
    const Answer few = answer(*Engine::open(options("longspec", 64, with_cache(kind, "48")))->start(), prompt, 0, 60);
    EXPECT_NE(few.trees, all.trees) << kind;
    auto engine = Engine::open(options("longspec", 37, with_cache(kind, "48")));
    auto session = engine->start();
    EXPECT_EQ(answer(*session, prompt, 0, 60).trees, few.trees) << kind;
    answer(*session, other, 0, 20);
    session->truncate(0);
    EXPECT_EQ(answer(*session, prompt, 0, 60).trees, few.trees) << kind << " after another prompt";
  }
  // A prompt that is there already: its last token is run again where its query is wanted.
  auto engine = Engine::open(options("longspec", 64, with_cache("retrieval", "48"), 2));
  auto session = engine->start();
  const Answer first = answer(*session, prompt, 0, 60);
  session->truncate(150);
  EXPECT_EQ(answer(*session, prompt, 0, 60).trees, first.trees);
}

TEST(LongSpec, BatchesAreLikeSingleRequests) {
  for (const float temperature : {0.0f, 0.8f})
    for (const char* kind : {"full", "retrieval"})
      testing::expect_batches_like_single(*Engine::open(options("longspec", 64, with_cache(kind, "48"), 3)),
                                          temperature, kind);
}

TEST(LongSpec, RoundsDoNotAllocate) {
  for (const char* preset : {"longspec", "sd", "fuse"})
    for (const float temperature : {0.0f, 0.8f})
      testing::expect_rounds_do_not_allocate(
          *Engine::open(options(preset, 64, temperature > 0 ? with_cache("retrieval", "48") : Settings{})), temperature,
          90, preset);
}

TEST(LongSpec, RoundsOfAnAssistantDoNotAllocate) {
  const TempFolder folder;
  testing::random_head(testing::assistant_config(files().config), testing::kAssistantParts, files().config, DType::kF32,
                       3)
      .write(folder.file("assistant"));
  for (const char* kind : {"full", "retrieval"}) {
    EngineOptions o = options("eagle2-tree", 64, with_cache(kind, "48"));
    o.spec.draft_model = folder.file("assistant");
    for (const float temperature : {0.0f, 0.8f})
      testing::expect_rounds_do_not_allocate(*Engine::open(o), temperature, 90, kind);
  }
}

// A head with an output matrix of its own drafts its own tokens, here every other one.
TEST(LongSpec, OwnVocabulary) {
  auto plain = Engine::open(options("", 64));
  EngineOptions o = options("longspec", 64);
  o.spec.draft_model = files().reduced;
  auto engine = Engine::open(o);
  for (const float temperature : {0.0f, 0.9f}) {
    const auto prompt = testing::random_text(70, 3);
    const Answer found = answer(*engine->start(), prompt, temperature, 40);
    expect_same(found, answer(*plain->start(), prompt, temperature, 40), "own vocabulary");
    EXPECT_GT(found.drafted(), 200u);
    for (const auto& tree : found.trees)
      for (size_t n = 1; n < tree.size(); ++n) EXPECT_EQ(tree[n] % 2, 0) << n;
  }
}

TEST(LongSpec, WhatDoesNotFitIsRefused) {
  EngineOptions other = options("longspec", 64);
  other.spec.draft_model = files().other;
  const std::string error = testing::refusal(other);
  for (const char* word : {"'num_key_value_heads'", "keys and values", "another"})
    EXPECT_NE(error.find(word), std::string::npos) << error;
  for (const char* cache : {"once", "quest", "snap"}) {
    const std::string refused = testing::refusal(options("longspec", 64, {{"cache", cache}}));
    for (const char* word : {"head", "target's cache", cache})
      EXPECT_NE(refused.find(word), std::string::npos) << refused;
  }
  EXPECT_NE(testing::refusal(options("staged", 64)).find("inner"), std::string::npos);
}

TEST(LongSpec, IsInspectedAndQuantised) {
  const HeadSummary summary = inspect_head(files().head);
  EXPECT_EQ(summary.kind, "LongSpec");
  EXPECT_EQ(summary.reads, "keys and values of the last layer");
  EXPECT_EQ(summary.width, files().config.width);
  EXPECT_FALSE(summary.own_embedding || summary.own_output);

  const TempFolder folder;
  quantize({.model = files().head, .out = folder.file("small"), .type = "Q8_0"});
  EXPECT_LT(inspect_head(folder.file("small")).weight_bytes, summary.weight_bytes / 3);
  EngineOptions o = options("longspec", 64);
  const auto prompt = testing::random_text(90, 7);
  const Answer whole = answer(*Engine::open(o)->start(), prompt, 0, 40);
  o.spec.draft_model = folder.file("small");
  const Answer small = answer(*Engine::open(o)->start(), prompt, 0, 40);
  expect_same(small, whole, "quantised");
  size_t same = 0;  // first guesses: 8 bits rarely change them
  for (size_t i = 0; i < std::min(small.trees.size(), whole.trees.size()); ++i)
    same += small.trees[i][1] == whole.trees[i][1];
  EXPECT_GT(same, whole.trees.size() / 2);
}

}  // namespace
}  // namespace sx
