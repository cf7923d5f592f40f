// A backend that grows trees itself (Backend::run_levels), as a device does, on top of one that need not: level by level with steps of
// that one, by rules written down a second time. And one that says it could and never does, so that the host's loop runs under the same
// limits.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "support/forwarding_backend.h"

namespace sx::testing {

class LevelsBackend final : public ForwardingBackend {
 public:
  explicit LevelsBackend(std::unique_ptr<Backend> right, int rows = 16) : ForwardingBackend(std::move(right)), rows_(rows) {}
  int level_rows() const override { return rows_; }
  bool run_levels(const LevelsArgs& args, StepInputs& step, const StepKey& key, FunctionRef body) override;
  int trees() const { return trees_; }    // grown so far
  int passes() const { return passes_; }  // run for them

 private:
  struct Node {
    int parent, row, order;  // row: of the parent in the last pass
    Token token;
    float score;
  };
  struct Growth;
  void add_level(const LevelsArgs& args, Growth& g);
  void find_candidates(const LevelsArgs& args, Growth& g);
  bool goes_on(const LevelRules& rules, const Growth& g) const;
  void run_pass(const LevelsArgs& args, Growth& g, StepInputs& step, const StepKey& key, FunctionRef body);

  int rows_, trees_ = 0, passes_ = 0;
};

class RefusingBackend final : public ForwardingBackend {
 public:
  explicit RefusingBackend(std::unique_ptr<Backend> right, int rows = 16) : ForwardingBackend(std::move(right)), rows_(rows) {}
  int level_rows() const override { return rows_; }
  bool run_levels(const LevelsArgs&, StepInputs&, const StepKey&, FunctionRef) override { return ++refused_, false; }
  int refused() const { return refused_; }

 private:
  int rows_, refused_ = 0;
};

}  // namespace sx::testing
