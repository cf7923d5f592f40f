// For tools/check_tokenizers.py: loads one vocabulary, then answers JSON lines. {"text": s} or {"hex": bytes} with
// "special" and "parse" prints the ids; {"ids": [...]} with "skip" prints the text, and fails when streaming gives
// another one.
#include <fmt/format.h>

#include <chrono>
#include <iostream>

#include "text/tokenizer.h"
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

int main(int argc, char** argv) try {
  if (argc != 2) {
    fmt::print(stderr, "usage: {} tokenizer.json|arrays.json < lines\n", argv[0]);
    return 2;
  }
  const auto tokenizer = sx::TokenCodec::create(sx::load_tokenizer_data(argv[1]));
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(*tokenizer, nlohmann::json::parse(line)).dump() << '\n';
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
