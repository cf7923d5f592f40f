// Requests that share passes: who of those whose prompt is not done gets the next rows, who decodes.
#pragma once
#include <memory>
#include <vector>

#include "engine/round.h"

namespace sx {

class BatchImpl : public Batch {
 public:
  explicit BatchImpl(EngineImpl& engine);

  void add(const Request& request) override;
  bool step() override;
  std::vector<Finished> take_finished() override;

 private:
  void choose_decoding();
  void choose_prompts();
  void collect();

  EngineImpl& engine_;
  std::vector<std::unique_ptr<Generation>> all_;   // in order of arrival
  std::vector<Generation*> decoding_, prompting_;  // of the step
  std::vector<PromptPiece> pieces_;
  std::vector<Finished> finished_;
  size_t turn_ = 0;                                // who decodes first, where not all fit in a pass
  int64_t prompt_rows_ = 0;                        // done so far, for all
};

}  // namespace sx
