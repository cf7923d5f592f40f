// Builds a tokenizer from GGUF's arrays: model "gpt2" is byte-level BPE with a named pre-tokeniser, model "llama" is
// SentencePiece with scores. Everything in the file is checked here, so that the models can rely on it.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "text/bpe.h"
#include "text/pre_names.h"
#include "text/spm.h"
#include "text/tokenizer_internal.h"

namespace sx {
namespace {

void check(const TokenizerData& data) {
  const size_t count = data.tokens.size();
  if (count == 0) fail("{}: tokenizer.ggml.tokens is missing or empty", data.file);
  if (count > size_t{kMostTokens})
    fail("{}: tokenizer.ggml.tokens has {} entries, at most {} make sense", data.file, count, kMostTokens);
  if (data.vocab > 0 && count > static_cast<size_t>(data.vocab)) {
    fail("{}: tokenizer.ggml.tokens has {} entries but the embedding only {} rows", data.file, count, data.vocab);
  }
  if (!data.scores.empty() && data.scores.size() != count) {
    fail("{}: tokenizer.ggml.scores has {} entries, expected {} (one per token)", data.file, data.scores.size(), count);
  }
  if (!data.types.empty() && data.types.size() != count) {
    fail("{}: tokenizer.ggml.token_type has {} entries, expected {} (one per token)", data.file, data.types.size(),
         count);
  }
  for (size_t i = 0; i < data.scores.size(); ++i) {
    if (std::isnan(data.scores[i])) fail("{}: tokenizer.ggml.scores[{}] is not a number", data.file, i);
  }
  auto check_id = [&](const char* key, int32_t id) {
    if (id < -1 || id >= static_cast<int64_t>(count)) {
      fail("{}: tokenizer.ggml.{} is {}, expected a token id below {}", data.file, key, id, count);
    }
  };
  check_id("bos_token_id", data.bos);
  check_id("eos_token_id", data.eos);
  check_id("eot_token_id", data.eot);
  check_id("unknown_token_id", data.unk);
  check_id("padding_token_id", data.pad);
}

// Gemma's own tokens of two and more spaces. SentencePiece finds them where it has made spaces visible, and so takes a
// written U+2581 for one of these spaces.
bool is_run_of_spaces(const TokenizerData& data, Token token) {
  const std::string& text = data.tokens[static_cast<size_t>(token)];
  return data.model == "llama" && data.add_space_prefix == 0 && !data.types.empty() &&
         data.types[static_cast<size_t>(token)] == TokenType::kUserDefined && !text.empty() &&
         text.find_first_not_of(' ') == std::string::npos;
}

void fill_vocabulary(const TokenizerData& data, TokenizerParts& parts) {
  TokenTable& vocabulary = parts.vocabulary;
  vocabulary.text = data.tokens;
  vocabulary.bytes.resize(data.tokens.size());
  vocabulary.type = data.types;
  if (vocabulary.type.empty()) {
    vocabulary.type.assign(data.tokens.size(), TokenType::kNormal);
    for (int32_t id : {data.bos, data.eos, data.eot}) {
      if (id >= 0) vocabulary.type[id] = TokenType::kControl;
    }
    if (data.unk >= 0 && vocabulary.type[data.unk] == TokenType::kNormal)
      vocabulary.type[data.unk] = TokenType::kUnknown;
  }
  vocabulary.index();
  for (Token t = 0; t < vocabulary.size(); ++t) {
    TokenType& type = vocabulary.type[t];
    const std::string& text = vocabulary.text[t];
    if (type == TokenType::kNormal || type == TokenType::kUnused || type == TokenType::kByte) continue;
    if (is_end_token_name(text, vocabulary)) {
      if (type == TokenType::kUserDefined) type = TokenType::kControl;
      parts.ends.push_back(t);
    }
    if (is_run_of_spaces(data, t)) continue;
    parts.added.add({.text = text,
                     .token = t,
                     .control = type != TokenType::kUserDefined,
                     .right_strip = special_strips_right(data, text)});
  }
}

void build_bpe(const TokenizerData& data, TokenizerParts& parts) {
  const NamedPreTokenizer* pre = find_pre_tokenizer(data.pre);
  if (!pre) fail("{}: tokenizer.ggml.pre is \"{}\", a pre-tokeniser this program does not know", data.file, data.pre);
  if (pre->nfc) parts.normalizer.add(NormalizeForm{NormalForm::kNfc});
  for (std::string_view pattern : pre->patterns) {
    parts.pre_tokenizer.add(
        SplitStep{Regex(pattern, data.file + ": tokenizer.ggml.pre"), SplitBehavior::kIsolated, false});
  }
  TokenTable& vocabulary = parts.vocabulary;
  std::string bytes;
  for (Token t = 0; t < vocabulary.size(); ++t) {
    const bool plain = vocabulary.type[t] == TokenType::kNormal || vocabulary.type[t] == TokenType::kUnused ||
                       vocabulary.type[t] == TokenType::kByte;
    vocabulary.bytes[t] = plain && byte_alphabet_decode(vocabulary.text[t], bytes) ? bytes : vocabulary.text[t];
    if (!vocabulary.is_control(t)) parts.model_lookup.insert_or_assign(vocabulary.text[t], t);
  }
  if (data.merges.empty() && !pre->ignore_merges) fail("{}: tokenizer.ggml.merges is missing or empty", data.file);
  std::vector<Bpe::Merge> merges;
  merges.reserve(data.merges.size());
  std::string joined;
  auto lookup = [&](std::string_view text) {
    const auto found = parts.model_lookup.find(text);
    return found == parts.model_lookup.end() ? kNoToken : found->second;
  };
  for (size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view merge = data.merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      fail("{}: tokenizer.ggml.merges[{}] is \"{}\", expected two tokens with a space between them", data.file, i,
           merge);
    }
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const Bpe::Merge found{lookup(merge.substr(0, space)), lookup(merge.substr(space + 1)), lookup(joined)};
    // A merge whose sides or result are no tokens can never change the output.
    if (found.left != kNoToken && found.right != kNoToken && found.result != kNoToken) merges.push_back(found);
  }
  BpeOptions options;
  options.ignore_merges = pre->ignore_merges;
  parts.model = std::make_unique<Bpe>(parts.model_lookup, merges, options);
  const bool add_bos = data.add_bos < 0 ? pre->adds_bos : data.add_bos != 0;
  if (add_bos && parts.bos != kNoToken) parts.prefix.push_back(parts.bos);
  parts.description = fmt::format("byte-level BPE, {} tokens, {} merges, pre-tokeniser {}", vocabulary.size(),
                                  merges.size(), data.pre.empty() ? "default" : data.pre);
}

void build_spm(const TokenizerData& data, TokenizerParts& parts) {
  if (data.scores.empty()) fail("{}: tokenizer.ggml.scores is missing, SentencePiece needs one per token", data.file);
  TokenTable& vocabulary = parts.vocabulary;
  std::array<Token, 256> byte_token;
  byte_token.fill(kNoToken);
  for (Token t = 0; t < vocabulary.size(); ++t) {
    const std::string& text = vocabulary.text[t];
    const TokenType type = vocabulary.type[t];
    std::string& bytes = vocabulary.bytes[t];
    if (type == TokenType::kByte) {
      const int byte = parse_byte_token(text);
      if (byte < 0)
        fail("{}: tokenizer.ggml.tokens[{}] is \"{}\", a byte token is written <0x00> to <0xFF>", data.file, t, text);
      byte_token[byte] = t;
      bytes = static_cast<char>(byte);
      continue;
    }
    bytes = text;
    if (vocabulary.is_control(t)) continue;
    if (is_run_of_spaces(data, t)) {
      std::string visible;
      for (size_t i = 0; i < text.size(); ++i) visible += kMetaspace;
      parts.added_normalized.add({.text = visible, .token = t, .normalized = true});
    }
    parts.model_lookup.insert_or_assign(text, t);
    if (type == TokenType::kUserDefined) continue;
    for (size_t at = 0; (at = bytes.find(kMetaspace, at)) != std::string::npos; ++at) {
      bytes.replace(at, kMetaspace.size(), " ");
    }
  }
  const bool prefix = data.add_space_prefix != 0;
  const std::string where = data.file + ": SentencePiece";
  if (prefix) parts.normalizer.add(NormalizePrepend{std::string(kMetaspace)});
  parts.normalizer.add(NormalizeReplace{Regex::literal(" ", where), std::string(kMetaspace), " "});
  if (prefix) parts.decode.strip = " ", parts.decode.strip_count = 1;
  if (std::all_of(parts.model_lookup.begin(), parts.model_lookup.end(),
                  [](const auto& entry) { return never_crosses_metaspace(entry.first); })) {
    parts.pre_tokenizer.add(CutAtMetaspaceStep{});
  }
  parts.model = std::make_unique<Spm>(parts.model_lookup, data.scores, byte_token, parts.unk);
  if (data.add_bos != 0 && parts.bos != kNoToken) parts.prefix.push_back(parts.bos);
  parts.description =
      fmt::format("SentencePiece, {} tokens{}", vocabulary.size(), prefix ? ", adds a leading space" : "");
}

}  // namespace

bool is_end_token_name(std::string_view text, const TokenTable& vocabulary) {
  static constexpr std::array kNames = {
      std::string_view("</s>"),
      std::string_view("<|eot_id|>"),
      std::string_view("<|im_end|>"),
      std::string_view("<|return|>"),
      std::string_view("<|call|>"),
      std::string_view("<end_of_turn>"),
      std::string_view("<|endoftext|>"),
      std::string_view("<|end_of_text|>"),
      std::string_view("<|eom_id|>"),
      std::string_view("<EOT>"),
      std::string_view("_<EOT>"),
      std::string_view("[EOT]"),
      std::string_view("[EOS]"),
      std::string_view("<|EOT|>"),
      std::string_view("<eos>"),
      std::string_view("<turn|>"),
      std::string_view("<|END_OF_TURN_TOKEN|>"),
      std::string_view("<｜end▁of▁sentence｜>"),
      std::string_view("<end_of_utterance>"),
  };
  if (text == "<|end|>")  // gpt-oss ends its answers by <|return|> and <|call|>, Solar by <|flush|> and <|calls|>
    return vocabulary.find("<|return|>") == kNoToken && vocabulary.find("<|flush|>") == kNoToken;
  if (text == "</s>") return vocabulary.find("<eos>") == kNoToken;  // Gemma's is the end of HTML's <s>
  return std::find(kNames.begin(), kNames.end(), text) != kNames.end();
}

// GGUF has no key for this. Phi-3's published tokenizer.json sets it for its special tokens except those that open a
// text; other readers of GGUF recognise Phi-3 by its name too.
bool special_strips_right(const TokenizerData& data, std::string_view text) {
  std::string name;
  for (const char c : data.name) {
    if (c != ' ' && c != '-' && c != '_') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (data.model != "llama" || name.find("phi3") == std::string::npos) return false;
  return text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
}

std::unique_ptr<TokenizerParts> gguf_tokenizer(const TokenizerData& data) {
  check(data);
  auto parts = std::make_unique<TokenizerParts>();
  parts->bos = data.bos;
  parts->eos = data.eos;
  parts->unk = data.unk;
  parts->chat_template = data.chat_template;
  if (data.eot >= 0) parts->ends.push_back(data.eot);
  fill_vocabulary(data, *parts);
  if (data.model == "gpt2") {
    build_bpe(data, *parts);
  } else if (data.model == "llama") {
    build_spm(data, *parts);
  } else {
    fail("{}: tokenizer.ggml.model is \"{}\", supported are gpt2 (byte-level BPE) and llama (SentencePiece)", data.file,
         data.model);
  }
  if (data.add_eos == 1 && parts->eos != kNoToken) parts->suffix.push_back(parts->eos);
  parts->description += parts->prefix.empty() ? ", no BOS" : ", adds BOS";
  return parts;
}

}  // namespace sx
