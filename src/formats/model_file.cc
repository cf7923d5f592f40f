// Opening a model by its path, and lookups by canonical name.
#include "formats/model_file.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "formats/gguf_model.h"
#include "formats/hf_model.h"

namespace sx {

namespace {

std::shared_ptr<ModelFile> open_path(const std::string& path, Wanted wanted) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) fail("cannot open '{}': no such file or folder", path);
  return std::filesystem::is_directory(status) ? open_hf_model(path, wanted) : open_gguf_model(path, wanted);
}

}  // namespace

std::shared_ptr<ModelFile> ModelFile::open(const std::string& path) { return open_path(path, Wanted::kModel); }
std::shared_ptr<ModelFile> ModelFile::open_any(const std::string& path) { return open_path(path, Wanted::kAnything); }

const NamedTensor* ModelFile::find(std::string_view canonical) const {
  for (const auto& entry : tensors()) {
    if (entry.name == canonical) return &entry;
  }
  return nullptr;
}

const Tensor& ModelFile::get(std::string_view canonical) const {
  const NamedTensor* found = find(canonical);
  if (!found) fail("{}: tensor '{}' is missing", path(), canonical);
  return found->tensor;
}

const Tensor& ModelFile::get(std::string_view canonical, std::initializer_list<int64_t> shape) const {
  const Tensor& tensor = get(canonical);
  const auto found = std::span<const int64_t>(tensor.shape).first(static_cast<size_t>(tensor.rank));
  if (!std::equal(found.begin(), found.end(), shape.begin(), shape.end())) {
    fail("{}: tensor '{}' has shape [{}], expected [{}]", path(), canonical, fmt::join(found, ", "),
         fmt::join(shape, ", "));
  }
  return tensor;
}

}  // namespace sx
