#include "cli/eval_suite.h"

#include <algorithm>

namespace sx::cli {
namespace {

// Ordinary speculation: the draft works on the whole text, beyond the positions it was trained for.
constexpr const char* kStandard = "specextend:cache=full,positions=original";
constexpr const char* kStreaming = "specextend:cache=streaming";

struct Known {
  const char* what;
  const char* paper;
  const char* setting;
  const char* method;
  const char* against;
};
// What the paper reports, as far as its figures are known to us.
constexpr Known kKnown[] = {
    {"draft model as usual, over plain", "1.38x", "GovReport 16K, Vicuna-7B with a draft of 68M", kStandard,
     kPlainMethod},
    {"draft model with SpecExtend, over plain", "up to 2.84x", "summaries of 16K, best of all", "specextend",
     kPlainMethod},
    {"retrieval instead of the whole text", "1.46x", "ablation, this part alone", "specextend", kStandard},
    {"StreamingLLM's cache instead of the whole text", "1.27x", "ablation, this part alone", kStreaming, kStandard},
    {"EAGLE-3 with SpecExtend, over EAGLE-3", "3.86x", "AIME-24, DeepSeek-R1-Distill-Llama-8B", "specextend-eagle3",
     "eagle3"},
    {"SpecExtend over TriForce", "above 1x", "16K, no figure known", "specextend", "triforce"},
    {"SpecExtend over MagicDec", "above 1x", "16K, no figure known", "specextend", "magicdec"},
    {"auto, over plain", "none", "not in the paper", "auto", kPlainMethod},
};

const EvalRow* longest(std::span<const EvalRow> rows, const std::string& method, const EvalRow* like = nullptr) {
  const EvalRow* found = nullptr;
  for (const EvalRow& row : rows) {
    if (row.method != method || row.batch != 1) continue;
    if (like && (row.length != like->length || row.temperature != like->temperature || row.answer != like->answer))
      continue;
    if (!found || row.prompt_tokens > found->prompt_tokens) found = &row;
  }
  return found;
}

}  // namespace

EvalGrid paper_grid(bool quick) {
  EvalGrid grid;
  grid.methods = {kStandard, "specextend", kStreaming, "eagle3", "specextend-eagle3", "triforce", "magicdec", "auto"};
  grid.answers = {quick ? 32 : 128};
  grid.lengths = quick ? std::vector<int>{2048} : std::vector<int>{1024, 2048, 4096, 7500};
  grid.repetitions = quick ? 1 : 3;
  if (quick) return grid;
  for (const char* more : {"specextend:interval=1", "specextend:interval=16", "specextend:chunk=8",
                           "specextend:chunk=128", "specextend:budget=256", "specextend:budget=2048", "streamingllm"})
    grid.methods.push_back(more);
  return grid;
}

std::vector<PaperFigure> paper_figures(std::span<const EvalRow> rows) {
  std::vector<PaperFigure> out;
  if (!longest(rows, kStandard)) return out;
  for (const Known& known : kKnown) {
    const EvalRow* const ours = longest(rows, known.method);
    const EvalRow* const base = ours ? longest(rows, known.against, ours) : nullptr;
    if (!base) continue;
    PaperFigure f{.what = known.what,
                  .paper = known.paper,
                  .setting = known.setting,
                  .method = known.method,
                  .against = known.against};
    f.prompt_tokens = ours->prompt_tokens;
    if (base->tokens_per_second > 0) f.whole = ours->tokens_per_second / base->tokens_per_second;
    if (base->decode_tokens_per_second > 0) f.decode = ours->decode_tokens_per_second / base->decode_tokens_per_second;
    f.accepted = ours->accepted_per_pass, f.base = base->accepted_per_pass;
    out.push_back(std::move(f));
  }
  return out;
}

}  // namespace sx::cli
