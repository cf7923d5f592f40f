// A model in GGUF form, in one file or several shards, behind the face of ModelFile.
#include "formats/gguf_model.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "formats/expert_tensors.h"
#include "formats/family.h"
#include "formats/mtp_tensors.h"
#include "formats/validate.h"

namespace sx {
namespace {

class GgufModel : public ModelFile {
 public:
  explicit GgufModel(std::vector<GgufFile> shards, Wanted wanted = Wanted::kModel) : shards_(std::move(shards)) {
    const GgufFile& first = shards_.front();
    size_t count = 0;
    for (const auto& shard : shards_) count += shard.tensors().size();
    tensors_.reserve(count);
    for (const auto& shard : shards_) {
      for (const auto& entry : shard.tensors())
        tensors_.push_back({entry.name, entry.name, shard.path(), entry.tensor});
    }
    try {
      configure();
    } catch (const Error& error) {
      if (wanted == Wanted::kModel) throw;
      unsupported_ = error.what();
      config_ = outline_from_gguf(first);
    }
    tokenizer_ = tokenizer_from_gguf(first, config_.vocab);
    validate_tokenizer(tokenizer_);
  }

  const std::string& path() const override { return shards_.front().path(); }
  std::string format() const override { return fmt::format("GGUF v{}", shards_.front().version()); }
  const ModelConfig& config() const override { return config_; }
  const std::string& unsupported() const override { return unsupported_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  std::span<const NamedTensor> tensors() const override { return tensors_; }

  std::vector<Metadatum> metadata() const override {
    std::vector<Metadatum> out;
    for (const auto& entry : shards_.front().entries()) out.push_back({entry.key, entry.value.print()});
    return out;
  }

  void release(const Tensor& tensor) const override {
    for (const auto& shard : shards_) {
      const auto bytes = shard.bytes();
      if (tensor.data >= bytes.data() && tensor.data < bytes.data() + bytes.size()) {
        shard.drop(tensor.data, tensor.bytes());
      }
    }
  }

 private:
  void configure() {
    const GgufFile& first = shards_.front();
    if (tensors_.empty()) fail("{}: the file holds no weights", first.path());
    config_ = config_from_gguf(first, tensors_);
    auto mtp = take_mtp_tensors(config_.mtp_blocks, tensors_, config_);
    rename_tensors(*config_.family, tensors_);
    split_fused_tensors(config_, tensors_);
    find_expert_form(tensors_, config_);
    if (!find("token_embd.weight")) fail("{}: tensor 'token_embd.weight' is missing", first.path());
    validate_config(config_, first.path());
    validate_tensors(config_, tensors_, first.path());
    std::move(mtp.begin(), mtp.end(), std::back_inserter(tensors_));
  }

  std::vector<GgufFile> shards_;
  std::vector<NamedTensor> tensors_;
  std::string unsupported_;
  ModelConfig config_;
  TokenizerData tokenizer_;
};

// "name-00001-of-00003.gguf" -> "name-00002-of-00003.gguf" for number 1 (counted from 0).
std::string shard_path(const std::string& first, int64_t number, int64_t count) {
  const std::string tail = fmt::format("-{:05}-of-{:05}.gguf", 1, count);
  if (!first.ends_with(tail)) {
    fail("{}: the first of {} shards must be named '...{}' for the others to be found", first, count, tail);
  }
  return first.substr(0, first.size() - tail.size()) + fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

void check_shard(const GgufFile& shard, int64_t number, int64_t count) {
  const auto found_number = shard.get_int("split.no"), found_count = shard.get_int("split.count");
  if (found_number != number || found_count != count) {
    fail("{}: keys 'split.no' and 'split.count' are {} and {}; {} and {} are expected", shard.path(),
         found_number.value_or(-1), found_count.value_or(-1), number, count);
  }
}

std::vector<GgufFile> open_shards(const std::string& path) {
  std::vector<GgufFile> shards;
  shards.emplace_back(path);
  const int64_t count = shards[0].get_int("split.count").value_or(0);
  if (count == 0 || count == 1) return shards;
  if (count < 0 || count > 99999) fail("{}: key 'split.count' is {}", path, count);
  if (const auto number = shards[0].get_int("split.no").value_or(0); number != 0) {
    fail("{}: this is shard {} of {} of a split model; open the first one", path, number + 1, count);
  }
  check_shard(shards[0], 0, count);
  for (int64_t i = 1; i < count; ++i) {
    shards.emplace_back(shard_path(path, i, count));
    check_shard(shards.back(), i, count);
  }
  int64_t tensors = 0;
  for (const auto& shard : shards) tensors += static_cast<int64_t>(shard.tensors().size());
  if (const auto expected = shards[0].get_int("split.tensors.count"); expected && *expected != tensors) {
    fail("{}: key 'split.tensors.count' is {}, but the {} shards hold {} tensors", path, *expected, count, tensors);
  }
  return shards;
}

}  // namespace

std::shared_ptr<ModelFile> open_gguf_model(const std::string& path, Wanted wanted) {
  return std::make_shared<GgufModel>(open_shards(path), wanted);
}

void check_gguf_model(std::span<const std::byte> bytes, const std::string& name, Wanted wanted) {
  std::vector<GgufFile> shards;
  shards.emplace_back(bytes, name);
  const GgufModel model(std::move(shards), wanted);
  model.metadata();
}

}  // namespace sx
