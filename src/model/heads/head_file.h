// A draft head as a folder (MTP blocks: as a part of the target's file): config.json and medusa_lm_head.safetensors,
// model.safetensors or, without these, every *.safetensors. Tensors are views into read-only maps under one canonical
// name each, whichever of the known namings the file uses. Everything is validated on opening, also against the target:
// a HeadFile that exists can be trusted.
//
// Beside F32, F16 and BF16 a matrix X may be stored quantised: a U8 tensor that holds the blocks of GGUF files row by
// row, with the file's __metadata__ giving X = "q8_0" (or another type) and X.shape = "rows,columns".
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "model/heads/head_config.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "model/model.h"

namespace sx {

class HeadFile {
 public:
  // Throws sx::Error, naming the file, tensor or key and what was expected.
  static std::shared_ptr<HeadFile> open(const std::string& folder, const ModelConfig& target);
  // The MTP blocks inside a model's own file.
  static std::shared_ptr<HeadFile> of_model(std::shared_ptr<const ModelFile> model);
  // From parts that are already read; `folder` is for messages.
  HeadFile(std::string folder, std::string_view config_json, std::vector<SafetensorsFile> files,
           const ModelConfig& target);

  const std::string& path() const { return path_; }
  const HeadConfig& config() const { return config_; }
  // What it reads of the target's pass. EAGLE-1 and Medusa apply the target's final norm to it themselves.
  TapSpec taps() const { return {config_.features, {}}; }
  std::span<const Token> token_map() const { return token_map_; }  // draft id -> target id; empty: the same
  std::span<const NamedTensor> tensors() const { return tensors_; }
  const Tensor* find(std::string_view canonical) const;  // null if absent
  const Tensor& get(std::string_view canonical) const;   // it must be there: config() says so
  // Tells the system that the bytes of this tensor are no longer needed in memory; they stay valid.
  void release(const Tensor& tensor) const;

 private:
  explicit HeadFile(std::shared_ptr<const ModelFile> model);
  void collect_tensors();
  void unwrap_quantised(const SafetensorsFile& file, NamedTensor& entry);
  void read_token_map();

  std::string path_;
  std::shared_ptr<const ModelFile> model_;  // that the blocks are in; else null
  std::vector<SafetensorsFile> files_;
  std::vector<NamedTensor> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;  // of quantised tensors that lie at odd addresses
  HeadConfig config_;
  std::vector<Token> token_map_;
};

// Whether a folder holds a draft head rather than a model of its own, checked by the names of its tensors.
bool is_head_folder(const std::string& path);

// Canonical names and shapes of the tensors that such a head has, except those that only training needs.
struct HeadTensor {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<HeadTensor> expected_head_tensors(const HeadConfig& config);
// Exactly the tensors that are expected, and as expected; else throws sx::Error.
void check_head_tensors(std::span<const NamedTensor> tensors, const HeadConfig& config, const std::string& path);

}  // namespace sx
