// Runs the parts. All state of a call is on its stack, including a small cache of words already seen in this text.
#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_internal.h"

namespace sx {
namespace {

// A direct-mapped cache of words seen in this text, with the position of their tokens in the output.
class WordCache {
 public:
  explicit WordCache(size_t text_bytes) : slots_(text_bytes < 256 ? 0 : 4096) {}
  template <class Encode>
  void encode(std::string_view word, std::vector<Token>& out, Encode&& encode_word) {
    if (slots_.empty() || word.size() > 64) return encode_word(word);
    Slot& slot = slots_[std::hash<std::string_view>{}(word) % slots_.size()];
    if (slot.word == word) {
      for (uint32_t i = 0; i < slot.count; ++i) out.push_back(Token{out[slot.begin + i]});
      return;
    }
    const size_t begin = out.size();
    encode_word(word);
    if (out.size() - begin <= 64) slot = {word, begin, static_cast<uint32_t>(out.size() - begin)};
  }

 private:
  struct Slot {
    std::string_view word;
    size_t begin = 0;
    uint32_t count = 0;
  };
  std::vector<Slot> slots_;
};

void encode_words(const TokenizerParts& parts, std::string text, bool at_start, RegexScratch& regex,
                  WordScratch& scratch, std::vector<Token>& out) {
  const Pieces pieces = parts.pre_tokenizer.apply(std::move(text), at_start, regex);
  WordCache cache(pieces.text.size());
  for (const Pieces::Span& span : pieces.spans) {
    const std::string_view word = std::string_view(pieces.text).substr(span.begin, span.end - span.begin);
    cache.encode(word, out, [&](std::string_view w) { parts.model->encode(w, scratch, out); });
  }
}

}  // namespace

std::unique_ptr<TokenizerParts> tokenizer_parts(const TokenizerData& data) {
  if (!data.model.empty()) return gguf_tokenizer(data);
  if (!data.tokenizer_json.empty()) return json_tokenizer(data);
  if (!data.sentencepiece.empty()) return sentencepiece_tokenizer(data);
  fail("{}: no vocabulary: no key tokenizer.ggml.model (GGUF), no tokenizer.json and no tokenizer.model (folder)",
       data.file);
}

std::unique_ptr<TokenCodec> TokenCodec::create(const TokenizerData& data) {
  return std::unique_ptr<TokenCodec>(new TokenCodec(tokenizer_parts(data)));
}

TokenCodec::TokenCodec(std::unique_ptr<TokenizerParts> parts) : parts_(std::move(parts)) {
  is_end_.assign(size(), false);
  auto mark = [&](Token token) {
    if (parts_->vocabulary.contains(token)) is_end_[token] = true;
  };
  mark(parts_->eos);
  for (Token token : parts_->ends) mark(token);
}

TokenCodec::~TokenCodec() = default;

std::vector<Token> TokenCodec::encode(std::string_view utf8, bool add_special, bool parse_special) const {
  const TokenizerParts& parts = *parts_;
  std::string repaired;
  if (!utf8_is_valid(utf8)) utf8 = repaired = utf8_lossy(utf8);
  RegexScratch regex;
  WordScratch scratch;
  std::vector<Token> out;
  out.reserve(utf8.size() / 3 + 8);
  if (add_special) out = parts.prefix;
  for (const AddedTokens::Part& part : parts.added.split(utf8, parse_special, regex)) {
    if (part.token != kNoToken) {
      out.push_back(part.token);
      continue;
    }
    const bool at_start = part.text.data() == utf8.data();
    std::string text = parts.normalizer.empty() ? std::string(part.text) : parts.normalizer.apply(part.text, regex);
    if (parts.added_normalized.empty()) {
      encode_words(parts, std::move(text), at_start, regex, scratch, out);
      continue;
    }
    for (const AddedTokens::Part& inner : parts.added_normalized.split(text, parse_special, regex)) {
      if (inner.token != kNoToken) {
        out.push_back(inner.token);
      } else {
        encode_words(parts, std::string(inner.text), at_start && inner.text.data() == text.data(), regex, scratch, out);
      }
    }
  }
  if (add_special) out.insert(out.end(), parts.suffix.begin(), parts.suffix.end());
  return out;
}

std::string TokenCodec::decode(std::span<const Token> tokens, bool skip_special, TextPlace place) const {
  Detokenizer detokenizer(*this, !skip_special, place);
  std::string text;
  for (Token token : tokens) text += detokenizer.push(token);
  return text += detokenizer.finish();
}

std::string_view TokenCodec::bytes_of(Token token) const {
  const TokenTable& vocabulary = parts_->vocabulary;
  if (!vocabulary.contains(token) || vocabulary.is_control(token)) return {};
  return vocabulary.bytes[token];
}

std::string TokenCodec::printable(Token token) const {
  if (!parts_->vocabulary.contains(token)) return fmt::format("<{}: no such token>", token);
  const std::string_view bytes = is_control(token) ? parts_->vocabulary.text[token] : parts_->vocabulary.bytes[token];
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, at);
    if (!step.valid || step.code < 0x20 || (step.code >= 0x7F && step.code < 0xA0)) {
      for (size_t i = at; i < at + step.length; ++i) {
        const char c = bytes[i];
        if (c == '\n') {
          out += "\\n";
        } else if (c == '\t') {
          out += "\\t";
        } else if (c == '\r') {
          out += "\\r";
        } else {
          out += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
        }
      }
    } else {
      out += bytes.substr(at, step.length);
    }
    at += step.length;
  }
  return out;
}

int TokenCodec::size() const { return parts_->vocabulary.size(); }
Token TokenCodec::bos() const { return parts_->bos; }
Token TokenCodec::eos() const { return parts_->eos; }
Token TokenCodec::unk() const { return parts_->unk; }
bool TokenCodec::is_control(Token token) const { return parts_->vocabulary.is_control(token); }
bool TokenCodec::is_end(Token token) const { return parts_->vocabulary.contains(token) && is_end_[token]; }

std::optional<Token> TokenCodec::find(std::string_view text) const {
  const Token token = parts_->vocabulary.find(text);
  return token == kNoToken ? std::nullopt : std::optional<Token>(token);
}

bool TokenCodec::adds_bos() const {
  return parts_->bos != kNoToken &&
         std::find(parts_->prefix.begin(), parts_->prefix.end(), parts_->bos) != parts_->prefix.end();
}

const std::string& TokenCodec::chat_template() const { return parts_->chat_template; }
std::string TokenCodec::description() const { return parts_->description; }

}  // namespace sx
