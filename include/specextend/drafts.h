// The drafts that come with the engine: small models and heads trained for one target each, in a folder with a list,
// drafts.json. A preset that needs a draft and is given none takes the one that fits (EngineOptions::spec); afterwards
// Engine::options() names it.
//
// The folder is $SPECEXTEND_MODELS if that is set, else share/specextend/models beside the program's folder, else
// models/ of the source tree.
#pragma once
#include <specextend/specextend.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sx {

// What a draft must agree with. The same for a model in any type and form: GGUF file or folder.
struct DraftTarget {
  std::string architecture{};  // "llama", "qwen2" or "qwen3"
  int layers = 0, width = 0;
  int vocab = 0;               // rows of the embedding
  std::string vocabulary{};    // fingerprint of the tokens: 16 hexadecimal digits
  bool operator==(const DraftTarget&) const = default;
};
DraftTarget draft_target(const std::string& model);  // throws if the model has no vocabulary

struct ShippedDraft {
  std::string name;    // "smollm2-135m-eagle3"
  std::string kind;    // "model", "eagle1", "eagle3", "medusa" or "longspec"
  std::string path;    // GGUF file, or the folder of a head
  uint64_t bytes = 0;  // of the weights' file
  std::string sha256;  // of the weights' file
  DraftTarget target;
};
std::string shipped_drafts_folder();             // where they are; empty: nowhere
std::vector<ShippedDraft> shipped_drafts();      // as the list says; throws if it is damaged

// What is in the folder of a draft head. `inspect` is for whole models.
struct HeadSummary {
  std::string path, kind;      // "EAGLE-1", "EAGLE-3" or "Medusa"
  int layers = 0;              // decoder layers; Medusa: residual blocks of each head
  int heads = 1;               // Medusa: tokens it looks ahead
  int width = 0, target_width = 0, vocab = 0, draft_vocab = 0, context = 0;  // context: trained length, 0: not said
  std::string reads;           // which states of the target
  bool own_embedding = false, own_output = false;  // else the target's
  std::string types;           // "Q4_0 1, Q8_0 8, BF16 4"
  uint64_t parameters = 0;
  size_t file_bytes = 0, weight_bytes = 0;
  std::vector<TensorSummary> tensors;
};
bool is_head(const std::string& path);
HeadSummary inspect_head(const std::string& folder);

}  // namespace sx
