// Every drafter, cache and rule under real mpirun: rank 0 runs each case with the target spread over the ranks, and
// alone, and compares tokens, logits and trees. One start serves all cases.
//
//   mpirun -n RANKS test_mpi_cases layers|columns [DEVICE]
#include <fmt/format.h>
#include <specextend/ranks.h>

#include <cstdlib>
#include <string>

#include "engine/engine_cases.h"
#include "engine/rank_devices.h"
#include "engine/ranks_backend.h"

namespace {

using namespace sx;

int compare_cases(const std::string& split, const std::string& device, int ranks) {
  EngineOptions options;
  options.split = split, options.device = device, options.threads = 1;
  int compared = 0, failed = 0;
  const auto compare = [&](const std::string& name, const SpecOptions& spec) {
    const auto one = testing::run_engine(spec, make_rank_backend(device_list(device), 0, 1));
    const auto many = testing::run_engine(spec, make_ranks_backend(options));
    const std::string difference =
        name == "with_costs" ? testing::text_difference(many, one) : testing::tree_difference(many, one);
    ++compared;
    if (difference.empty()) return;
    ++failed;
    fmt::print("{}: {}\n", name, difference);
  };
  compare("plain", {});
  for (const testing::EngineCase& c : testing::engine_cases()) compare(c.name, c.spec);
  fmt::print("{} ranks by {}: {} cases compared, {} failed\n", ranks, split, compared, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return fmt::print(stderr, "usage: test_mpi_cases layers|columns [DEVICE]\n"), 2;
  const std::string split = argv[1], device = argc > 2 ? argv[2] : "cpu";
  try {
    const RankPlace place = join_ranks(split, [](const std::string& why) {
      fmt::print(stderr, "{}\n", why);
      std::_Exit(1);
    });
    int status = 0;
    if (place.rank == 0) status = compare_cases(split, device, place.size);
    else follow_ranks(1, device);
    leave_ranks();
    return status;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    std::_Exit(1);
  }
}
