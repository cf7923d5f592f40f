// Builds a tokenizer from a Hugging Face folder that has SentencePiece's own tokenizer.model (Llama 2, Vicuna,
// LongChat). That file has the pieces and the normalisation, the JSON files beside it have the special tokens.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "text/folder_settings.h"
#include "text/piece_normalizer.h"
#include "text/sentencepiece_model.h"
#include "text/spm.h"
#include "text/unigram.h"

namespace sx {
namespace {

class Reader {
 public:
  Reader(const TokenizerData& data, const FolderSettings& settings)
      : data_(data),
        settings_(settings),
        model_(read_sentencepiece(data.sentencepiece, data.file)),
        parts_(std::make_unique<TokenizerParts>()),
        limit_(data.vocab > 0
                   ? data.vocab
                   : std::min<int64_t>(kMostTokens, static_cast<int64_t>(model_.pieces.size()) + kMostHoles)) {}

  std::unique_ptr<TokenizerParts> read() {
    read_pieces();
    read_added();
    finish_vocabulary();
    build_pipeline();
    build_model();
    set_ids();
    return std::move(parts_);
  }

 private:
  Token size() const { return static_cast<Token>(model_.pieces.size()); }

  void read_pieces() {
    TokenTable& v = parts_->vocabulary;
    if (size() > limit_) fail("{}: {} pieces, but the embedding has only {} rows", data_.file, size(), limit_);
    for (const auto& piece : model_.pieces) {
      if (piece.type == TokenType::kByte && parse_byte_token(piece.text) < 0) {
        fail("{}: piece {} is \"{}\", a byte is written <0x00> to <0xFF>", data_.file, v.text.size(), piece.text);
      }
      if (piece.type == TokenType::kControl || piece.type == TokenType::kUnknown) {
        added_[piece.text] = {.text = piece.text, .token = static_cast<Token>(v.text.size()), .control = true};
      }
      v.text.push_back(piece.text);
      v.type.push_back(piece.type);
    }
  }

  // Returns the texts that special_tokens_map.json and tokenizer_config.json call special.
  std::set<std::string> special_texts() const {
    std::set<std::string> out;
    const auto take = [&](const JsonView& value) {
      out.insert(value.node().is_object() ? value.at("content").string() : value.string());
    };
    for (const JsonView* source : {settings_.config(), settings_.special()}) {
      if (!source) continue;
      for (const char* key :
           {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
        if (source->has(key)) take(source->at(key));
      }
      if (!source->has("additional_special_tokens")) continue;
      const JsonView list = source->at("additional_special_tokens");
      for (size_t i = 0; i < list.size(); ++i) take(list.at(i));
    }
    return out;
  }

  void add(AddedToken token, const JsonView& where) {
    TokenTable& v = parts_->vocabulary;
    if (token.text.empty()) return;
    const auto piece = own_ids_.find(token.text);  // The model's own id takes precedence.
    if (piece != own_ids_.end()) token.token = piece->second;
    if (token.token >= limit_) return;  // The embedding has no row for it.
    const bool hole = token.token >= v.size() || v.text[token.token].empty();
    if (!hole && v.text[token.token] != token.text) {
      where.wrong("id {} belongs to both \"{}\" and \"{}\"", token.token, v.text[token.token], token.text);
    }
    if (token.token >= v.size()) {
      v.text.resize(token.token + 1);
      v.type.resize(token.token + 1, TokenType::kUnused);
    }
    v.text[token.token] = token.text;
    if (v.type[token.token] != TokenType::kUnknown) {
      v.type[token.token] = token.control ? TokenType::kControl : TokenType::kUserDefined;
    }
    added_[token.text] = std::move(token);
  }

  void read_added() {
    for (Token t = 0; t < size(); ++t) own_ids_.emplace(model_.pieces[t].text, t);
    const auto special = special_texts();
    if (const JsonView* list = settings_.added()) {
      for (const auto& [text, id] : list->object().items()) {
        const JsonView entry(id, list->where() + "[\"" + text + "\"]");
        add({.text = text, .token = entry.index(kMostTokens), .control = special.count(text) > 0}, entry);
      }
    }
    if (!settings_.config() || !settings_.config()->has("added_tokens_decoder")) return;
    const JsonView list = settings_.config()->at("added_tokens_decoder");
    for (const auto& [key, value] : list.object().items()) {
      const JsonView entry(value, list.where() + "[\"" + key + "\"]");
      if (key.empty() || key.size() > 8 || key.find_first_not_of("0123456789") != std::string::npos) {
        entry.wrong("the key is not a token id");
      }
      AddedToken token;
      token.text = entry.at("content").string();
      token.token = static_cast<Token>(std::stol(key));
      token.control = entry.boolean("special", false) || special.count(token.text) > 0;
      token.single_word = entry.boolean("single_word", false);
      token.left_strip = entry.boolean("lstrip", false);
      token.right_strip = entry.boolean("rstrip", false);
      add(std::move(token), entry);
    }
  }

  void finish_vocabulary() {
    TokenTable& v = parts_->vocabulary;
    v.index();
    for (Token t = 0; t < v.size(); ++t) {
      std::string bytes = v.text[t];
      if (v.type[t] == TokenType::kByte) bytes.assign(1, static_cast<char>(parse_byte_token(bytes)));
      else if (t < size() && !v.is_control(t)) replace_spaces(bytes);
      v.bytes.push_back(std::move(bytes));
    }
    for (const auto& [text, token] : added_) parts_->added.add(token);
    for (Token t = 0; t < size(); ++t) {
      const bool own = v.type[t] == TokenType::kUserDefined && !added_.count(v.text[t]);
      if (own) parts_->added_normalized.add({.text = v.text[t], .token = t, .normalized = true});
      const bool word = v.type[t] == TokenType::kNormal || v.type[t] == TokenType::kUserDefined;
      if (word) parts_->model_lookup.insert_or_assign(v.text[t], t);
    }
  }

  static void replace_spaces(std::string& bytes) {
    for (size_t at = 0; (at = bytes.find(kMetaspace, at)) != std::string::npos; ++at) {
      bytes.replace(at, kMetaspace.size(), " ");
    }
  }

  // With "legacy": false only the start of the whole text gets a space in front, not the text behind a special token.
  void build_pipeline() {
    const JsonView* config = settings_.config();
    const bool prefix = model_.dummy_prefix && (!config || config->boolean("add_prefix_space", true));
    const bool everywhere = !config || config->boolean("legacy", true);
    parts_->normalizer.add(
        NormalizePieces{std::make_shared<PieceNormalizer>(model_, prefix && everywhere, data_.file)});
    if (prefix && !everywhere) {
      parts_->pre_tokenizer.add(MetaspaceStep{std::string(kMetaspace), MetaspaceStep::Prepend::kFirst, false});
    }
    // Unigram rounds its sums, so cutting words further than SentencePiece does could change tokens.
    const bool cuts = !model_.unigram && std::all_of(parts_->model_lookup.begin(), parts_->model_lookup.end(),
                                                     [](const auto& e) { return never_crosses_metaspace(e.first); });
    if (cuts) parts_->pre_tokenizer.add(CutAtMetaspaceStep{});
    if (prefix) parts_->decode.strip_count = 1;
    if (model_.remove_extra_spaces) parts_->decode.strip_count = 1 << 20;  // Strip all leading spaces.
    parts_->decode.strip = " ";
    parts_->description =
        fmt::format("SentencePiece {}, {} tokens (tokenizer.model){}", model_.unigram ? "Unigram" : "BPE",
                    parts_->vocabulary.size(), prefix ? ", adds a leading space" : "");
  }

  void build_model() {
    std::array<Token, 256> bytes;
    bytes.fill(kNoToken);
    const auto unknown = std::find_if(model_.pieces.begin(), model_.pieces.end(),
                                      [](const auto& piece) { return piece.type == TokenType::kUnknown; });
    parts_->unk = static_cast<Token>(unknown - model_.pieces.begin());
    double least = 0;
    std::vector<float> scores(static_cast<size_t>(parts_->vocabulary.size()), 0.0f);
    for (Token t = 0; t < size(); ++t) {
      const auto& piece = model_.pieces[t];
      scores[t] = piece.score;
      if (piece.type == TokenType::kNormal) least = std::min<double>(least, piece.score);
      if (piece.type == TokenType::kByte && model_.byte_fallback) bytes[parse_byte_token(piece.text)] = t;
    }
    if (model_.unigram) {
      parts_->model = std::make_unique<Unigram>(parts_->model_lookup, std::vector<double>(scores.begin(), scores.end()),
                                                least, bytes, parts_->unk, true);
    } else {
      parts_->model = std::make_unique<Spm>(parts_->model_lookup, std::move(scores), bytes, parts_->unk, true);
    }
  }

  void set_ids() {
    TokenizerParts& parts = *parts_;
    const auto control = [&](const std::string& text) {
      const Token t = parts.vocabulary.find(text);
      return t != kNoToken && parts.vocabulary.is_control(t) ? t : kNoToken;
    };
    parts.bos = control(model_.bos_piece);
    parts.eos = control(model_.eos_piece);
    settings_.apply(parts, limit_);
    // Transformers' class for these files adds bos unless it is switched off, and eos only if it is switched on.
    if (settings_.adds("add_bos_token").value_or(true) && parts.bos != kNoToken) parts.prefix.push_back(parts.bos);
    if (settings_.adds("add_eos_token").value_or(false) && parts.eos != kNoToken) parts.suffix.push_back(parts.eos);
    parts.description += parts.prefix.empty() ? ", no BOS" : ", adds BOS";
  }

  const TokenizerData& data_;
  const FolderSettings& settings_;
  const SentencePieceModel model_;
  std::unique_ptr<TokenizerParts> parts_;
  int64_t limit_;
  std::map<std::string, AddedToken> added_;  // found in the raw text
  std::unordered_map<std::string, Token> own_ids_;
};

}  // namespace

std::unique_ptr<TokenizerParts> sentencepiece_tokenizer(const TokenizerData& data) {
  const FolderSettings settings(data);
  return Reader(data, settings).read();
}

}  // namespace sx
