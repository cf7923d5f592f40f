// Questions about one document on a GPU: one session reads the document, the others take it over, and all answer in one
// batch. Tells the time of each part and how much memory of the device all of it takes, beside that of one question,
// and whether the first answer is that of a session that reads everything itself.
//   bench_questions MODEL [DOCUMENT_TOKENS [QUESTIONS [ANSWER_TOKENS]]]      6144, 8 and 64 if not given
// SPECEXTEND_KV=reserved: as on a device that cannot map memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "specextend/kv_memory.h"
#include "specextend/specextend.h"

namespace {

using namespace sx;

constexpr int kQuestion = 32;  // tokens

size_t free_bytes() {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return free;
}

std::vector<Token> tokens(int count, unsigned salt) {
  std::vector<Token> out;
  for (int i = 0; i < count; ++i) {
    salt = salt * 1664525u + 1013904223u;
    out.push_back(Token(1000 + salt / 65536 % 20000));
  }
  return out;
}

struct Run {
  double read = 0, take_over = 0, answer = 0;  // milliseconds
  size_t bytes = 0;                            // taken of the device since the engine was open
  KvMemory cells;
  std::vector<std::vector<Token>> answers;
};

Run ask(Engine& engine, const std::vector<Token>& document, int questions, int answer, bool takes_over) {
  Run run;
  const size_t before = free_bytes();
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < questions; ++i) sessions.push_back(engine.start());
  double start = now_ms();
  if (takes_over) sessions[0]->evaluate(document, 1);
  run.read = now_ms() - start, start = now_ms();
  for (int i = 1; takes_over && i < questions; ++i) sessions[size_t(i)]->copy_from(*sessions[0], int(document.size()));
  run.take_over = now_ms() - start, start = now_ms();
  GenerateOptions options;
  options.max_tokens = answer, options.ignore_end = true;
  std::vector<std::vector<Token>> prompts;
  for (int i = 0; i < questions; ++i) {
    prompts.push_back(document);
    for (const Token t : tokens(kQuestion, unsigned(i) + 77)) prompts.back().push_back(t);
  }
  std::vector<Request> requests;
  for (int i = 0; i < questions; ++i) requests.push_back({sessions[size_t(i)].get(), prompts[size_t(i)], &options});
  for (GenerateResult& result : engine.generate(requests)) run.answers.push_back(std::move(result.tokens));
  run.answer = now_ms() - start;
  run.bytes = before - std::min(before, free_bytes());
  run.cells = kv_memory(engine);
  return run;
}

void print(const char* what, const Run& run) {
  std::printf(
      "%-24s read %8.1f ms, taken over in %8.2f ms, answered in %8.1f ms; device memory %6.2f GB, cells %6.2f GB "
      "shared, %6.2f GB own\n",
      what, run.read, run.take_over, run.answer, double(run.bytes) / 1e9, double(run.cells.shared) / 1e9,
      double(run.cells.own) / 1e9);
  std::fflush(stdout);
}

int bench(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int length = number(2, 6144), questions = number(3, 8), answer = number(4, 64);
  EngineOptions options;
  options.model = argv[1], options.device = "cuda", options.max_sessions = questions, options.spec.preset = "off";
  options.context = length + kQuestion + answer + 64;
  const size_t all = free_bytes();
  double start = now_ms();
  const auto engine = Engine::open(options);
  std::printf("opened in %.0f ms, %.2f GB of the device\n", now_ms() - start, double(all - free_bytes()) / 1e9);
  const auto document = tokens(length, 5);
  ask(*engine, document, 1, 8, true);  // steps are recorded
  const Run alone = ask(*engine, document, 1, answer, false), one = ask(*engine, document, 1, answer, true);
  print("one, reading it all", alone);
  print("one question", one);
  const Run many = ask(*engine, document, questions, answer, true);
  print((std::to_string(questions) + " questions").c_str(), many);
  const double ratio = double(many.cells.shared + many.cells.own) / double(std::max<size_t>(1, one.cells.own));
  const bool equal = alone.answers[0] == many.answers[0];
  std::printf("cells: %.2fx of one question; the first answers are %s\n", ratio, equal ? "equal" : "DIFFERENT");
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::puts("bench_questions MODEL [DOCUMENT_TOKENS [QUESTIONS [ANSWER_TOKENS]]]"), 64;
  try {
    return bench(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_questions: %s\n", e.what());
    return 1;
  }
}
