// The tiny models of tests that compare ways to run several requests: a target, a small draft and an EAGLE-3 head for
// it.
#pragma once
#include "model/heads/head_parts.h"
#include "support/model_writer.h"

namespace sx::testing {

// target.gguf, draft.gguf and head in `folder`.
inline void write_batch_models(const TempFolder& folder) {
  TinySpec spec;
  spec.layers = 4, spec.weights = DType::kQ8_0, spec.gain = 2;
  write_tiny_gguf(folder.file("target.gguf"), spec);
  const ModelConfig target = tiny_config(spec);
  spec.weights = DType::kQ4_0;
  write_tiny_gguf(folder.file("draft.gguf"), spec);
  auto head = eagle3_config(target, 1, 160);
  head["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
  random_head(head, {"lm_head.weight", "d2t"}, target, DType::kBF16, 4).write(folder.file("head"));
}

}  // namespace sx::testing
