// Writers of small model files for tests: GGUF and safetensors byte by byte, and whole tiny models with random weights
// and a tiny byte-level BPE vocabulary. The same TinySpec gives the same model in both forms (GGUF llama files hold q
// and k with interleaved pairs, so their rows are permuted as converters do).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/model_config.h"
#include "formats/gguf.h"
#include "tensor/dtype.h"

namespace sx::testing {

using Bytes = std::vector<std::byte>;

// A folder that vanishes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

void write_file(const std::string& path, std::span<const std::byte> bytes);
void write_file(const std::string& path, std::string_view text);
Bytes read_file(const std::string& path);

// Builds a GGUF file. Nothing is checked: malformed files are made with it too.
class GgufWriter {
 public:
  uint32_t version = 3;
  size_t alignment = 32;  // of the data; write the key "general.alignment" yourself if it differs

  void add_u32(const std::string& key, uint32_t value);
  void add_i32(const std::string& key, int32_t value);
  void add_u64(const std::string& key, uint64_t value);
  void add_u16(const std::string& key, uint16_t value);
  void add_f32(const std::string& key, float value);
  void add_bool(const std::string& key, bool value);
  void add_string(const std::string& key, std::string_view value);
  void add_strings(const std::string& key, std::span<const std::string> values);
  void add_i32s(const std::string& key, std::span<const int32_t> values);
  void add_f32s(const std::string& key, std::span<const float> values);
  void add_raw(const std::string& key, uint32_t type, std::span<const std::byte> value);  // as in the file
  // Shape outermost first. Offsets are assigned in order; `offset` >= 0 forces one, `type_number` >= 0 another type.
  void add_tensor(const std::string& name, DType type, std::vector<int64_t> shape, Bytes data, int64_t offset = -1,
                  int64_t type_number = -1);
  Bytes& data_of(const std::string& name);  // of a tensor that was added
  Bytes bytes() const;
  // Where each field of the last bytes() lies: (name, offset, size). For corruption tests.
  struct Field {
    std::string name;
    size_t offset, size;
  };
  const std::vector<Field>& fields() const { return fields_; }

 private:
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<int64_t> shape;
    Bytes data;
    int64_t offset;
  };
  struct Entry {
    std::string key;
    uint32_t type;
    Bytes value;
  };
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  mutable std::vector<Field> fields_;
};

// Builds a safetensors file from well-formed entries; malformed headers are written by hand with safetensors_bytes.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape, Bytes data);
  void add(const std::string& name, DType type, std::vector<int64_t> shape, std::span<const float> values);
  Bytes bytes() const;

 private:
  std::string header_;
  Bytes data_;
};
// 8 bytes of length, the header, the data.
Bytes safetensors_bytes(std::string_view header, std::span<const std::byte> data);

enum class TinyWords {
  kBytes,   // byte-level BPE
  kPieces,  // SentencePiece's kind: visible spaces, a space in front of every text, byte tokens
};

struct TinySpec {
  std::string arch = "llama";  // llama, mistral, qwen2, qwen3; GGUF: qwen3_moe
  int layers = 2, width = 64, heads = 4, kv_heads = 2;
  int head_dim = 0;  // 0: width / heads
  int ffn = 128, vocab = 320, context = 2048;
  DType weights = DType::kF32;      // matrices; GGUF: any float or quantised type; folders: F32, F16, BF16
  DType embedding = DType::kCount;  // kCount: as `weights`
  bool tied = false;
  int window = 0;
  std::vector<uint8_t> windowed_layers;                       // as in ModelConfig
  int experts = 0, experts_used = 0;                          // qwen3_moe
  bool qkv_bias = false, out_bias = false, mlp_bias = false;  // llama; qwen2 always has qkv_bias
  double rope_base = 10000;
  RopeScaling scaling = RopeScaling::kNone;  // GGUF: none, linear, llama3 (as rope_freqs.weight), yarn
  double factor = 1;
  int original_context = 0;
  float gain = 1;  // scales all matrices: larger is peakier
  uint64_t seed = 1;
  TinyWords words = TinyWords::kBytes;
  std::vector<std::string> control{};  // GGUF with kBytes: control tokens, the last ones of the vocabulary
};

// Ids: 0 "<|endoftext|>" (bos, eos, pad), 1 "<|im_start|>", 2 "<|im_end|>", 3.. the 256 bytes, then merged pairs (or
// pieces).
constexpr int kTinyFirstByte = 3;
constexpr int kTinySmallestVocab = 260;

struct TinyTensor {
  std::string name, hf_name;  // canonical, Hugging Face
  std::vector<int64_t> shape;
  std::vector<float> values;  // as in the folder (q and k not permuted)
};
ModelConfig tiny_config(const TinySpec& spec);  // what opening the folder should yield
std::vector<TinyTensor> tiny_tensors(const TinySpec& spec);
std::vector<std::string> tiny_tokens(int vocab);
std::vector<std::string> tiny_merges(int vocab);

GgufWriter tiny_gguf(const TinySpec& spec);  // for tests that change something before writing
void write_tiny_gguf(const std::string& path, const TinySpec& spec);
// All weights are numbers, and every row of logits holds some that are +infinity.
GgufWriter tiny_gguf_with_infinite_logits(TinySpec spec);
// config.json, model.safetensors (or `shards` of them with an index), tokenizer.json, tokenizer_config.json,
// generation_config.json.
void write_tiny_hf(const std::string& folder, const TinySpec& spec, int shards = 1);
std::string tiny_config_json(const TinySpec& spec);

// `count` elements of any type: the values quantised where we can, else blocks with random codes and small scales.
Bytes encode(DType type, std::span<const float> values, uint64_t seed);

}  // namespace sx::testing
