// An opened model: a GGUF file or a Hugging Face folder behind one face. Tensors are views into read-only maps of the
// files and carry canonical names (those of GGUF: "token_embd.weight", "blk.3.attn_q.weight", ...), whatever the form.
// Everything is validated on opening: a ModelFile that exists can be trusted (what open_any gives only as far as it
// goes).
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/model_config.h"
#include "formats/tokenizer_data.h"
#include "tensor/tensor.h"

namespace sx {

struct NamedTensor {
  std::string name;      // canonical
  std::string original;  // as in the file
  std::string file;      // which file holds it
  Tensor tensor;
};

struct Metadatum {
  std::string key, value;
};  // printable, long values shortened; for `inspect`

// What a file must be to be opened.
enum class Wanted {
  kModel,     // one that can be run
  kAnything,  // see ModelFile::open_any
};

class ModelFile {
 public:
  // Opens a .gguf file (or the first shard of a split one), or a folder with config.json and *.safetensors.
  static std::shared_ptr<ModelFile> open(const std::string& path);
  // The same for those who only look: also a vocabulary without weights, and a model that cannot be run, e.g. of
  // another architecture. Of such a one the configuration has what the file says in a known place, and zeros.
  static std::shared_ptr<ModelFile> open_any(const std::string& path);
  virtual ~ModelFile() = default;

  virtual const std::string& path() const = 0;
  virtual std::string format() const = 0;  // "GGUF v3", "safetensors"
  virtual const ModelConfig& config() const = 0;
  virtual const std::string& unsupported() const = 0;  // why it cannot be run; empty: it can
  virtual const TokenizerData& tokenizer() const = 0;
  virtual std::span<const NamedTensor> tensors() const = 0;
  virtual std::vector<Metadatum> metadata() const = 0;
  // Tells the system that the bytes of this tensor are no longer needed in memory (repacked, say); they stay valid.
  virtual void release(const Tensor& tensor) const = 0;

  const NamedTensor* find(std::string_view canonical) const;  // null if absent
  const Tensor& get(std::string_view canonical) const;        // throws, naming file and tensor
  // Also checks the shape (outermost first).
  const Tensor& get(std::string_view canonical, std::initializer_list<int64_t> shape) const;
};

}  // namespace sx
