// The drafts that come with the engine: small models and heads trained for one target each, in a folder with a list,
// drafts.json. A preset that needs a draft and is given none takes the one that fits (EngineOptions::spec); afterwards
// Engine::options() names it.
//
// The folder is $SPECEXTEND_MODELS if that is set, else share/specextend/models beside the program's folder, else
// models/ of the source tree.
//
// Thread safety: the functions have no state; any thread may call them. Errors throw sx::Error.
#pragma once
#include <specextend/error.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sx {

// What a draft and its target must agree on. It is the same for a model in any type and form: GGUF file or folder.
struct DraftTarget {
  std::string architecture{};  // "llama", "qwen2" or "qwen3"
  int layers = 0, width = 0;
  int vocab = 0;             // rows of the embedding
  std::string vocabulary{};  // fingerprint of the tokens: 16 hexadecimal digits
  bool operator==(const DraftTarget&) const = default;
};
DraftTarget draft_target(const std::string& model);  // throws if the model has no vocabulary

struct ShippedDraft {
  std::string name;    // "smollm2-135m-eagle3"
  std::string kind;    // "model", "eagle1", "eagle3", "medusa", "longspec" or "dflash"
  std::string path;    // GGUF file, or the folder of a head
  uint64_t bytes = 0;  // of the weights' file
  std::string sha256;  // of the weights' file
  DraftTarget target;
};
std::string shipped_drafts_folder();         // where they are; empty: nowhere
std::vector<ShippedDraft> shipped_drafts();  // as the list says; throws if it is damaged

}  // namespace sx
