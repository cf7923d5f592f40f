// The parts of an engine on a tiny model, without an engine: for tests of rounds and requests alone.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backend/registry.h"
#include "engine/engine_parts.h"
#include "engine/generation.h"
#include "formats/model_file.h"
#include "support/model_writer.h"

namespace sx::testing {

class PartsTest : public ::testing::Test {
 protected:
  static constexpr int kContext = 96, kSessions = 3;

  PartsTest() : sequences_(kSessions, kContext) {
    TinySpec spec;
    spec.weights = DType::kQ8_0;
    write_tiny_gguf(folder_.file("target.gguf"), spec);
    file_ = ModelFile::open(folder_.file("target.gguf"));
    backend_ = make_cpu_backend({1, std::nullopt});
    tokenizer_ = TokenCodec::create(file_->tokenizer());
    ModelOptions options;
    options.max_rows = 64, options.max_outputs = 32, options.context = kContext;
    model_ = Model::load(file_, *backend_, options);
    kv_ = backend_->make_kv(model_->kv_geometry(kSessions, kContext, DType::kF32));
    for (const char* preset : {"off", "suffix"}) {
      SpeculationParts parts;
      parts.backend = backend_.get(), parts.target = model_.get(), parts.kv = kv_.get(),
      parts.tokenizer = tokenizer_.get();
      parts.cost_model = &cost_model_, parts.slots = kSessions, parts.context = kContext, parts.name = preset;
      SpecOptions how;
      how.preset = preset;
      if (parts.name == "suffix") how.settings = {{"nodes", "6"}, {"depth", "6"}};
      speculations_.push_back(std::make_unique<Speculation>(resolve(how), parts));
    }
    parts_ = {.backend = backend_.get(),
              .model = model_.get(),
              .kv = kv_.get(),
              .sequences = &sequences_,
              .cost_model = &cost_model_,
              .tokenizer = tokenizer_.get(),
              .speculations = speculations_,
              .chunk = 16};
    options_.ignore_end = true;
  }

  Speculation& off() { return *speculations_[0]; }
  Speculation& suffix() { return *speculations_[1]; }
  std::unique_ptr<Generation> request(CachedText& text, std::span<const Token> prompt, const GenerateOptions& options,
                                      Speculation& spec) {
    Request r;
    r.prompt = prompt, r.options = &options;
    check_request(r, parts_);
    Generation::Parts parts;
    parts.text = &text, parts.spec = &spec;
    return std::make_unique<Generation>(r, parts_, std::move(parts));
  }

  TempFolder folder_;
  std::shared_ptr<const ModelFile> file_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<const TokenCodec> tokenizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
  SequenceTable sequences_;
  CostModel cost_model_;
  std::vector<std::unique_ptr<Speculation>> speculations_;
  EngineParts parts_;
  GenerateOptions options_;
};

}  // namespace sx::testing
