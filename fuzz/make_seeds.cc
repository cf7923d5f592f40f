// Writes seed inputs for the model file fuzzers: make_seeds FOLDER fills FOLDER/{gguf,safetensors,config}.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "support/model_writer.h"

using namespace sx;
using namespace sx::testing;

namespace {

// A whole model of a few hundred bytes: one layer, a vocabulary of four without texts.
GgufWriter smallest_model(const std::string& arch) {
  TinySpec spec;
  spec.arch = arch;
  spec.layers = 1;
  spec.width = 2;
  spec.heads = spec.kv_heads = 1;
  spec.ffn = 2;
  spec.vocab = 4;
  GgufWriter out;
  out.add_string("general.architecture", arch);
  for (const auto& [key, value] : {std::pair(".block_count", 1),
                                   {".context_length", 9},
                                   {".embedding_length", 2},
                                   {".feed_forward_length", 2},
                                   {".attention.head_count", 1}}) {
    out.add_u32(arch + key, static_cast<uint32_t>(value));
  }
  out.add_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  out.add_u32(arch + ".attention.sliding_window", 4);
  out.add_string(arch + ".rope.scaling.type", "yarn");
  out.add_f32(arch + ".rope.scaling.factor", 2);
  const std::string tokens[] = {"a", "b", "ab", "<s>"}, merges[] = {"a b"};
  const int32_t types[] = {1, 1, 1, 3};
  const float scores[] = {0, -1, -2, 0};
  out.add_string("tokenizer.ggml.model", "gpt2");
  out.add_strings("tokenizer.ggml.tokens", tokens);
  out.add_strings("tokenizer.ggml.merges", merges);
  out.add_i32s("tokenizer.ggml.token_type", types);
  out.add_f32s("tokenizer.ggml.scores", scores);
  out.add_u32("tokenizer.ggml.bos_token_id", 3);
  out.add_bool("tokenizer.ggml.add_bos_token", true);
  const float one = 1;
  out.add_tensor("rope_freqs.weight", DType::kF32, {1}, encode(DType::kF32, std::span(&one, 1), 0));
  for (const auto& tensor : tiny_tensors(spec)) {
    out.add_tensor(tensor.name, DType::kF32, tensor.shape, encode(DType::kF32, tensor.values, 0));
  }
  return out;
}

void write_gguf_seeds(const std::string& folder) {
  for (const std::string arch : {"llama", "qwen2", "qwen3"}) {
    write_file(folder + "/" + arch, smallest_model(arch).bytes());
  }
  for (int i = 0; i < static_cast<int>(DType::kI8); ++i) {
    const auto type = static_cast<DType>(i);
    const std::vector<float> values(256, 0.5f);
    GgufWriter out;
    out.version = 2;
    out.add_u64("a", 1);
    out.add_tensor("t", type, {1, 256}, encode(type, values, 1));
    write_file(folder + "/" + dtype_name(type), out.bytes());
  }
}

void write_safetensors_seeds(const std::string& folder) {
  SafetensorsWriter out;
  out.add("model.layers.0.self_attn.q_proj.weight", "F32", {1, 2}, Bytes(8));
  out.add("t2d", "BOOL", {3}, Bytes(3));
  out.add("d2t", "I64", {1}, Bytes(8));
  out.add("scalar", "BF16", {}, Bytes(2));
  out.add("empty", "F16", {0, 4}, {});
  write_file(folder + "/five", out.bytes());
  write_file(folder + "/metadata", safetensors_bytes(R"({"__metadata__":{"format":"pt"}})", {}));
}

void write_config_seeds(const std::string& folder) {
  int number = 0;
  for (const std::string arch : {"llama", "mistral", "qwen2", "qwen3"}) {
    for (const auto scaling :
         {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kDynamic, RopeScaling::kLlama3, RopeScaling::kYarn}) {
      TinySpec spec;
      spec.arch = arch;
      spec.scaling = scaling;
      spec.factor = 4;
      spec.original_context = 512;
      spec.window = number % 2 ? 64 : 0;
      if (number % 3 == 0) spec.windowed_layers = {1, 0};
      write_file(folder + "/config" + std::to_string(number++), tiny_config_json(spec));
    }
  }
  write_file(folder + "/generation", R"({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null})");
  write_file(folder + "/template", R"({"chat_template": [{"name": "default", "template": "{{ x }}"}]})");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return std::fputs("usage: make_seeds FOLDER\n", stderr), 2;
  try {
    const std::string folder = arguments[1];
    for (const char* name : {"/gguf", "/safetensors", "/config"}) std::filesystem::create_directories(folder + name);
    write_gguf_seeds(folder + "/gguf");
    write_safetensors_seeds(folder + "/safetensors");
    write_config_seeds(folder + "/config");
  } catch (const std::exception& error) { return std::fprintf(stderr, "make_seeds: %s\n", error.what()), 1; }
  return 0;
}
