// A backend that grows trees itself (Backend::grow_tree), as a device does, on top of one that need not: level by level
// with steps of that one, by rules written down a second time. And one that says it could and never does, so that the
// host's loop runs under the same limits.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "support/forwarding_backend.h"

namespace sx::testing {

class TreeGrowthBackend final : public ForwardingBackend {
 public:
  explicit TreeGrowthBackend(std::unique_ptr<Backend> right, int rows = 16)
      : ForwardingBackend(std::move(right)), rows_(rows) {}
  int level_rows() const override { return rows_; }
  bool grow_tree(const TreeGrowthArgs& args, StepInputs& step, const StepKey& key, FunctionRef body) override;
  int trees() const { return trees_; }    // grown so far
  int passes() const { return passes_; }  // run for them

 private:
  struct Node {
    int parent, row, order;  // row: of the parent in the last pass
    Token token;
    float score;
  };
  struct Growth;
  void add_level(const TreeGrowthArgs& args, Growth& g);
  void find_candidates(const TreeGrowthArgs& args, Growth& g);
  bool goes_on(const TreeGrowthRules& rules, const Growth& g) const;
  void run_pass(const TreeGrowthArgs& args, Growth& g, StepInputs& step, const StepKey& key, FunctionRef body);

  int rows_, trees_ = 0, passes_ = 0;
};

class RefusingBackend final : public ForwardingBackend {
 public:
  explicit RefusingBackend(std::unique_ptr<Backend> right, int rows = 16)
      : ForwardingBackend(std::move(right)), rows_(rows) {}
  int level_rows() const override { return rows_; }
  bool grow_tree(const TreeGrowthArgs&, StepInputs&, const StepKey&, FunctionRef) override { return ++refused_, false; }
  int refused() const { return refused_; }

 private:
  int rows_, refused_ = 0;
};

}  // namespace sx::testing
