// `specextend perplexity`: measures how well the model predicts a text, as llama.cpp does: the text is cut into windows
// of -c tokens, each starts with the BOS token if the vocabulary has one, and only the second half of a window is
// scored.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct PerplexityArgs {
  EngineOptions engine;
  std::string file, chat_template_file;
  int windows = -1;
  bool quiet = false;
};

constexpr int kLeastWindow = 3;

// -log p(token) under a row of logits.
double surprise(std::span<const float> logits, Token token) {
  float top = logits[0];
  for (float x : logits) top = std::max(top, x);
  double sum = 0;
  for (float x : logits) sum += std::exp(double(x) - double(top));
  return std::log(sum) + double(top) - double(logits[size_t(token)]);
}

int run(PerplexityArgs& a) {
  const int window = a.engine.context == 0 ? 512 : a.engine.context;
  if (window < kLeastWindow)
    throw Error(
        fmt::format("-c {}: a window needs at least {} tokens to score one in its second half", window, kLeastWindow));
  if (a.windows == 0 || a.windows < -1)
    throw Error(fmt::format("--windows {}: expected a number from 1, or -1 for all", a.windows));
  a.engine.context = window;
  a.engine.max_outputs = a.engine.chunk = a.engine.chunk == 0 ? 256 : std::min(a.engine.chunk, 256);
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  auto tokens = engine->tokenizer().tokenize(read_file(a.file), true, false);
  const auto empty = engine->tokenizer().tokenize("", true, false);
  const Token bos = empty.empty() ? -1 : empty.front();
  const int available = int(tokens.size()) / window,
            windows = a.windows > 0 ? std::min(a.windows, available) : available;
  if (windows == 0) throw Error(fmt::format("'{}' has {} tokens, one window needs {}", a.file, tokens.size(), window));
  auto session = engine->start();
  ProgressLine line("perplexity", a.quiet);
  double sum = 0, squares = 0;
  int64_t count = 0;
  const int vocab = engine->vocab(), first = window / 2, step = engine->options().max_outputs;
  for (int w = 0; w < windows; ++w) {
    std::span<Token> part(tokens.data() + size_t(w) * size_t(window), size_t(window));
    const Token kept = part[0];
    if (bos >= 0) part[0] = bos;
    session->truncate(0);
    if (first > 0) session->evaluate(part.first(size_t(first)), 0);
    for (int from = first; from < window - 1; from += step) {
      const int rows = std::min(step, window - 1 - from);
      const auto logits = session->evaluate(part.subspan(size_t(from), size_t(rows)), rows);
      for (int r = 0; r < rows; ++r) {
        const double s = surprise(logits.subspan(size_t(r) * size_t(vocab), size_t(vocab)), part[size_t(from + r + 1)]);
        sum += s, squares += s * s, ++count;
      }
    }
    part[0] = kept;
    line.update(double(w + 1) / windows,
                fmt::format("{} / {} windows, perplexity {:.4f}", w + 1, windows, std::exp(sum / double(count))));
  }
  line.clear();
  const double mean = sum / double(count),
               deviation = std::sqrt(std::max(0.0, squares / double(count) - mean * mean) / double(count));
  if (!std::isfinite(mean))
    throw Error(fmt::format("the perplexity is {}: the model gives logits that are no numbers", mean));
  write_out(fmt::format("perplexity {:.4f} +/- {:.4f} ({} windows of {}, {} tokens scored)\n", std::exp(mean),
                        std::exp(mean) * deviation, windows, window, count));
  return 0;
}

}  // namespace

Command add_perplexity(CLI::App& app) {
  auto args = std::make_shared<PerplexityArgs>();
  {
    const HelpGroup group(app, "Text");
    app.add_option("-f,--file", args->file, "the text; -: standard input")->required();
    app.add_option("--chunks,--windows", args->windows, "windows of -c tokens to score; -1: all")
        ->capture_default_str();
    app.add_flag("-q,--quiet", args->quiet, "no progress");
  }
  add_engine_flags(app, args->engine, args->chat_template_file);
  return [args] { return run(*args); };
}

}  // namespace sx::cli
