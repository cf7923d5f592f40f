#include "cli/open_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/progress.h"
#include "cli/prompt.h"

namespace sx::cli {
namespace {

// Prints "cuda: 16.40 GB of device memory: weights 15.00, ..." by size; uses below 1 % are left out.
void print_device_memory(const Engine& engine) {
  auto uses = engine.device_memory();
  if (uses.empty()) return;
  std::sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  double total = 0;
  for (const auto& use : uses) total += double(use.second);
  std::string parts;
  for (const auto& [purpose, bytes] : uses)
    if (double(bytes) > total / 100)
      parts += fmt::format("{} {} {:.2f}", parts.empty() ? ":" : ",", purpose, double(bytes) / 1e9);
  fmt::print(stderr, "{}: {:.2f} GB of device memory{}\n", engine.backend(), total / 1e9, parts);
}

}  // namespace

void print_warnings(std::span<const std::string> warnings) {
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
}

std::unique_ptr<Engine> open_engine(EngineOptions options, const std::string& chat_template_file, bool quiet) {
  if (!chat_template_file.empty()) options.chat_template = read_file(chat_template_file);
  options.startup_cache = startup_cache_folder();
  ProgressLine line("loading", quiet);
  if (!quiet)
    options.on_load = [&, told = options.on_load](double done) {
      line.update(done, "");
      if (told) told(done);
    };
  auto engine = Engine::open(options);
  line.clear();
  const std::string& draft = engine->options().spec.draft_model;
  if (!quiet && draft != options.spec.draft_model) fmt::print(stderr, "draft: {} (shipped)\n", draft);
  if (!quiet) print_device_memory(*engine);
  print_warnings(engine->warnings());
  return engine;
}

void warn_without_template(const Engine& engine) {
  if (engine.tokenizer().chat_template().empty())
    fmt::print(stderr,
               "warning: the model has no chat template; ChatML is used, which it may not know (--chat-template-file "
               "gives another)\n");
}

}  // namespace sx::cli
