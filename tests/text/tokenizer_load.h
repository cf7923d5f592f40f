// Test vocabularies as files: either a tokenizer.json, or the arrays of a GGUF file written as one JSON object
// ({"model": ..., "pre": ..., "tokens": [...], ...}), so that tests need no model.
#pragma once
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "formats/tokenizer_data.h"

namespace sx {

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("{}: cannot be opened", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline TokenizerData load_tokenizer_data(const std::string& path) {
  TokenizerData data;
  data.file = path;
  const std::string text = read_text(path);
  const nlohmann::json root = nlohmann::json::parse(text);
  if (root.at("model").is_object()) {  // a tokenizer.json
    data.tokenizer_json = text;
    return data;
  }
  data.model = root.at("model");
  data.pre = root.value("pre", "");
  data.tokens = root.at("tokens").get<std::vector<std::string>>();
  data.scores = root.value("scores", std::vector<float>{});
  for (int type : root.value("types", std::vector<int>{})) data.types.push_back(static_cast<TokenType>(type));
  data.merges = root.value("merges", std::vector<std::string>{});
  data.bos = root.value("bos", -1);
  data.eos = root.value("eos", -1);
  data.unk = root.value("unk", -1);
  data.add_bos = root.value("add_bos", -1);
  data.add_eos = root.value("add_eos", -1);
  data.add_space_prefix = root.value("add_space_prefix", -1);
  return data;
}

}  // namespace sx
