#include "formats/safetensors_writer.h"

#include <cctype>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/json_text.h"

namespace sx {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string header_of(std::span<const OutputTensor> tensors) {
  OrderedJson header{{"__metadata__", {{"format", "pt"}}}};
  uint64_t at = 0;
  for (const auto& tensor : tensors) {
    const uint64_t bytes = tensor.bytes();
    if (dtype_is_quantised(tensor.type)) {
      SX_ASSERT(tensor.shape.size() == 2);
      header["__metadata__"][tensor.name] = lower(dtype_name(tensor.type));
      header["__metadata__"][tensor.name + ".shape"] = fmt::format("{},{}", tensor.shape[0], tensor.shape[1]);
      header[tensor.name] = {{"dtype", "U8"}, {"shape", {bytes}}};
    } else {
      header[tensor.name] = {{"dtype", dtype_name(tensor.type)}, {"shape", tensor.shape}};
    }
    header[tensor.name]["data_offsets"] = {at, at + bytes};
    at += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned
  return text;
}

}  // namespace

SafetensorsOutput::SafetensorsOutput(std::string folder, std::vector<OutputTensor> tensors, bool force, uint64_t most)
    : folder_(std::move(folder)), tensors_(std::move(tensors)), force_(force) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (shards_.empty() || shards_.back().data + tensors_[i].bytes() > most) shards_.push_back({"", i, i, "", 0});
    shards_.back().end = i + 1;
    shards_.back().data += tensors_[i].bytes();
  }
  uint64_t all = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    const std::string name = shards_.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
    shard.path = (std::filesystem::path(folder_) / name).string();
    shard.header = header_of(std::span(tensors_).subspan(shard.first, shard.end - shard.first));
    all += shard.data + shard.header.size();
    check_output(shard.path, all, force_);
  }
}

void SafetensorsOutput::begin(size_t tensor) {
  SX_ASSERT(left_ == 0 && tensor == next_ && tensor < tensors_.size());
  const size_t current = files_.size();
  if (current < shards_.size() && shards_[current].first == tensor) {
    const Shard& shard = shards_[current];
    files_.push_back(std::make_unique<OutputFile>(shard.path, 8 + shard.header.size() + shard.data, force_));
    const uint64_t size = shard.header.size();
    files_.back()->write(std::as_bytes(std::span(&size, 1)));
    files_.back()->write(std::as_bytes(std::span(shard.header)));
  }
  left_ = tensors_[next_++].bytes();
}

void SafetensorsOutput::write(std::span<const std::byte> bytes) {
  SX_ASSERT(bytes.size() <= left_);
  files_.back()->write(bytes);
  left_ -= bytes.size();
}

void SafetensorsOutput::write_zeros(uint64_t count) {
  SX_ASSERT(count <= left_);
  files_.back()->write_zeros(count);
  left_ -= count;
}

void SafetensorsOutput::finish() {
  SX_ASSERT(left_ == 0 && next_ == tensors_.size());
  for (auto& file : files_) file->finish();
  const std::string index_path = (std::filesystem::path(folder_) / "model.safetensors.index.json").string();
  if (shards_.size() == 1) {
    std::error_code ignored;
    std::filesystem::remove(index_path, ignored);  // of what was here before; readers would follow it
    return;
  }
  OrderedJson index{{"metadata", {{"total_size", 0}}}, {"weight_map", OrderedJson::object()}};
  uint64_t total = 0;
  for (const Shard& shard : shards_) {
    total += shard.data;
    for (size_t i = shard.first; i < shard.end; ++i) {
      index["weight_map"][tensors_[i].name] = std::filesystem::path(shard.path).filename().string();
    }
  }
  index["metadata"]["total_size"] = total;
  write_text_file(index_path, index.dump(2) + "\n", force_);
}

}  // namespace sx
