// The components of a tokenizer.json around its model: normalizer, pre_tokenizer, post_processor and decoder, each
// read into the steps that TokenCodec runs. A component of unknown type is an error that names it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "text/json_view.h"
#include "text/tokenizer_internal.h"

namespace sx {

void read_normalizer(const JsonView& view, Normalizer& out);

struct PreTokenizerInfo {
  bool byte_level = false;  // words are bytes, spelled in GPT-2's alphabet
  bool any = false;         // there is at least one step
};
PreTokenizerInfo read_pre_tokenizer(const JsonView& view, PreTokenizer& out);

// Appends to prefix and suffix the tokens around a single sequence. All ids are below `vocab`.
void read_post_processor(const JsonView& view, int64_t vocab, std::vector<Token>& prefix, std::vector<Token>& suffix);

struct DecoderSteps {
  // Maps the text of a token as the file writes it to the bytes it prints; `first` marks the first token of a text.
  std::vector<std::function<std::string(std::string, bool first)>> each;
  bool first_differs = false;
  bool byte_fallback = false;
  DecodeRule rule;
  std::string apply(std::string text, bool first) const;
};
DecoderSteps read_decoder(const JsonView& view);

}  // namespace sx
