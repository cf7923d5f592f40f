// Speculation never changes a byte: every preset against plain decoding, tokens and text with ==, logits with memcmp,
// over sampling settings, contexts that cross the borders of blocks and spans, threads and batches.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "specextend/inspect.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/mtp_model.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;

struct Answer {
  std::string text;
  std::vector<Token> tokens;
  std::vector<float> logits;
  FinishReason reason;
  int length;  // of the session afterwards
  SpecStats spec;
};

TinySpec target_spec() {
  TinySpec spec;
  spec.weights = DType::kQ8_0, spec.gain = 2, spec.context = 2048;
  return spec;
}

// Target and draft differ by quantisation only, so that the draft is often right and sometimes wrong.
struct Models {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), draft = folder.file("draft.gguf");
  Models() {
    TinySpec spec = target_spec();
    testing::write_mtp_gguf(target, spec, 1);
    spec.weights = DType::kQ4_0;
    testing::write_tiny_gguf(draft, spec);
  }
};
const Models& models() {
  static const Models all;
  return all;
}

EngineOptions plain_options(int context, int threads, int sessions) {
  EngineOptions o;
  o.model = models().target, o.context = context, o.threads = threads, o.max_sessions = sessions, o.chunk = 256;
  return o;
}

EngineOptions spec_options(const std::string& preset, bool cost_model, int context, int threads, int sessions) {
  EngineOptions o = plain_options(context, threads, sessions);
  o.spec.preset = preset;
  for (const SpecPreset& p : spec_presets())
    if (p.name == preset && p.needs_draft) o.spec.draft_model = models().draft;
  o.spec.settings.push_back({"cost-model", cost_model ? "on" : "off"});
  if (preset == "self-exit") o.spec.settings.push_back({"exit", "1"});
  return o;
}

// Greedy; T = 0.7 with top-p; T = 1.2 with penalties; logit bias and a stop string.
GenerateOptions setting(int which, int max_tokens, uint64_t seed) {
  GenerateOptions o;
  o.max_tokens = max_tokens;
  o.sampling.seed = seed;
  if (which == 1) o.sampling.temperature = 0.7f, o.sampling.top_p = 0.9f;
  if (which == 2) {
    o.sampling.temperature = 1.2f, o.sampling.repeat_penalty = 1.3f, o.sampling.presence_penalty = 0.2f;
    o.sampling.frequency_penalty = 0.1f, o.sampling.repeat_last_n = seed % 2 ? 16 : -1;
  }
  if (which == 3) o.sampling.logit_bias = {{40, 1.5f}, {77, -2.0f}, {0, -100.0f}}, o.stop = {"\x01\x02", "zz", "q"};
  return o;
}

std::vector<Answer> answers(Engine& engine, const std::vector<std::vector<Token>>& prompts,
                            const std::vector<GenerateOptions>& options, bool together) {
  std::vector<Answer> out(prompts.size());
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<GenerateOptions> used = options;
  std::vector<Request> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    used[i].on_logits = [&out, i](std::span<const float> row) {
      out[i].logits.insert(out[i].logits.end(), row.begin(), row.end());
    };
    sessions.push_back(engine.start());
    requests.push_back({sessions[i].get(), prompts[i], &used[i]});
    if (!together) {
      GenerateResult r = sessions[i]->generate(prompts[i], used[i]);
      out[i].text = r.text, out[i].tokens = r.tokens, out[i].reason = r.reason, out[i].spec = r.spec,
      out[i].length = sessions[i]->length();
      sessions[i].reset();
    }
  }
  if (!together) return out;
  auto results = engine.generate(requests);
  for (size_t i = 0; i < prompts.size(); ++i)
    out[i].text = results[i].text, out[i].tokens = results[i].tokens, out[i].reason = results[i].reason,
    out[i].spec = results[i].spec, out[i].length = sessions[i]->length();
  return out;
}

void expect_equal(const Answer& plain, const Answer& spec, const std::string& what) {
  EXPECT_EQ(plain.tokens, spec.tokens) << what;
  EXPECT_EQ(plain.text, spec.text) << what;
  EXPECT_EQ(plain.reason, spec.reason) << what;
  EXPECT_EQ(plain.length, spec.length) << what;
  ASSERT_EQ(plain.logits.size(), spec.logits.size()) << what;
  if (plain.logits.empty()) return;  // no address to compare
  EXPECT_EQ(std::memcmp(plain.logits.data(), spec.logits.data(), plain.logits.size() * sizeof(float)), 0) << what;
}

class EveryPreset : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const SpecPreset& p : spec_presets()) names.push_back(p.name);
  return names;
}

// Lengths around the borders of blocks (64), spans (512) and 1,024; the answer crosses the border.
constexpr int kLengths[] = {5, 50, 100, 500, 1010};

TEST_P(EveryPreset, EqualsPlainDecoding) {
  int64_t accepted = 0, cases = 0;
  int round = 0;
  for (int length : kLengths) {
    const int tokens = length < 200 ? 40 : 30, context = length + tokens + 8;
    std::vector<std::vector<Token>> prompts;
    std::vector<GenerateOptions> options;
    for (int which = 0; which < 4; ++which)
      for (unsigned seed = 0; seed < (length < 200 ? 8u : 2u); ++seed) {
        prompts.push_back(testing::repeating_text(std::max(1, length - int(seed)), seed + 10 * unsigned(which)));
        options.push_back(setting(which, tokens, seed));
      }
    auto plain_engine = Engine::open(plain_options(context, 1, 1));
    const auto plain = answers(*plain_engine, prompts, options, false);
    for (int threads = 1; threads <= 4; ++threads) {
      const bool cost_model = (threads + round) % 2 == 0,
                 together = (threads / 2 + round) % 2 == 0;  // all mixtures over the lengths
      auto engine = Engine::open(spec_options(GetParam(), cost_model, context, threads, 4));
      for (size_t at = 0; at < prompts.size(); at += 4) {
        const std::vector<std::vector<Token>> some(prompts.begin() + ptrdiff_t(at),
                                                   prompts.begin() + ptrdiff_t(at) + 4);
        const std::vector<GenerateOptions> with(options.begin() + ptrdiff_t(at), options.begin() + ptrdiff_t(at) + 4);
        const auto found = answers(*engine, some, with, together);
        for (size_t i = 0; i < 4; ++i) {
          expect_equal(plain[at + i], found[i], fmt::format("length {}, threads {}, case {}", length, threads, at + i));
          accepted += found[i].spec.accepted;
          ++cases;
        }
      }
      if (HasFailure()) return;
    }
    ++round;
  }
  RecordProperty("cases", int(cases));
  if (GetParam() == "off") {
    EXPECT_EQ(accepted, 0);
  } else {
    EXPECT_GT(accepted, cases / 8) << "speculation hardly ever happened";
  }
}

INSTANTIATE_TEST_SUITE_P(Speculation, EveryPreset, ::testing::ValuesIn(preset_names()), [](const auto& preset) {
  std::string name = preset.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

// Ends in the middle of an accepted path: at every number of tokens the result is that of plain decoding.
TEST(Speculation, EveryLimitInsideAPath) {
  const auto prompt = testing::repeating_text(70, 3);
  auto plain = Engine::open(plain_options(200, 1, 1));
  auto engine = Engine::open(spec_options("sd", false, 200, 1, 1));
  for (int tokens = 0; tokens <= 30; ++tokens) {
    const auto a = answers(*plain, {prompt}, {setting(0, tokens, 0)}, false),
               b = answers(*engine, {prompt}, {setting(0, tokens, 0)}, false);
    expect_equal(a[0], b[0], fmt::format("{} tokens", tokens));
  }
}

// The context ends inside a path.
TEST(Speculation, EveryEndOfContext) {
  const auto prompt = testing::repeating_text(60, 4);
  for (int context = 60; context <= 90; ++context) {
    auto plain = Engine::open(plain_options(context, 1, 1));
    for (const char* preset : {"sd", "opt-tree", "suffix", "self-skip"}) {
      auto engine = Engine::open(spec_options(preset, false, context, 1, 1));
      const auto a = answers(*plain, {prompt}, {setting(0, -1, 0)}, false),
                 b = answers(*engine, {prompt}, {setting(0, -1, 0)}, false);
      EXPECT_EQ(a[0].reason, FinishReason::kContext);
      expect_equal(a[0], b[0], fmt::format("{} context {}", preset, context));
    }
  }
}

// A token of the text that plain decoding makes becomes the end-of-text token by bias at the right moment: here the end
// token is made likely, so that it comes up inside accepted paths too.
TEST(Speculation, EndOfTextInsideAPath) {
  int ended = 0;
  auto plain = Engine::open(plain_options(400, 1, 1));
  for (const char* preset : {"sd", "specexec", "suffix", "fuse"}) {
    auto engine = Engine::open(spec_options(preset, false, 400, 1, 1));
    for (unsigned seed = 0; seed < 40; ++seed) {
      GenerateOptions o = setting(1, 60, seed);
      o.sampling.logit_bias = {{0, 2.0f + float(seed % 8)}};
      const auto prompt = testing::repeating_text(50 + int(seed), seed);
      const auto a = answers(*plain, {prompt}, {o}, false), b = answers(*engine, {prompt}, {o}, false);
      expect_equal(a[0], b[0], fmt::format("{} seed {}", preset, seed));
      ended += a[0].reason == FinishReason::kEnd && a[0].tokens.size() > 2;
    }
  }
  EXPECT_GT(ended, 10);
}

// Cancelled at any of the moments a request can be: what came out is a beginning of the plain text, and the session
// goes on from there exactly.
TEST(Speculation, CancelledBetweenAnyTwoPhases) {
  const auto prompt = testing::repeating_text(80, 5);
  auto plain = Engine::open(plain_options(300, 1, 1));
  const auto expected = answers(*plain, {prompt}, {setting(0, 40, 0)}, false)[0];
  for (const char* preset : {"sd", "opt-tree", "suffix", "self-skip", "staged", "triforce", "fuse", "off"}) {
    auto engine = Engine::open(spec_options(preset, false, 300, 1, 1));
    auto session = engine->start();
    for (int stop_at = 0; stop_at < 40; ++stop_at) {
      GenerateOptions o = setting(0, 40, 0);
      int asked = 0;
      o.cancelled = [&] { return asked++ == stop_at; };
      const auto cut = session->generate(prompt, o);
      ASSERT_LE(cut.tokens.size(), expected.tokens.size());
      EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.end(), expected.tokens.begin()))
          << preset << " " << stop_at;
      const auto whole = session->generate(prompt, setting(0, 40, 0));
      EXPECT_EQ(whole.tokens, expected.tokens) << preset << " after a stop at " << stop_at;
    }
  }
}

// One request of a batch is cancelled at any moment; the others do not notice.
TEST(Speculation, CancelledInABatch) {
  auto plain = Engine::open(plain_options(300, 1, 1));
  std::vector<std::vector<Token>> prompts;
  std::vector<GenerateOptions> options;
  for (unsigned i = 0; i < 3; ++i)
    prompts.push_back(testing::repeating_text(60 + int(i) * 7, 20 + i)), options.push_back(setting(int(i), 25, i));
  const auto expected = answers(*plain, prompts, options, false);
  for (const char* preset : {"sd", "opt-tree", "suffix"}) {
    auto engine = Engine::open(spec_options(preset, false, 300, 1, 3));
    for (int stop_at = 0; stop_at < 10; ++stop_at)
      for (size_t victim = 0; victim < 3; ++victim) {
        auto with = options;
        int asked = 0;
        with[victim].cancelled = [&] { return asked++ == stop_at; };
        const auto found = answers(*engine, prompts, with, true);
        for (size_t i = 0; i < 3; ++i)
          if (i != victim)
            expect_equal(expected[i], found[i],
                         fmt::format("{}: {} beside {} cancelled at {}", preset, i, victim, stop_at));
        EXPECT_TRUE(
            std::equal(found[victim].tokens.begin(), found[victim].tokens.end(), expected[victim].tokens.begin()));
      }
  }
}

// A callback that throws leaves the session usable.
TEST(Speculation, ThrowingCallbacks) {
  const auto prompt = testing::repeating_text(80, 6);
  auto engine = Engine::open(spec_options("sd", false, 300, 1, 1));
  auto session = engine->start();
  const auto expected = session->generate(prompt, setting(0, 30, 0));
  for (size_t at = 0; at < 60; ++at) {
    GenerateOptions o = setting(0, 30, 0);
    size_t seen = 0;
    o.on_text = [&](std::string_view text) {
      if ((seen += text.size()) > at) throw std::runtime_error("client gone");
    };
    try {
      session->generate(prompt, o);
    } catch (const std::runtime_error&) {}
    EXPECT_EQ(session->generate(prompt, setting(0, 30, 0)).tokens, expected.tokens) << at;
  }
}

// Any callback of one request of a batch may throw, at any moment: the exception leaves step(), and when the batch is
// gone, all its sessions are usable.
TEST(Speculation, ThrowingCallbacksInABatch) {
  const auto prompt = testing::repeating_text(80, 6), other = testing::repeating_text(50, 7);
  for (const char* preset : {"sd", "opt-tree", "suffix", "specextend"}) {
    auto engine = Engine::open(spec_options(preset, false, 300, 1, 2));
    const auto a = engine->start(), b = engine->start();
    const auto expected_a = a->generate(prompt, setting(0, 20, 0)), expected_b = b->generate(other, setting(1, 20, 3));
    for (const int at : {0, 1, 3, 8})
      for (const char* where : {"text", "token", "round", "prefill", "logits", "cancelled"}) {
        a->truncate(0);
        GenerateOptions o = setting(0, 20, 0);
        const GenerateOptions beside = setting(1, 20, 3);
        int calls = 0;
        const auto hit = [&] {
          if (calls++ == at) throw std::domain_error("mine");
        };
        if (where == std::string("text")) o.on_text = [&](std::string_view) { hit(); };
        if (where == std::string("token")) o.on_token = [&](const TokenInfo&) { hit(); };
        if (where == std::string("round")) o.on_round = [&](const RoundInfo&) { hit(); };
        if (where == std::string("prefill")) o.on_prefill = [&](int, int) { hit(); };
        if (where == std::string("logits")) o.on_logits = [&](std::span<const float>) { hit(); };
        if (where == std::string("cancelled"))
          o.cancelled = [&] {
            hit();
            return false;
          };
        try {
          const auto batch = engine->batch();
          batch->add({b.get(), other, &beside});
          batch->add({a.get(), prompt, &o});
          while (batch->step()) {}
          EXPECT_LE(calls, at) << preset << " " << where;
        } catch (const std::domain_error&) { EXPECT_EQ(calls, at + 1) << preset << " " << where; }
        EXPECT_EQ(a->generate(prompt, setting(0, 20, 0)).tokens, expected_a.tokens)
            << preset << " " << where << " " << at;
        EXPECT_EQ(b->generate(other, setting(1, 20, 3)).tokens, expected_b.tokens)
            << preset << " " << where << " " << at;
      }
  }
}

// One session, many prompts of all lengths, with and without common beginnings: as if each were the first.
TEST(Speculation, PromptsInAnyOrder) {
  std::mt19937 random(9);
  auto plain = Engine::open(plain_options(700, 1, 1));
  for (const char* preset :
       {"sd", "opt-tree", "sequoia", "suffix", "ngram", "self-skip", "staged", "triforce", "fuse"}) {
    auto engine = Engine::open(spec_options(preset, false, 700, 1, 1));
    auto session = engine->start();
    std::vector<Token> last;
    for (int i = 0; i < 25; ++i) {
      auto prompt = testing::repeating_text(1 + int(random() % 550), unsigned(i));
      if (i % 3 == 1 && !last.empty())
        prompt.insert(prompt.begin(), last.begin(), last.begin() + ptrdiff_t(std::min<size_t>(last.size(), 100)));
      if (prompt.size() > 600) prompt.resize(600);
      const GenerateOptions o = setting(i % 3, 25, uint64_t(i));
      const auto expected = answers(*plain, {prompt}, {o}, false)[0];
      const auto found = session->generate(prompt, o);
      EXPECT_EQ(found.tokens, expected.tokens) << preset << " prompt " << i;
      last = prompt;
      last.insert(last.end(), found.tokens.begin(), found.tokens.end());
    }
  }
}

// What each rule promises; and that a request which does not draft is plain decoding under any of them, in any batch.
TEST(Speculation, RulesThatDrawLeavePlainRequestsAlone) {
  const std::vector<std::vector<Token>> prompts{testing::random_text(20, 1), testing::random_text(60, 2),
                                                testing::random_text(33, 3)};
  std::vector<GenerateOptions> asks;
  for (int i = 0; i < 3; ++i) asks.push_back(setting(1, 30, uint64_t(i)));
  const auto expected = answers(*Engine::open(plain_options(200, 2, 3)), prompts, asks, false);
  for (const char* rule : {"chain", "block", "typical"}) {
    EngineOptions o = spec_options("sd", false, 200, 2, 3);
    o.spec.settings.insert(o.spec.settings.end(), {{"accept", rule}, {"allow-lossy", "on"}});
    EXPECT_EQ(spec_rule(o.spec).name, rule);
    EXPECT_EQ(spec_rule(o.spec).promise,
              rule == std::string("typical") ? SpecPromise::kNothing : SpecPromise::kDistribution);
    auto plain = asks;
    for (GenerateOptions& ask : plain) ask.speculate = false;
    const auto engine = Engine::open(o);
    const auto found = answers(*engine, prompts, plain, true);
    for (size_t i = 0; i < prompts.size(); ++i) expect_equal(expected[i], found[i], fmt::format("{}, {}", rule, i));
    plain[1].speculate = true;  // batch that draws
    const auto among = answers(*engine, prompts, plain, true);
    for (size_t i : {0u, 2u}) expect_equal(expected[i], among[i], fmt::format("{} in company, {}", rule, i));
  }
  EXPECT_EQ(spec_rule({}).promise, SpecPromise::kBytes);
  EXPECT_EQ(spec_rule(spec_options("sd", false, 200, 2, 1).spec).promise, SpecPromise::kBytes);
}

// An inner drafter saves passes and changes no draft: rules that draw from the draft's distribution write the same text
// with and without it.
TEST(Speculation, InnerDraftersChangeNoDraw) {
  const auto prompts = std::vector<std::vector<Token>>{testing::repeating_text(90, 1), testing::repeating_text(150, 2)};
  for (const char* rule : {"chain", "block", "match"}) {
    std::vector<Answer> expected;
    for (const char* inner : {"none", "suffix", "ngram"}) {
      EngineOptions o = spec_options("staged", false, 512, 2, 2);
      o.spec.settings.push_back({"accept", rule});
      o.spec.settings.push_back({"inner", inner});
      const auto engine = Engine::open(o);
      const auto found = answers(*engine, prompts, {setting(1, 60, 3), setting(1, 60, 4)}, true);
      if (expected.empty()) expected = found;
      for (size_t i = 0; i < found.size(); ++i) {
        expect_equal(expected[i], found[i], fmt::format("{} {} {}", rule, inner, i));
        EXPECT_EQ(expected[i].spec.drafted, found[i].spec.drafted);
        EXPECT_EQ(expected[i].spec.accepted, found[i].spec.accepted);
      }
    }
    EXPECT_GT(expected[0].spec.accepted, 0);
  }
}

// What one request wrote is drafted for the next, whoever asks; the text stays what it is.
TEST(Speculation, EarlierAnswersAreLookedUp) {
  const auto prompt = testing::random_text(60, 5);
  const auto plain = Engine::open(plain_options(512, 1, 1));
  for (const char* preset : {"suffix", "fuse", "staged"}) {
    EngineOptions o = spec_options(preset, false, 512, 1, 2);
    o.spec.settings.push_back({"store", "1000"});
    if (preset == std::string("suffix")) o.spec.settings.push_back({"factor", "2"});
    const auto engine = Engine::open(o);
    for (int which : {0, 1}) {
      const auto first = answers(*engine, {prompt}, {setting(which, 80, 3)}, false)[0],
                 again = answers(*engine, {prompt}, {setting(which, 80, 3)}, false)[0];
      expect_equal(answers(*plain, {prompt}, {setting(which, 80, 3)}, false)[0], again, preset);
      expect_equal(first, again, preset);
      if (preset != std::string("suffix")) continue;       // others are nearly always right here by themselves
      const auto most = int(again.tokens.size()) * 3 / 4;  // how long answers are differs between instruction sets
      EXPECT_GT(again.spec.accepted, most) << which;
      EXPECT_LT(first.spec.accepted, most) << which;
    }
  }
}

TEST(Speculation, TextsToCopyFrom) {
  const TempFolder folder;
  EngineOptions o = spec_options("suffix", false, 512, 1, 1);
  o.spec.settings.push_back({"store-file", folder.file("corpus.txt")});
  const auto refused = [&] {
    try {
      Engine::open(o);
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string();
  };
  EXPECT_NE(refused().find("corpus.txt"), std::string::npos) << refused();
  testing::write_file(folder.file("corpus.txt"), "");
  EXPECT_NE(refused().find("store-file"), std::string::npos) << refused();
  // The text the model would write, given as the corpus.
  const auto prompt = testing::random_text(60, 5);
  const auto expected = answers(*Engine::open(plain_options(512, 1, 1)), {prompt}, {setting(0, 80, 3)}, false)[0];
  testing::write_file(folder.file("corpus.txt"), expected.text);
  const auto engine = Engine::open(o);
  const auto found = answers(*engine, {prompt}, {setting(0, 80, 3)}, false)[0];
  expect_equal(expected, found, "corpus");
  const auto alone =
      answers(*Engine::open(spec_options("suffix", false, 512, 1, 1)), {prompt}, {setting(0, 80, 3)}, false)[0];
  EXPECT_GT(found.spec.accepted,
            alone.spec.accepted + 10);  // not all of it: the text's tokens are not all those the model chose
}

TEST(Speculation, WrongDraftsAreRefused) {
  const TempFolder folder;
  TinySpec other = target_spec();
  other.vocab = 300;  // a smaller vocabulary of the same tokens: padding
  testing::write_tiny_gguf(folder.file("padded.gguf"), other);
  EngineOptions o = spec_options("sd", false, 100, 1, 1);
  o.spec.draft_model = folder.file("padded.gguf");
  const auto prompt = testing::repeating_text(30, 1);
  auto plain = Engine::open(plain_options(100, 1, 1));
  auto engine = Engine::open(o);
  expect_equal(answers(*plain, {prompt}, {setting(1, 40, 1)}, false)[0],
               answers(*engine, {prompt}, {setting(1, 40, 1)}, false)[0], "padded");
  o.spec.draft_model = folder.file("missing.gguf");
  EXPECT_THROW(Engine::open(o), Error);
  o.spec.draft_model.clear();
  EXPECT_THROW(Engine::open(o), Error);
}

TEST(Speculation, CountersAddUp) {
  auto engine = Engine::open(spec_options("opt-tree", false, 300, 1, 1));
  auto session = engine->start();
  GenerateOptions o = setting(0, 50, 0);
  int64_t rounds = 0, made = 0, drafted = 0, verified = 0;
  o.on_round = [&](const RoundInfo& r) {
    ++rounds, made += r.accepted + 1, drafted += r.drafted, verified += r.verified;
    ASSERT_EQ(r.tokens.size(), r.parents.size());
    ASSERT_EQ(int(r.tokens.size()), r.verified + 1);
    ASSERT_EQ(int(r.path.size()), r.accepted + 1);
    for (size_t i = 1; i < r.path.size(); ++i) EXPECT_EQ(r.parents[size_t(r.path[i])], r.path[i - 1]);
  };
  const auto result = session->generate(testing::repeating_text(60, 8), o);
  const SpecStats& s = result.spec;
  EXPECT_EQ(s.rounds, rounds);
  EXPECT_EQ(made, int64_t(result.tokens.size()));
  EXPECT_EQ(s.accepted + s.rounds, made);
  EXPECT_EQ(s.drafted, drafted);
  EXPECT_EQ(s.verified, verified);
  int64_t by_histogram = 0, in_histogram = 0, by_depth = 0;
  for (size_t a = 0; a < s.histogram.size(); ++a)
    by_histogram += int64_t(a) * s.histogram[a], in_histogram += s.histogram[a];
  for (int64_t n : s.accepted_at_depth) by_depth += n;
  EXPECT_EQ(by_histogram, s.accepted);
  EXPECT_EQ(by_depth, s.accepted);
  EXPECT_EQ(in_histogram, s.drafted_rounds);
  EXPECT_GT(s.times.verify, 0);
  EXPECT_NE(spec_metrics_json(s).find("\"speculative_decoding\""), std::string::npos);
}

}  // namespace
}  // namespace sx
