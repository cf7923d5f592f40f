// The vocabularies of tiny models: byte-level BPE, and SentencePiece's kind with its visible spaces.
#include "support/tiny_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace sx::testing {
namespace {

using nlohmann::ordered_json;

std::string utf8(uint32_t point) {
  std::string out;
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else {
    out += static_cast<char>(0xc0 | point >> 6);
    out += static_cast<char>(0x80 | (point & 63));
  }
  return out;
}

// The printable stand-in of a byte in byte-level BPE: itself if printable Latin-1, else the next point from U+0100.
std::string byte_token(int byte) {
  const auto shown = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255); };
  if (shown(byte)) return utf8(static_cast<uint32_t>(byte));
  uint32_t next = 256;
  for (int b = 0; b < byte; ++b) next += shown(b) ? 0 : 1;
  return utf8(next);
}

std::string letter(int n) { return std::string(1, static_cast<char>('a' + n)); }

std::pair<std::string, std::string> merged_pair(int i) {
  const std::string space = byte_token(' ');
  if (i < 26) return {space, letter(i)};
  if (i < 26 + 676) return {letter((i - 26) / 26), letter((i - 26) % 26)};
  return {};
}

constexpr const char* kSpecial[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
constexpr const char* kTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
// Splits words, numbers and spaces as GPT-2 does.
constexpr const char* kPattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

constexpr const char* kSpace = "\u2581";

// SentencePiece's ids: the special ones, the 256 bytes, the visible space, the letters, each letter behind a space.
std::vector<std::string> piece_tokens(int vocab) {
  std::vector<std::string> out(std::begin(kSpecial), std::end(kSpecial));
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    out.push_back(name);
  }
  out.push_back(kSpace);
  for (int i = 0; i < 26; ++i) out.push_back(letter(i));
  for (int i = 0; i < 26; ++i) out.push_back(kSpace + letter(i));
  if (vocab < static_cast<int>(out.size())) throw std::logic_error("a tiny vocabulary of pieces needs more tokens");
  while (static_cast<int>(out.size()) < vocab) out.push_back("<unused" + std::to_string(out.size()) + ">");
  return out;
}

constexpr int kBytesEnd = kTinyFirstByte + 256;
constexpr int kPiecesEnd = kBytesEnd + 1 + 26 + 26;

ordered_json added_tokens() {
  ordered_json added = ordered_json::array();
  for (size_t i = 0; i < std::size(kSpecial); ++i) {
    added.push_back({{"id", i},
                     {"content", kSpecial[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

ordered_json bpe_model(const std::vector<std::string>& tokens, const std::vector<std::string>& merges, bool fallback) {
  ordered_json words = ordered_json::object();
  for (size_t i = 0; i < tokens.size(); ++i) words[tokens[i]] = i;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", fallback},
          {"ignore_merges", false},
          {"vocab", words},
          {"merges", merges}};
}

ordered_json pieces_json(int vocab) {
  std::vector<std::string> merges;
  for (int i = 0; i < 26; ++i) merges.push_back(kSpace + (" " + letter(i)));
  const ordered_json spaces = {
      {"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", "always"}, {"split", true}};
  return {{"version", "1.0"},
          {"added_tokens", added_tokens()},
          {"normalizer", nullptr},
          {"pre_tokenizer", spaces},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", {spaces, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
          {"model", bpe_model(piece_tokens(vocab), merges, true)}};
}

}  // namespace

std::vector<std::string> tiny_tokens(int vocab) {
  if (vocab < kTinySmallestVocab) throw std::logic_error("a tiny vocabulary needs at least 260 tokens");
  std::vector<std::string> out(std::begin(kSpecial), std::end(kSpecial));
  for (int byte = 0; byte < 256; ++byte) out.push_back(byte_token(byte));
  for (int i = 0; static_cast<int>(out.size()) < vocab; ++i) {
    const auto [left, right] = merged_pair(i);
    out.push_back(left.empty() ? "<unused" + std::to_string(i) + ">" : left + right);
  }
  return out;
}

std::vector<std::string> tiny_merges(int vocab) {
  std::vector<std::string> out;
  for (int i = 0; i < vocab - kTinyFirstByte - 256; ++i) {
    const auto [left, right] = merged_pair(i);
    if (!left.empty()) out.push_back(left + " " + right);
  }
  return out;
}

void add_tiny_vocabulary(GgufWriter& out, TinyWords words, int vocab, const std::vector<std::string>& control) {
  const bool pieces = words == TinyWords::kPieces;
  std::vector<int32_t> types(static_cast<size_t>(vocab), 1);
  for (size_t i = 0; i < std::size(kSpecial); ++i) types[i] = 3;
  out.add_string("tokenizer.ggml.model", pieces ? "llama" : "gpt2");
  if (!pieces) {
    out.add_string("tokenizer.ggml.pre", "gpt-2");
    const int plain = vocab - static_cast<int>(control.size());
    std::vector<std::string> tokens = tiny_tokens(plain);
    tokens.insert(tokens.end(), control.begin(), control.end());
    std::fill(types.begin() + plain, types.end(), 3);
    out.add_strings("tokenizer.ggml.tokens", tokens);
    out.add_strings("tokenizer.ggml.merges", tiny_merges(plain));
  } else {
    std::vector<float> scores(static_cast<size_t>(vocab));
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i);
    for (int i = kTinyFirstByte; i < vocab; ++i)
      types[static_cast<size_t>(i)] = i < kBytesEnd ? 6 : i < kPiecesEnd ? 1 : 5;
    out.add_strings("tokenizer.ggml.tokens", piece_tokens(vocab));
    out.add_f32s("tokenizer.ggml.scores", scores);
  }
  out.add_i32s("tokenizer.ggml.token_type", types);
  out.add_u32("tokenizer.ggml.bos_token_id", 0);
  out.add_u32("tokenizer.ggml.eos_token_id", 0);
  out.add_u32("tokenizer.ggml.padding_token_id", 0);
  out.add_u32("tokenizer.ggml.eot_token_id", 2);
  out.add_bool("tokenizer.ggml.add_bos_token", false);
  out.add_string("tokenizer.chat_template", kTemplate);
}

std::string tiny_tokenizer_json(TinyWords words, int vocab) {
  if (words == TinyWords::kPieces) return pieces_json(vocab).dump();
  const ordered_json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kPattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return ordered_json{{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", added_tokens()},
                      {"normalizer", nullptr},
                      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, bytes})}}},
                      {"post_processor", nullptr},
                      {"decoder", bytes},
                      {"model", bpe_model(tiny_tokens(vocab), tiny_merges(vocab), false)}}
      .dump();
}

std::string tiny_tokenizer_config_json() {
  return ordered_json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                      {"bos_token", kSpecial[0]},
                      {"eos_token", kSpecial[0]},
                      {"pad_token", kSpecial[0]},
                      {"chat_template", kTemplate}}
      .dump(2);
}

}  // namespace sx::testing
