// What sessions, requests and rounds share of an engine. An engine owns all of it and outlives them; a test makes its
// own.
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "engine/speculation.h"
#include "engine/window_memory.h"
#include "kv/sequence_table.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace sx {

struct EngineParts {
  Backend* backend = nullptr;
  Model* model = nullptr;
  KvStore* kv = nullptr;               // the target's KV cache
  SequenceTable* sequences = nullptr;  // who has which cells of it
  WindowMemory* windows = nullptr;     // gives back those behind sliding windows; null: all are kept
  CostModel* cost_model = nullptr;     // of the target's passes
  const TokenCodec* tokenizer = nullptr;
  std::span<const std::unique_ptr<Speculation>>
      speculations;                                  // what requests may speculate with; the first is the default
  int chunk = 512;                                   // rows of one pass over a prompt
  const std::function<bool()>* make_room = nullptr;  // on_full_memory()

  int vocab() const { return model->config().vocab; }
  int context() const { return sequences->capacity(); }
};

}  // namespace sx
