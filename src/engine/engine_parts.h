// What sessions, requests and rounds share of an engine. An engine owns all of it and outlives them; a test makes its
// own.
#pragma once
#include <memory>
#include <span>

#include "backend/backend.h"
#include "engine/speculation.h"
#include "kv/sequence_table.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace sx {

struct EngineParts {
  Backend* backend = nullptr;
  Model* model = nullptr;
  KvStore* kv = nullptr;               // the target's KV cache
  SequenceTable* sequences = nullptr;  // who has which cells of it
  CostModel* cost_model = nullptr;     // of the target's passes
  const TokenCodec* tokenizer = nullptr;
  std::span<const std::unique_ptr<Speculation>>
      speculations;  // what requests may speculate with; the first is the default
  int chunk = 512;   // rows of one pass over a prompt

  int vocab() const { return model->config().vocab; }
  int context() const { return sequences->capacity(); }
};

}  // namespace sx
