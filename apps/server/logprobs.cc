#include "server/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace sx::server {

Logprob logprob_of(std::span<const float> logits, Token token, int top) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const auto value = [&](size_t i) { return std::isfinite(logits[i]) ? double(logits[i]) : kNothing; };
  Logprob out;
  double largest = kNothing;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double v = value(i);
    largest = std::max(largest, v);
    // The best so far are sorted; an equal one of larger id goes behind.
    if (top <= 0 || (out.top.size() == size_t(top) && !(v > out.top.back().logprob))) continue;
    if (out.top.size() == size_t(top)) out.top.pop_back();
    const auto place = std::find_if(out.top.begin(), out.top.end(), [&](const TopToken& t) { return v > t.logprob; });
    out.top.insert(place, {Token(i), v, {}});
  }
  const bool known = token >= 0 && size_t(token) < logits.size();
  const double own = known ? value(size_t(token)) : kNothing;
  double sum = 0;
  int ahead = 0;  // tokens that are likelier than this one
  for (size_t i = 0; i < logits.size(); ++i) {
    const double v = value(i);
    sum += std::exp(v - largest);
    ahead += v > own;
  }
  const double norm = largest + std::log(sum);  // NaN if there is nothing to choose from
  const auto relative = [&](double v) { return v - norm > kLeastLogprob ? std::min(0.0, v - norm) : kLeastLogprob; };
  for (TopToken& t : out.top) t.logprob = relative(t.logprob);
  out.logprob = known ? relative(own) : kLeastLogprob;
  out.rank = known ? ahead + 1 : 0;
  return out;
}

void TextPiece::append(TextPiece&& next) {
  text += next.text;
  tokens.insert(tokens.end(), std::make_move_iterator(next.tokens.begin()), std::make_move_iterator(next.tokens.end()));
  shares.insert(shares.end(), std::make_move_iterator(next.shares.begin()), std::make_move_iterator(next.shares.end()));
}

namespace {

// A share that goes on inside a character belongs to the one before.
void add_share(TextPiece& piece, std::string_view text, int depth) {
  if (text.empty()) return;
  const bool inside = (uint8_t(text.front()) & 0xC0) == 0x80;
  if (!inside || piece.shares.empty()) return piece.shares.push_back({std::string(text), depth});
  piece.shares.back().text += text;
  piece.shares.back().depth = depth;
}

}  // namespace

AnswerToken TokenCollector::told(const TokenInfo& info, bool in_prompt) const {
  const auto spelt = [&](Token token) {
    std::string bytes = tokenizer_.token_bytes(token);
    return bytes.empty() ? tokenizer_.token_text(token) : bytes;
  };
  AnswerToken token{info.token, info.depth, in_prompt ? spelt(info.token) : tokenizer_.token_bytes(info.token), {}};
  if (top_ < 0 || info.logits.empty()) return token;
  token.logprob = logprob_of(info.logits, info.token, top_);
  for (TopToken& other : token.logprob.top) other.bytes = other.token == info.token ? token.bytes : spelt(other.token);
  return token;
}

AnswerToken TokenCollector::on_prompt(const TokenInfo& info) const {
  AnswerToken token = told(info, true);
  token.logprob.known = !info.logits.empty();
  return token;
}

void TokenCollector::on_token(const TokenInfo& info) { waiting_.push_back(told(info, false)); }

TextPiece TokenCollector::on_text(std::string_view text) {
  TextPiece piece;
  piece.text = text;
  const size_t end = told_ + text.size();
  const auto complete = [&](bool in_text) {
    depth_ = waiting_.front().depth;
    waiting_.front().end = end - text.size();
    waiting_.front().in_text = in_text;
    piece.tokens.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    used_ = 0;
  };
  while (!text.empty() && !waiting_.empty()) {
    const AnswerToken& token = waiting_.front();
    std::string_view left = std::string_view(token.bytes).substr(used_);
    // The first token of a text may lose its space.
    if (begins_ && used_ == 0 && left.starts_with(' ') && !text.starts_with(' ')) left.remove_prefix(1), used_ = 1;
    const size_t size = std::min(left.size(), text.size());
    if (text.substr(0, size) != left.substr(0, size)) {
      // Broken characters come as replacements, control tokens not at all: these cannot be told apart.
      add_share(piece, std::exchange(text, {}), waiting_.back().depth);
      while (!waiting_.empty()) complete(true);
      break;
    }
    add_share(piece, text.substr(0, size), token.depth);
    text.remove_prefix(size);
    used_ += size;
    if (size == left.size()) complete(used_ > 0);
    begins_ = false;
  }
  add_share(piece, text, depth_);
  begins_ = false;
  told_ = end;
  return piece;
}

TextPiece TokenCollector::finish() {
  TextPiece piece;
  for (AnswerToken& token : waiting_) token.end = told_, token.in_text = false;
  piece.tokens.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  used_ = 0;
  return piece;
}

std::string TokenCollector::held() const {
  std::string text;
  for (const AnswerToken& token : waiting_) text += token.bytes;
  return text.substr(std::min(used_, text.size()));
}

std::string stopping_word(const std::vector<std::string>& stops, std::string_view held) {
  for (const std::string& stop : stops)
    if (!stop.empty() && held.starts_with(stop)) return stop;
  return {};
}

}  // namespace sx::server
