// Requests that draft together share the passes of the network that drafts, whatever the shape of their trees.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "engine/batch_models.h"
#include "engine/engine.h"
#include "engine/head_answers.h"
#include "support/forwarding_backend.h"

namespace sx {
namespace {

constexpr int kRequests = 6, kTokens = 24;

class Counting final : public testing::ForwardingBackend {
 public:
  explicit Counting(int& passes) : ForwardingBackend(make_cpu_backend({1, std::nullopt})), passes_(passes) {}
  void rope_store(const RopeStoreArgs& a) override {
    passes_ += a.layer == 0;
    right_->rope_store(a);
  }

 private:
  int& passes_;
};

struct Drafted {
  int passes = 0;  // of the target and of what drafts, while answers are written
  std::vector<std::vector<Token>> answers;
  int64_t drafted = 0;
};

// Answers to `requests` prompts in one batch.
Drafted run(const testing::TempFolder& folder, const std::string& preset, const std::string& draft, int requests) {
  EngineOptions o =
      testing::small_options(folder.file("target.gguf"), preset, folder.file(draft.c_str()), 64, kRequests);
  Drafted out;
  EngineImpl engine(o, std::make_unique<Counting>(out.passes));
  GenerateOptions options;
  options.max_tokens = kTokens, options.ignore_end = true;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<Token>> prompts;
  for (int i = 0; i < requests; ++i) {
    sessions.push_back(engine.start());
    prompts.push_back(testing::any_text(20 + 3 * i, unsigned(i)));
    sessions.back()->evaluate(std::span(prompts.back()).first(prompts.back().size() - 1), 1);
  }
  std::vector<Request> all;
  for (int i = 0; i < requests; ++i) all.push_back({sessions[size_t(i)].get(), prompts[size_t(i)], &options});
  out.passes = 0;
  for (auto& result : engine.generate(all)) {
    out.drafted += result.spec.drafted;
    out.answers.push_back(std::move(result.tokens));
  }
  return out;
}

TEST(BatchDrafts, SequencesShareThePassesOfADraft) {
  const testing::TempFolder folder;
  testing::write_batch_models(folder);
  const Drafted plain = run(folder, "", "draft.gguf", kRequests);
  for (const auto& [preset, draft] :
       {std::pair("opt-tree", "draft.gguf"), std::pair("eagle2-tree", "draft.gguf"), std::pair("opt-tree", "head"),
        std::pair("eagle2-tree", "head"), std::pair("specexec", "head"), std::pair("fuse", "head")}) {
    SCOPED_TRACE(std::string(preset) + " " + draft);
    const Drafted alone = run(folder, preset, draft, 1), together = run(folder, preset, draft, kRequests);
    EXPECT_EQ(together.answers, plain.answers);
    EXPECT_EQ(alone.answers[0], plain.answers[0]);
    EXPECT_GT(together.drafted, 3 * alone.drafted);
    // Requests need different numbers of rounds, and prompts take a pass each; but not each a draft of its own.
    EXPECT_LT(together.passes, 2 * alone.passes + 2 * kRequests);
  }
}

}  // namespace
}  // namespace sx
