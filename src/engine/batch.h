// Continuous batching: chooses which requests decode and which prompts are prefilled in the next round (shortest prompt
// first, with aging). Whose next mask of a grammar is not there does not decode.
#pragma once
#include <memory>
#include <vector>

#include "engine/round.h"
#include "specextend/specextend.h"

namespace sx {

class EngineImpl;

class BatchImpl : public Batch {
 public:
  explicit BatchImpl(EngineImpl& engine);

  void add(const Request& request) override;
  bool step() override;
  std::vector<Finished> take_finished() override;

 private:
  struct Entry {
    Session* session;
    std::unique_ptr<Generation> generation;
    int64_t not_others;  // prompt_rows_ when the request came, and its own rows since
  };
  void choose_decoding();
  void choose_prompts();
  void wait_for_masks();
  void collect();

  EngineImpl& engine_;
  std::vector<Entry> all_;             // in order of arrival
  std::vector<Generation*> decoding_;  // of the round
  std::vector<Entry*> prompting_;
  std::vector<PromptPiece> pieces_;
  std::vector<Finished> finished_;
  Background* masks_ = nullptr;  // where masks are made that take long; null: no request has had a grammar
  uint64_t masks_made_ = 0;      // when the requests of the step were chosen
  size_t turn_ = 0;              // who decodes first, where not all fit in a pass
  int64_t prompt_rows_ = 0;      // done so far, for all
};

}  // namespace sx
