// The vocabularies of tiny models, for GGUF files and for folders.
#pragma once
#include <string>
#include <vector>

#include "support/model_writer.h"

namespace sx::testing {

// `control`: texts of control tokens, which are the last ones of a vocabulary of bytes.
void add_tiny_vocabulary(GgufWriter& out, TinyWords words, int vocab, const std::vector<std::string>& control = {});
std::string tiny_tokenizer_json(TinyWords words, int vocab);
std::string tiny_tokenizer_config_json();

}  // namespace sx::testing
