// What `specextend eval` runs and in which order: methods x prompts x lengths x temperatures x answer lengths x batch
// sizes, each several times. Pure functions.
#pragma once
#include <compare>
#include <string>
#include <vector>

namespace sx::cli {

inline constexpr const char* kPlainMethod = "off";

struct EvalGrid {
  std::vector<std::string> methods{kPlainMethod};  // as --spec takes them; the first is plain decoding
  std::vector<int> lengths{0};                     // prompt tokens; 0: prompts as they are
  std::vector<double> temperatures{0};
  std::vector<int> answers{64};  // most tokens of an answer
  std::vector<int> batches{1};
  int repetitions = 3;
};

// Throws sx::Error on a grid that cannot be run; puts plain decoding first, and takes out what is there twice.
EvalGrid checked(EvalGrid grid);

// What all methods do alike: the prompts and how they are continued.
struct EvalCase {
  std::string prompt;  // id of the prompt, or of the first of a batch and how many more
  int length = 0;      // as asked for; 0: as it is
  double temperature = 0;
  int answer = 0, batch = 1;
  auto operator<=>(const EvalCase&) const = default;
};

// A method on a case.
struct EvalCell {
  std::string method;
  EvalCase with;
  auto operator<=>(const EvalCell&) const = default;
};
std::string cell_name(const EvalCell& cell);  // "sd, report-1, 4096 tokens, T = 0.8, 64 new, batch of 8"

struct EvalJob {
  size_t method = 0, with = 0;  // indices of methods and cases
  int repetition = 0;
};

// The order of methods in one repetition of a case. It is another one in every repetition and for neighbouring cases,
// so that what the machine does besides hits all methods alike. In the first repetition plain decoding comes first:
// its answer is what the others are compared with.
std::vector<size_t> method_order(size_t methods, size_t with, int repetition);
// All jobs: the whole grid once, then again.
std::vector<EvalJob> eval_jobs(size_t methods, size_t cases, int repetitions);

}  // namespace sx::cli
