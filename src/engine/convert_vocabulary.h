// A vocabulary in the other form: the arrays of GGUF from a tokenizer.json, and a tokenizer.json from the arrays. What
// comes out is compared with what went in on a set of texts.
#pragma once
#include <string>
#include <vector>

#include "formats/tokenizer_data.h"

namespace sx {

// `pre`: name of the pre-tokeniser for GGUF; empty: found by its patterns, and an error that names them if it has no
// name. A folder without tokenizer.json gives the ids alone. `notes` gets a sentence if some text is split differently.
TokenizerData vocabulary_to_gguf(const TokenizerData& folder, const std::string& pre, std::vector<std::string>& notes);
// Fills the JSON texts and keeps the ids; without tokens, the ids alone.
TokenizerData vocabulary_to_folder(const TokenizerData& gguf, std::vector<std::string>& notes);

// 16 hexadecimal digits that both forms of a vocabulary share, and no other vocabulary.
std::string vocabulary_fingerprint(const TokenizerData& data);

}  // namespace sx
