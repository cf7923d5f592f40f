// Preparing model files: other types and other forms. Everything is written tensor by tensor under a temporary name, so
// that the model need not fit into memory and a failure leaves nothing half-written. Existing files are only
// overwritten with `force`.
//
//   sx::quantize({.model = "model-folder", .out = "model.gguf", .type = "Q4_K"});
//
// Thread safety: the functions have no state; any thread may call them. Errors throw sx::Error and name file and
// tensor. on_progress runs on the calling thread and may throw: the exception leaves the call and nothing is written.
#pragma once
#include <specextend/error.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sx {

struct QuantizeOptions {
  std::string model{};  // GGUF file, Hugging Face folder, or the folder of a draft head
  std::string out{};    // GGUF file; a folder for a head
  std::string
      type{};  // of the layers' matrices: Q8_0, Q4_0, Q4_1, Q4_K, MXFP4, IQ4_NL, F16, BF16 or F32; norms stay F32
  std::string embedding{};  // type of token_embd; empty: Q8_0 beside 4-bit matrices, else `type`
  std::string output{};     // type of the head, if it is not the embedding; empty: as for the embedding
  std::vector<std::pair<std::string, std::string>> tensors{};  // (name in the output, type) of single matrices
  bool nearest = false;      // plain rounding as simulated in training, instead of the search for the least error
  bool requantize = false;   // accept weights that are quantised already
  std::string pre{};         // folders: name of the pre-tokeniser in GGUF; empty: found by its patterns
  std::string vocabulary{};  // folders: the model whose vocabulary is written, e.g. a draft's target; empty: its own
  bool tokenizer = true;     // folders: write the vocabulary too
  bool force = false;
  bool dry_run = false;                            // plan and report only
  int threads = 0;                                 // 0: one per core
  std::function<void(double done)> on_progress{};  // 0..1
};

struct ConvertOptions {
  std::string model{};  // a folder becomes a GGUF file, a GGUF file a folder
  std::string out{};
  std::string type{};  // F32, F16 or BF16; empty: as they are, quantised weights as BF16
  std::string pre{};
  std::string vocabulary{};  // as for quantize
  bool tokenizer = true;
  bool force = false;
  bool dry_run = false;
  int threads = 0;
  std::function<void(double done)> on_progress{};
};

struct ConvertResult {
  std::string path;
  uint64_t bytes = 0;  // of the weights' file or files
  uint64_t parameters = 0;
  std::string types;               // "Q4_K 210, Q8_0 1, F32 61"
  std::vector<std::string> notes;  // what was done otherwise than asked, one sentence each
};

ConvertResult quantize(const QuantizeOptions& options);
ConvertResult convert(const ConvertOptions& options);

}  // namespace sx
