// Writes a tiny random model, or a draft head for it, for tests of the program: make_tiny_model FILE.gguf [--pieces |
// --marks | --mtp | --vocabulary | --nan | --huge] | make_tiny_model FOLDER --hf | --hf-pieces | --eagle3 | --medusa
// --marks: the vocabulary has Mistral's marks of tool calls as control tokens; --nan: a weight is none; --huge: weights
// are numbers whose logits are not.
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>

#include "model/heads/head_parts.h"
#include "support/model_writer.h"
#include "support/mtp_model.h"
#include "support/tiny_vocabulary.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  sx::testing::TinySpec spec;
  spec.gain = 3;
  const std::string_view form = argc > 2 ? argv[2] : "";
  if (form == "--pieces" || form == "--hf-pieces") spec.words = sx::testing::TinyWords::kPieces;
  if (form == "--marks") spec.control = {"[TOOL_CALLS]", "[ARGS]"};
  const sx::ModelConfig config = sx::testing::tiny_config(spec);
  if (form == "--eagle3") {
    auto head = sx::testing::eagle3_config(config, 1, 160);
    head["eagle_aux_hidden_state_layer_ids"] = {0, 1, 1};
    sx::testing::random_head(head, {"lm_head.weight", "d2t"}, config, sx::DType::kBF16, 4).write(argv[1]);
  } else if (form == "--medusa") {
    sx::testing::random_head({{"medusa_num_heads", 2}, {"hidden_size", config.width}, {"vocab_size", config.vocab}},
                             {"blocks.1.layers.0.weight", "lm_heads.1.weight"}, config, sx::DType::kBF16, 5)
        .write(argv[1]);
  } else if (form == "--vocabulary") {  // without weights, of an architecture nobody knows
    sx::testing::GgufWriter out;
    out.add_string("general.architecture", "abacus");
    out.add_u32("abacus.block_count", 7);
    sx::testing::add_tiny_vocabulary(out, spec.words, spec.vocab);
    sx::testing::write_file(argv[1], out.bytes());
  } else if (form.starts_with("--hf")) {
    std::filesystem::create_directories(argv[1]);
    sx::testing::write_tiny_hf(argv[1], spec);
  } else if (form == "--nan") {
    auto file = sx::testing::tiny_gguf(spec);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(file.data_of("blk.1.ffn_norm.weight").data(), &nan, sizeof nan);
    sx::testing::write_file(argv[1], file.bytes());
  } else if (form == "--huge") {
    sx::testing::write_file(argv[1], sx::testing::tiny_gguf_with_infinite_logits(spec).bytes());
  } else if (form == "--mtp") {
    sx::testing::write_mtp_gguf(argv[1], spec, 1);
  } else {
    sx::testing::write_tiny_gguf(argv[1], spec);
  }
  return 0;
}
