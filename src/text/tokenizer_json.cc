// Builds a tokenizer from a Hugging Face folder: tokenizer.json has vocabulary and pipeline; the files beside it say
// which tokens begin and end a text (FolderSettings).
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "text/bpe.h"
#include "text/folder_settings.h"
#include "text/json_pipeline.h"
#include "text/unigram.h"

namespace sx {
namespace {

class TokenizerReader {
 public:
  TokenizerReader(const TokenizerData& data, const JsonView& root)
      : data_(data), root_(root), parts_(std::make_unique<TokenizerParts>()), limit_(id_limit()) {}

  std::unique_ptr<TokenizerParts> read(const FolderSettings& settings) {
    read_vocabulary();
    read_added(root_, settings.config());
    parts_->vocabulary.index();
    if (root_.has("normalizer")) read_normalizer(root_.at("normalizer"), parts_->normalizer);
    if (root_.has("pre_tokenizer")) pre_ = read_pre_tokenizer(root_.at("pre_tokenizer"), parts_->pre_tokenizer);
    register_added();
    if (unigram_) {
      build_unigram();
    } else {
      build_bpe();
    }
    build_decoder();
    if (root_.has("post_processor")) {
      read_post_processor(root_.at("post_processor"), parts_->vocabulary.size(), parts_->prefix, parts_->suffix);
    }
    settings.apply(*parts_, limit_);
    apply_class(settings);
    parts_->description += parts_->prefix.empty() ? ", no BOS" : ", adds BOS";
    return std::move(parts_);
  }

 private:
  // Ids must be below the number of embedding rows if it is known, and otherwise near the number of entries.
  int64_t id_limit() const {
    if (data_.vocab > 0) return data_.vocab;
    const int64_t own = static_cast<int64_t>(root_.at("model").at("vocab").node().size());
    const int64_t added = root_.has("added_tokens") ? static_cast<int64_t>(root_.at("added_tokens").size()) : 0;
    return std::min(kMostTokens, own + added + kMostHoles);
  }

  void set_token(Token id, const std::string& text, TokenType type, const JsonView& view) {
    TokenTable& v = parts_->vocabulary;
    if (id >= v.size()) {
      v.text.resize(id + 1);
      v.type.resize(id + 1, TokenType::kUnused);
    }
    if (v.type[id] != TokenType::kUnused && v.text[id] != text) {
      view.wrong("id {} belongs to both \"{}\" and \"{}\"", id, v.text[id], text);
    }
    v.text[id] = text;
    v.type[id] = type;
  }

  void read_vocabulary() {
    const JsonView model = root_.at("model");
    const JsonView vocab = model.at("vocab");
    const std::string type = model.string("type", vocab.node().is_array() ? "Unigram" : "BPE");
    unigram_ = type == "Unigram";
    if (!unigram_ && type != "BPE") model.wrong("type \"{}\" is not supported, expected BPE or Unigram", type);
    if (unigram_) {
      if (vocab.size() == 0) vocab.wrong("is empty");
      if (static_cast<int64_t>(vocab.size()) > limit_)
        vocab.wrong("has {} tokens, expected at most {}", vocab.size(), limit_);
      for (size_t i = 0; i < vocab.size(); ++i) {
        const JsonView entry = vocab.at(i);
        if (entry.size() != 2) entry.wrong("expected [text, score]");
        const double score = entry.at(1).number();
        if (!std::isfinite(score)) entry.at(1).wrong("is not finite");
        scores_.push_back(score);
        set_token(static_cast<Token>(i), entry.at(size_t{0}).string(), TokenType::kNormal, entry);
      }
      return;
    }
    if (vocab.object().empty()) vocab.wrong("is empty");
    for (const auto& [text, id] : vocab.object().items()) {
      const JsonView entry(id, vocab.where() + "[\"" + text + "\"]");
      set_token(entry.index(limit_), text, TokenType::kNormal, entry);
    }
  }

  // Reads the added tokens of tokenizer.json, then those that only tokenizer_config.json has.
  void read_added(const JsonView& root, const JsonView* config) {
    if (root.has("added_tokens")) {
      const JsonView list = root.at("added_tokens");
      for (size_t i = 0; i < list.size(); ++i) read_added_token(list.at(i), list.at(i).at("id").index(kMostTokens));
    }
    if (!config || !config->has("added_tokens_decoder")) return;
    const JsonView list = config->at("added_tokens_decoder");
    for (const auto& [key, value] : list.object().items()) {
      const JsonView entry(value, list.where() + "[\"" + key + "\"]");
      if (key.empty() || key.size() > 8 || key.find_first_not_of("0123456789") != std::string::npos) {
        entry.wrong("the key is not a token id");
      }
      const std::string content = entry.at("content").string();
      const bool known =
          std::any_of(added_.begin(), added_.end(), [&](const AddedToken& t) { return t.text == content; });
      if (!known) read_added_token(entry, static_cast<Token>(std::stol(key)));
    }
  }

  void read_added_token(const JsonView& entry, Token id) {
    AddedToken token;
    token.text = entry.at("content").string();
    token.control = entry.boolean("special", false);
    token.single_word = entry.boolean("single_word", false);
    token.left_strip = entry.boolean("lstrip", false);
    token.right_strip = entry.boolean("rstrip", false);
    token.normalized = entry.boolean("normalized", !token.control);
    if (token.text.empty()) return;
    if (model_ids_.empty()) {
      for (Token t = 0; t < parts_->vocabulary.size(); ++t) model_ids_.insert_or_assign(parts_->vocabulary.text[t], t);
    }
    const auto in_model = model_ids_.find(token.text);  // The model's own id takes precedence, as in `tokenizers`.
    token.token = in_model != model_ids_.end() ? in_model->second : id;
    if (token.token >= limit_) return;  // The embedding has no row for it.
    set_token(token.token, token.text, token.control ? TokenType::kControl : TokenType::kUserDefined, entry);
    added_.push_back(std::move(token));
  }

  void register_added() {
    RegexScratch scratch;
    std::set<std::string_view> control;  // If a vocabulary holds such a text twice, both are control tokens.
    for (const AddedToken& token : added_) {
      if (token.control) control.insert(token.text);
    }
    for (Token t = 0; t < parts_->vocabulary.size(); ++t) {
      if (control.count(parts_->vocabulary.text[t])) parts_->vocabulary.type[t] = TokenType::kControl;
    }
    for (AddedToken& token : added_) {
      if (token.normalized) token.text = parts_->normalizer.apply(token.text, scratch);
      (token.normalized ? parts_->added_normalized : parts_->added).add(token);
    }
  }

  // The word model may use its own vocabulary without the control tokens, which only AddedTokens finds.
  void fill_lookup() {
    const TokenTable& v = parts_->vocabulary;
    for (Token t = 0; t < v.size(); ++t) {
      const bool own = model_ids_.empty() || model_ids_.count(v.text[t]);
      if (own && !v.text[t].empty() && v.type[t] != TokenType::kControl)
        parts_->model_lookup.insert_or_assign(v.text[t], t);
    }
  }

  Token lookup(std::string_view text) const {
    const auto found = parts_->model_lookup.find(text);
    return found == parts_->model_lookup.end() ? kNoToken : found->second;
  }

  std::vector<Bpe::Merge> read_merges(const JsonView& model, const BpeOptions& options) {
    std::vector<Bpe::Merge> merges;
    const JsonView list = model.at("merges");
    merges.reserve(list.size());
    std::string joined;
    for (size_t i = 0; i < list.size(); ++i) {
      const nlohmann::json& node = list.node()[i];
      std::string_view left, right;
      if (node.is_string()) {
        const std::string& text = node.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (i == 0 && text.starts_with("#version")) continue;
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          list.at(i).wrong("is \"{}\", expected two tokens with a space between them", text);
        }
        left = std::string_view(text).substr(0, space), right = std::string_view(text).substr(space + 1);
      } else {
        const JsonView pair = list.at(i);
        if (pair.size() != 2) pair.wrong("expected two tokens");
        left = pair.at(size_t{0}).string(), right = pair.at(1).string();
      }
      const size_t prefix = options.continuing_prefix.size();
      joined.assign(left).append(right.size() >= prefix ? right.substr(prefix) : right);
      const Bpe::Merge merge{any_token(left), any_token(right), any_token(joined)};
      if (merge.left == kNoToken || merge.right == kNoToken || merge.result == kNoToken) {
        list.at(i).wrong("\"{}\" + \"{}\" names a token that is not in the vocabulary", left, right);
      }
      merges.push_back(merge);
    }
    return merges;
  }

  Token any_token(std::string_view text) const { return parts_->vocabulary.find(text); }

  void build_bpe() {
    const JsonView model = root_.at("model");
    if (model.has("dropout") && model.at("dropout").number() != 0.0) model.at("dropout").wrong("is not supported");
    BpeOptions options;
    options.byte_level = pre_.byte_level;
    options.ignore_merges = model.boolean("ignore_merges", false);
    options.byte_fallback = model.boolean("byte_fallback", false);
    options.fuse_unk = model.boolean("fuse_unk", false);
    options.continuing_prefix = model.string("continuing_subword_prefix", "");
    options.end_suffix = model.string("end_of_word_suffix", "");
    if (model.has("unk_token")) {
      options.unk = any_token(model.at("unk_token").string());
      if (options.unk == kNoToken)
        model.at("unk_token").wrong("\"{}\" is not in the vocabulary", model.at("unk_token").string());
    }
    if (options.byte_fallback) mark_bytes();
    fill_lookup();
    const std::vector<Bpe::Merge> merges = read_merges(model, options);
    const bool plain = !options.byte_level && !options.ignore_merges && options.continuing_prefix.empty() &&
                       options.end_suffix.empty() && lookup(kMetaspace) != kNoToken;
    if (plain && std::all_of(parts_->model_lookup.begin(), parts_->model_lookup.end(),
                             [](const auto& entry) { return never_crosses_metaspace(entry.first); })) {
      parts_->pre_tokenizer.add(CutAtMetaspaceStep{});
    }
    parts_->unk = options.unk;
    parts_->description =
        fmt::format("{} BPE, {} tokens, {} merges (tokenizer.json)", options.byte_level ? "byte-level" : "character",
                    parts_->vocabulary.size(), merges.size());
    parts_->model = std::make_unique<Bpe>(parts_->model_lookup, merges, options);
  }

  void mark_bytes() {
    TokenTable& v = parts_->vocabulary;
    for (Token t = 0; t < v.size(); ++t) {
      if (v.type[t] == TokenType::kNormal && parse_byte_token(v.text[t]) >= 0) v.type[t] = TokenType::kByte;
    }
  }

  void build_unigram() {
    const JsonView model = root_.at("model");
    if (pre_.byte_level) root_.at("pre_tokenizer").wrong("ByteLevel with a Unigram model is not supported");
    std::array<Token, 256> byte_token;
    byte_token.fill(kNoToken);
    if (model.boolean("byte_fallback", false)) {
      mark_bytes();
      for (int byte = 0; byte < 256; ++byte) byte_token[byte] = any_token(fmt::format("<0x{:02X}>", byte));
    }
    if (model.has("unk_id")) parts_->unk = model.at("unk_id").index(static_cast<int64_t>(scores_.size()));
    fill_lookup();
    const double least = *std::min_element(scores_.begin(), scores_.end());
    parts_->description = fmt::format("Unigram, {} tokens (tokenizer.json)", parts_->vocabulary.size());
    scores_.resize(parts_->vocabulary.size(), 0.0);
    parts_->model = std::make_unique<Unigram>(parts_->model_lookup, std::move(scores_), least, byte_token, parts_->unk);
  }

  void build_decoder() {
    TokenTable& v = parts_->vocabulary;
    v.bytes.reserve(v.text.size());
    if (!root_.has("decoder")) {  // Without a decoder tokens are joined by spaces.
      for (const std::string& text : v.text) v.bytes.push_back(" " + text);
      v.first_bytes = v.text;
      return;
    }
    const DecoderSteps decoder = read_decoder(root_.at("decoder"));
    parts_->decode = decoder.rule;
    for (const std::string& text : v.text) v.bytes.push_back(decoder.apply(text, false));
    if (!decoder.first_differs) return;
    v.first_bytes.reserve(v.text.size());
    for (const std::string& text : v.text) v.first_bytes.push_back(decoder.apply(text, true));
  }

  // These classes ignore the file's post-processor and build their own from add_bos_token and add_eos_token.
  void apply_class(const FolderSettings& settings) {
    TokenizerParts& parts = *parts_;
    const std::string name = settings.config() ? settings.config()->string("tokenizer_class", "") : "";
    static const std::set<std::string> kOwnTemplate = {
        "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
        "GemmaTokenizer", "GemmaTokenizerFast", "CohereTokenizerFast"};
    if (!kOwnTemplate.count(name)) return;
    auto apply = [&](const char* key, Token token, std::vector<Token>& side) {
      const auto wanted = settings.adds(key);
      if (!wanted) return;
      side.clear();
      if (*wanted && token != kNoToken) side.push_back(token);
    };
    apply("add_bos_token", parts.bos, parts.prefix);
    apply("add_eos_token", parts.eos, parts.suffix);
  }

  const TokenizerData& data_;
  const JsonView& root_;
  std::unique_ptr<TokenizerParts> parts_;
  int64_t limit_;
  bool unigram_ = false;
  std::vector<double> scores_;
  std::vector<AddedToken> added_;
  std::unordered_map<std::string, Token> model_ids_;  // the model's own vocabulary, filled when there are added tokens
  PreTokenizerInfo pre_;
};

}  // namespace

std::unique_ptr<TokenizerParts> json_tokenizer(const TokenizerData& data) {
  const FolderSettings settings(data);
  const std::string where = place_of(data, "tokenizer.json");
  const nlohmann::json json = parse_settings(data.tokenizer_json, where);
  const JsonView root(json, where, true);
  if (!json.is_object()) root.wrong("is {}, expected an object", json.type_name());
  return TokenizerReader(data, root).read(settings);
}

}  // namespace sx
