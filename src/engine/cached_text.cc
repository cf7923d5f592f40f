#include "engine/cached_text.h"

#include <algorithm>

#include "backend/kv_stream.h"
#include "base/error.h"

namespace sx {

void check_tokens(std::span<const Token> tokens, int vocab) {
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab)
      fail("token {} at place {} is outside the vocabulary of {}", tokens[i], i, vocab);
}

std::string broken_logits(size_t position) {
  return fmt::format(
      "the model's logits for the token at position {} are NaN or infinite: its weights are damaged, or too large for the types it is run with",
      position);
}

CachedText::CachedText(const EngineParts& parts) : parts_(parts), seq_(parts.sequences->open()) {
  tokens_.reserve(size_t(parts.context()) + 1);
  if (parts.windows) parts.windows->forget(seq_);
  for (const auto& spec : parts_.speculations)
    if (spec->drafter()) spec->drafter()->open(seq_);
}

CachedText::~CachedText() {
  try {
    for (const auto& spec : parts_.speculations)
      if (spec->drafter()) spec->drafter()->close(seq_);
    forget_cells(*parts_.backend, *parts_.kv, seq_, 0, length());
  } catch (const std::exception&) {}  // a rank is lost, and with it the job
  parts_.sequences->close(seq_);
}

void CachedText::truncate(int length) {
  SX_ASSERT(can_return(length));
  const int held = this->length() + parts_.sequences->uncommitted(seq_);
  parts_.sequences->truncate(seq_, length);
  tokens_.resize(size_t(length));
  if (parts_.windows && length == 0) parts_.windows->forget(seq_);
  for (const auto& spec : parts_.speculations)
    if (spec->drafter()) spec->drafter()->truncate(seq_, length);
  forget_cells(*parts_.backend, *parts_.kv, seq_, length, held);  // last: where ranks are lost it throws
}

int CachedText::reuse(std::span<const Token> text, const Drafter* drafter, int again) {
  const size_t most = std::min(text.size(), tokens_.size());
  const size_t same =
      size_t(std::mismatch(text.begin(), text.begin() + ptrdiff_t(most), tokens_.begin()).first - text.begin());
  truncate(can_return(int(same)) ? int(same) : 0);
  // A drafter may need the inside of the last tokens' pass again; the tokens are the same, so what it keeps stays
  // right.
  if (const int covered = drafter ? drafter->covered(seq_) : length();
      covered < length() && length() - covered <= again) {
    if (!can_return(covered)) truncate(0);
    else parts_.sequences->truncate(seq_, covered);
    tokens_.resize(size_t(length()));
  }
  return length();
}

void CachedText::append(std::span<const Token> tokens, const StepOutputs& outputs, int first_row, Speculation* spec) {
  const int rows = int(tokens.size()), history = length();
  adopt(tokens);
  if (!spec || !spec->drafter()->reads_target()) return;
  spec->drafter()->prompt({.seq = seq_,
                           .first = history,
                           .rows = rows,
                           .outputs = &spec->seen(outputs),
                           .text = tokens_,
                           .first_row = first_row});
}

void CachedText::adopt(std::span<const Token> tokens) {
  parts_.sequences->append(seq_, int(tokens.size()));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (parts_.windows) parts_.windows->grow(seq_, length());
}

}  // namespace sx
