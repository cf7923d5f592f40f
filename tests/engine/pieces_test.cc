// Engines with SentencePiece's kind of vocabulary: an answer keeps its first space, whatever form the vocabulary comes
// in.
#include <gtest/gtest.h>

#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

struct Form {
  const char* name;
  const char* preset;
};

class PiecesTest : public ::testing::TestWithParam<Form> {
 protected:
  PiecesTest() {
    testing::TinySpec spec;
    spec.gain = 3, spec.words = testing::TinyWords::kPieces;
    const std::string name = GetParam().name, path = folder_.file(name);
    if (name == "gguf") testing::write_tiny_gguf(path, spec);
    else testing::write_tiny_hf(path, spec);
    EngineOptions o;
    o.model = path, o.context = 300, o.threads = 2, o.spec.preset = GetParam().preset;
    if (o.spec.preset != "off") o.spec.settings = {{"cost-model", "off"}};
    engine_ = Engine::open(o);
  }

  // The answer, after checking that its text is what its tokens add to the prompt's, streamed or whole.
  GenerateResult answer(const std::vector<Token>& prompt, const std::string& grammar = "", uint64_t seed = 0) {
    GenerateOptions o;
    std::string streamed;
    o.max_tokens = 24, o.ignore_end = true, o.grammar = grammar, o.sampling.temperature = 1, o.sampling.seed = seed;
    o.on_text = [&](std::string_view text) { streamed += text; };
    const auto found = engine_->start()->generate(prompt, o);
    EXPECT_EQ(streamed, found.text);
    std::string bytes;
    for (const Token t : found.tokens) bytes += engine_->tokenizer().token_bytes(t);
    if (!grammar.empty()) {
      EXPECT_EQ(found.text, bytes);  // all ASCII
    }
    EXPECT_EQ(found.text, engine_->tokenizer().detokenize(found.tokens, false, true));
    return found;
  }

  testing::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(PiecesTest, AnswersContinueTheirPrompt) {
  const auto prompt = engine_->tokenizer().tokenize("b a");
  ASSERT_EQ(prompt.size(), 2u);
  EXPECT_EQ(engine_->tokenizer().detokenize(prompt), "b a");
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto found = answer(prompt, "root ::= (\" \" [a-z])+", seed);
    ASSERT_FALSE(found.tokens.empty());
    std::vector<Token> whole = prompt;
    whole.insert(whole.end(), found.tokens.begin(), found.tokens.end());
    EXPECT_EQ(engine_->tokenizer().detokenize(whole), "b a" + found.text);
  }
}

TEST_P(PiecesTest, TextsStayInTheirGrammar) {
  for (const char* before : {"b a", "<|im_start|>"}) {  // the second one shows nothing
    const auto prompt = engine_->tokenizer().tokenize(before);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      EXPECT_EQ(answer(prompt, "root ::= \" a b\" | \" a c\" ", seed).text.substr(0, 3), " a ") << before;
      EXPECT_EQ(answer(prompt, "root ::= \"  x\"", seed).text, "  x") << before;
      EXPECT_EQ(answer(prompt, "root ::= \"x y\"", seed).text, "x y") << before;
    }
  }
}

TEST_P(PiecesTest, AnyTokensStreamAsTheyAreWhole) {
  for (uint64_t seed = 0; seed < 8; ++seed) answer(engine_->tokenizer().tokenize("b a"), "", seed);
}

INSTANTIATE_TEST_SUITE_P(Forms, PiecesTest,
                         ::testing::Values(Form{"gguf", "off"}, Form{"gguf", "suffix"}, Form{"folder", "off"}),
                         [](const auto& form) { return std::string(form.param.name) + "_" + form.param.preset; });

}  // namespace
}  // namespace sx
