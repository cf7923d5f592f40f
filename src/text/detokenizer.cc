// Streaming decoding holds bytes back only while they could still become part of a longer character.
#include "text/tokenizer.h"
#include "text/tokenizer_internal.h"

namespace sx {

Detokenizer::Detokenizer(const TokenCodec& tokenizer, bool special, TextPlace place)
    : tokenizer_(tokenizer), special_(special), place_(place) {
  start();
}

void Detokenizer::start() {
  first_ = place_ == TextPlace::kStart;
  strip_left_ = first_ ? tokenizer_.parts_->decode.strip_count : 0;
}

std::string Detokenizer::push(Token token) {
  const TokenizerParts& parts = *tokenizer_.parts_;
  if (!parts.vocabulary.contains(token)) return "";
  if (!special_ && parts.vocabulary.is_control(token)) return "";
  const auto& bytes =
      first_ && !parts.vocabulary.first_bytes.empty() ? parts.vocabulary.first_bytes : parts.vocabulary.bytes;
  pending_ += bytes[token];
  first_ = false;
  return take(false);
}

std::string Detokenizer::finish() {
  std::string rest = take(true);
  start();
  return rest;
}

std::string Detokenizer::take(bool all) {
  const std::string& strip = tokenizer_.parts_->decode.strip;
  while (strip_left_ > 0 && !pending_.empty()) {
    if (pending_.compare(0, strip.size(), strip) == 0) {
      pending_.erase(0, strip.size());
      --strip_left_;
    } else if (!all && strip.compare(0, pending_.size(), pending_) == 0) {
      return "";  // The bytes could still become the character to strip.
    } else {
      strip_left_ = 0;
    }
  }
  const size_t ready = all ? pending_.size() : pending_.size() - utf8_open_tail(pending_);
  std::string text = utf8_lossy(std::string_view(pending_).substr(0, ready));
  pending_.erase(0, ready);
  return text;
}

}  // namespace sx
