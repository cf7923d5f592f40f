// Real mpirun: rank 0 runs engines with the target spread over the ranks, and alone, and compares tokens, logits and
// trees. Tiny models of every family, every drafter, cache and rule, and a real model. One start serves all of them.
//
//   mpirun -n RANKS test_mpi_cases layers|columns some|all GOLDEN_FOLDER MODEL|- [DEVICE]
#include <fmt/format.h>
#include <specextend/ranks.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "comm/family_results.h"
#include "engine/engine.h"
#include "engine/engine_cases.h"
#include "engine/rank_devices.h"
#include "engine/ranks_backend.h"

namespace {

using namespace sx;

struct Compared {
  std::string split, device;
  int count = 0, failed = 0;

  std::unique_ptr<Backend> alone() const { return make_rank_backend(device_list(device), 0, 1); }
  std::unique_ptr<Backend> on_ranks() const {
    EngineOptions options;
    options.split = split, options.device = device, options.threads = 1;
    return make_ranks_backend(options);
  }
  void add(const std::string& name, const std::string& difference) {
    ++count;
    if (difference.empty()) return;
    ++failed;
    fmt::print("{}: {}\n", name, difference);
  }
};

void compare_families(Compared& compared, const std::string& golden) {
  for (const std::string& name : testing::models_in(golden)) {
    const auto one = testing::family_results(*compared.alone(), golden + "/" + name);
    const auto many = testing::family_results(*compared.on_ranks(), golden + "/" + name);
    const bool same = one.size() == many.size() && !one.empty() &&
                      std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0;
    compared.add(name, same ? "" : "other logits, states or queries");
  }
}

void compare_cases(Compared& compared, bool all) {
  const auto compare = [&](const std::string& name, const SpecOptions& spec) {
    const auto one = testing::run_engine(spec, compared.alone()), many = testing::run_engine(spec, compared.on_ranks());
    compared.add(name,
                 name == "with_costs" ? testing::text_difference(many, one) : testing::tree_difference(many, one));
  };
  compare("plain", {});
  for (const testing::EngineCase& c : testing::engine_cases())
    if (all || c.name == "specextend" || c.name == "eagle3" || c.name == "mtp" || c.name == "dflash" ||
        c.name == "longspec" || c.name == "self" || c.name == "suffix")
      compare(c.name, c.spec);
}

// The drafts that come with the program on their target, greedy and sampled.
void compare_real_model(Compared& compared, const std::string& path) {
  std::vector<Token> prompt(150);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = Token(1000 + i * 7919 % 5000 % 61);
  for (const char* preset : {"specextend", "specextend-eagle3"}) {
    const auto texts = [&](std::unique_ptr<Backend> backend) {
      EngineOptions options;
      options.model = path, options.context = 512, options.threads = 1, options.startup_cache.clear();
      options.spec.preset = preset, options.spec.settings = {{"cost-model", "off"}};
      options.more_specs = {{.preset = "off"}};
      EngineImpl engine(options, std::move(backend));
      std::vector<float> all;
      for (const char* with : {preset, "off"})
        for (const float temperature : {0.0f, 1.0f}) {
          GenerateOptions request;
          request.max_tokens = 24, request.ignore_end = true, request.preset = with;
          request.sampling.temperature = temperature, request.sampling.seed = 11;
          request.on_logits = [&all](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
          for (const Token token : engine.start()->generate(prompt, request).tokens) all.push_back(float(token));
        }
      return all;
    };
    const auto one = texts(compared.alone()), many = texts(compared.on_ranks());
    const bool same = one.size() == many.size() && one.size() > 4 * 24 &&
                      std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0;
    compared.add(fmt::format("{} with {}", path, preset), same ? "" : "other tokens or logits");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5)
    return fmt::print(stderr, "usage: test_mpi_cases layers|columns some|all GOLDEN_FOLDER MODEL|- [DEVICE]\n"), 2;
  Compared compared{argv[1], argc > 5 ? argv[5] : "cpu"};
  const std::string model = argv[4];
  try {
    const RankPlace place = join_ranks(compared.split, [](const std::string& why) {
      fmt::print(stderr, "{}\n", why);
      std::_Exit(1);
    });
    if (place.rank == 0) {
      compare_families(compared, argv[3]);
      compare_cases(compared, argv[2] == std::string("all"));
      if (model != "-") compare_real_model(compared, model);
      fmt::print("{} ranks by {}: {} cases compared, {} failed\n", place.size, compared.split, compared.count,
                 compared.failed);
    } else {
      follow_ranks(1, compared.device);
    }
    leave_ranks();
    return compared.failed == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    std::_Exit(1);
  }
}
