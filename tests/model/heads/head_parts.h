// Draft heads in pieces for tests: read from a golden folder or made at random, changed at will, written to a folder.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/model_config.h"
#include "support/model_writer.h"

namespace sx::testing {

struct HeadPart {
  std::string name, dtype;  // dtype as in the header: "F32", ...
  std::vector<int64_t> shape;
  Bytes data;
};

struct HeadParts {
  nlohmann::ordered_json config;
  std::vector<HeadPart> tensors;
  std::map<std::string, std::string> metadata;

  HeadPart& get(const std::string& name);
  void remove(const std::string& name);
  void rename(const std::string& from, const std::string& to) { get(from).name = to; }
  void reshape(const std::string& name, std::vector<int64_t> shape);  // zeros
  Bytes safetensors() const;
  void write(const std::string& folder) const;
};

// first, first + 1, ...: rows as EagleHead::fuse wants them.
inline std::vector<int32_t> rows_from(int first, int rows) {
  std::vector<int32_t> out;
  for (int r = first; r < first + rows; ++r) out.push_back(r);
  return out;
}

std::string golden_folder(const std::string& name);
HeadParts read_parts(const std::string& folder);

// Random weights in `type` for a head whose config is given; optional tensors (without shapes) by `extra`. Quantised
// types go into U8 tensors with metadata; norms and biases stay F32.
HeadParts random_head(nlohmann::ordered_json config, const std::vector<std::string>& extra, const ModelConfig& target,
                      DType type, unsigned seed);

// Head configs of width 64: an EAGLE-1 and an EAGLE-3 one.
nlohmann::ordered_json eagle1_config(const ModelConfig& target);
nlohmann::ordered_json eagle3_config(const ModelConfig& target, int layers, int draft_vocab);
// DFlash's, three layers with a window in the middle one, and what random_head needs beside it; of DSpark with the
// bias.
nlohmann::ordered_json dflash_config(const ModelConfig& target, int block, bool dspark);
std::vector<std::string> dflash_extra(bool dspark);
// LongSpec's, with the target's shape of cells; and what random_head needs beside it.
nlohmann::ordered_json longspec_config(const ModelConfig& target, int window);
inline const std::vector<std::string> kLongSpecParts = {
    "layers.0.cross_attn.q_proj.weight", "layers.0.cross_attn.q_proj.bias", "layers.0.self_attn.q_proj.bias"};

// Of a Gemma 4 assistant of two layers, the first of which attends to the target's layers with a window, if it has any;
// and what random_head needs beside it.
nlohmann::ordered_json assistant_config(const ModelConfig& target);
inline const std::vector<std::string> kAssistantParts = {"pre_projection.weight"};

}  // namespace sx::testing
