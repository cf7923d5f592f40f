// For tools/check_tokenizers.py and bench/compare_vocabularies.py: loads one vocabulary, then answers JSON lines.
// {"text": s} or {"hex": bytes} with "special" and "parse" prints the ids; {"ids": [...]} with "skip" prints the text,
// and fails when streaming gives another one. With --pre, {"text": s} prints the pieces that the pre-tokeniser of the
// name {"pre": ...} makes of a text.
#include <fmt/format.h>

#include <chrono>
#include <iostream>

#include "formats/gguf_model.h"
#include "text/pre_names.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "tokenizer_load.h"

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

nlohmann::json answer(const sx::TokenCodec& tokenizer, const nlohmann::json& line) {
  if (line.contains("ids")) {
    const auto ids = line.at("ids").get<std::vector<sx::Token>>();
    const bool skip = line.value("skip", false);
    sx::Detokenizer stream(tokenizer, !skip);
    std::string pieces;
    for (sx::Token id : ids) pieces += stream.push(id);
    pieces += stream.finish();
    const std::string text = tokenizer.decode(ids, skip);
    if (text != pieces) sx::fail("streaming decoding differs: {} against {}", pieces, text);
    return text;
  }
  const std::string text = line.contains("hex") ? from_hex(line.at("hex")) : line.at("text").get<std::string>();
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(text, line.value("special", false), line.value("parse", true));
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  if (line.value("time", false)) return {{"tokens", ids.size()}, {"ms", spent.count()}};
  return ids;
}

}  // namespace

sx::TokenizerData load(const std::string& path) {
  if (path.ends_with(".gguf")) {
    const sx::GgufFile file(path);
    const sx::GgufArray* tokens = file.get_array("tokenizer.ggml.tokens");
    return sx::tokenizer_from_gguf(file, tokens ? static_cast<int>(tokens->count) : 0);
  }
  if (path.ends_with(".model")) {
    sx::TokenizerData data;
    data.file = path;
    data.sentencepiece = sx::read_text(path);
    return data;
  }
  return sx::load_tokenizer_data(path);
}

nlohmann::json pieces_of(const std::string& name, const std::string& text) {
  const sx::NamedPreTokenizer* pre = sx::find_pre_tokenizer(name);
  if (!pre) return nullptr;
  sx::PreTokenizer pre_tokenizer;
  for (const std::string_view pattern : pre->patterns)
    pre_tokenizer.add(sx::SplitStep{sx::Regex(pattern, name), sx::SplitBehavior::kIsolated, false});
  sx::RegexScratch scratch;
  std::string normal = pre->nfc ? sx::normalize(text, sx::NormalForm::kNfc) : text;
  const sx::Pieces pieces = pre_tokenizer.apply(std::move(normal), true, scratch);
  nlohmann::json out = nlohmann::json::array();
  for (const auto& span : pieces.spans) out.push_back(pieces.text.substr(span.begin, span.end - span.begin));
  return out;
}

int main(int argc, char** argv) try {
  if (argc != 2) {
    fmt::print(stderr, "usage: {} tokenizer.json|arrays.json|tokenizer.model|FILE.gguf|--pre < lines\n", argv[0]);
    return 2;
  }
  const std::string path = argv[1];
  const auto tokenizer = path == "--pre" ? nullptr : sx::TokenCodec::create(load(path));
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    const nlohmann::json reply =
        tokenizer ? answer(*tokenizer, request) : pieces_of(request.at("pre"), request.at("text"));
    std::cout << reply.dump() << '\n';
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
