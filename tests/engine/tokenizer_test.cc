// Vocabularies of files that cannot be run, of folders with SentencePiece's own file, and with templates that do not
// parse.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "specextend/convert.h"
#include "specextend/inspect.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/tiny_vocabulary.h"

namespace sx {
namespace {

using testing::GgufWriter;
using testing::TinySpec;
using testing::TinyWords;

std::string edited(const std::string& path, const std::function<void(nlohmann::ordered_json&)>& edit) {
  const auto bytes = testing::read_file(path);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto json = nlohmann::ordered_json::parse(text);
  edit(json);
  return json.dump();
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) { return error.what(); }
  return "";
}

class TokenizerTest : public ::testing::Test {
 protected:
  std::string file(const char* name) { return folder_.file(name); }
  std::unique_ptr<Engine> open(const std::string& model) {
    EngineOptions o;
    o.model = model, o.context = 200, o.threads = 1;
    return Engine::open(o);
  }
  testing::TempFolder folder_;
};

TEST_F(TokenizerTest, WithoutWeights) {
  GgufWriter out;
  out.add_string("general.architecture", "llama");
  out.add_u32("llama.block_count", 7);
  testing::add_tiny_vocabulary(out, TinyWords::kPieces, 320);
  testing::write_file(file("vocab.gguf"), out.bytes());
  const auto tokenizer = Tokenizer::open(file("vocab.gguf"));
  const auto tokens = tokenizer->tokenize("b a");
  EXPECT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokenizer->detokenize(tokens), "b a");
  const ModelSummary s = inspect(file("vocab.gguf"));
  EXPECT_NE(s.unsupported.find("holds no weights"), std::string::npos) << s.unsupported;
  EXPECT_EQ(s.layers, 7);
  EXPECT_EQ(s.vocab, 320);
  EXPECT_EQ(s.heads, 0);
  EXPECT_GT(s.file_bytes, 0u);
  EXPECT_NE(error_of([&] { open(file("vocab.gguf")); }).find("holds no weights"), std::string::npos);
}

// One tokenizer serves any number of threads.
TEST_F(TokenizerTest, SharedByThreads) {
  GgufWriter out;
  out.add_string("general.architecture", "llama");
  testing::add_tiny_vocabulary(out, TinyWords::kBytes, 320);
  testing::write_file(file("vocab.gguf"), out.bytes());
  const auto tokenizer = Tokenizer::open(file("vocab.gguf"));
  const auto work = [&](int i) {
    const std::vector<Message> messages{
        {"user", "the number " + std::to_string(i)}, {"assistant", "yes"}, {"user", "b a"}};
    const std::string prompt = tokenizer->apply_template(messages);
    const auto tokens = tokenizer->tokenize(prompt, true);
    return std::pair(prompt + tokenizer->detokenize(tokens, true), tokens);
  };
  std::vector<decltype(work(0))> expected, found(200);
  for (int i = 0; i < 200; ++i) expected.push_back(work(i));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = t; i < 200; i += 4) found[size_t(i)] = work(i);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(found, expected);
}

TEST_F(TokenizerTest, OfAnotherArchitecture) {
  GgufWriter out;
  out.add_string("general.architecture", "abacus");
  out.add_u32("abacus.embedding_length", 64);
  out.add_string("abacus.block_count", "many");  // whatever it means by that
  testing::add_tiny_vocabulary(out, TinyWords::kBytes, 320);
  out.add_tensor("beads.weight", DType::kF32, {2, 2}, testing::Bytes(16));
  testing::write_file(file("abacus.gguf"), out.bytes());
  const ModelSummary s = inspect(file("abacus.gguf"));
  EXPECT_NE(s.unsupported.find("architecture 'abacus' is not supported"), std::string::npos) << s.unsupported;
  EXPECT_EQ(s.architecture, "abacus");
  EXPECT_EQ(s.width, 64);
  EXPECT_EQ(s.layers, 0);
  EXPECT_EQ(s.parameters, 4u);
  EXPECT_FALSE(Tokenizer::open(file("abacus.gguf"))->tokenize("b a").empty());
  EXPECT_NE(error_of([&] { open(file("abacus.gguf")); }).find("abacus"), std::string::npos);

  testing::write_tiny_hf(file("folder"), TinySpec());
  testing::write_file(file("folder/config.json"), edited(file("folder/config.json"), [](auto& json) {
                        json["architectures"] = {"AbacusForCausalLM"};
                      }));
  EXPECT_NE(inspect(file("folder")).unsupported.find("AbacusForCausalLM"), std::string::npos);
  EXPECT_EQ(inspect(file("folder")).layers, 2);
  EXPECT_FALSE(Tokenizer::open(file("folder"))->tokenize("b a").empty());
  std::filesystem::remove(file("folder/model.safetensors"));
  EXPECT_FALSE(Tokenizer::open(file("folder"))->tokenize("b a").empty());
  testing::write_file(file("folder/config.json"), R"({"model_type": "abacus", "text_config": {"vocab_size": 320}})");
  EXPECT_FALSE(Tokenizer::open(file("folder"))->tokenize("b a").empty());
}

// Only a conversation needs the template.
TEST_F(TokenizerTest, TemplateThatDoesNotParse) {
  testing::write_tiny_hf(file("folder"), TinySpec());
  testing::write_file(file("folder/chat_template.jinja"), std::string_view("{% if %}"));
  const auto engine = open(file("folder"));
  GenerateOptions o;
  o.max_tokens = 4, o.ignore_end = true;
  EXPECT_EQ(engine->start()->generate(engine->tokenizer().tokenize("b a"), o).tokens.size(), 4u);
  const std::string error =
      error_of([&] { engine->tokenizer().apply_template_json(R"([{"role": "user", "content": "b"}])"); });
  EXPECT_NE(error.find("chat template of"), std::string::npos) << error;
  EXPECT_NE(error.find("folder"), std::string::npos) << error;
  ASSERT_EQ(engine->warnings().size(), 1u);
  EXPECT_NE(engine->warnings()[0].find("chat template of"), std::string::npos);
  EXPECT_NE(error_of([&] { Tokenizer::open(file("folder"), "{% if %}"); }),
            "");  // one that somebody gives is looked at at once
}

TEST_F(TokenizerTest, WarnsOfAMissingPreTokenizer) {
  TinySpec spec;
  testing::write_tiny_gguf(file("named.gguf"), spec);
  EXPECT_TRUE(Tokenizer::open(file("named.gguf"))->warnings().empty());
  spec.words = TinyWords::kPieces;
  testing::write_tiny_gguf(file("pieces.gguf"), spec);
  EXPECT_TRUE(Tokenizer::open(file("pieces.gguf"))->warnings().empty());
  GgufWriter out;
  out.add_string("general.architecture", "llama");
  out.add_string("tokenizer.ggml.model", "gpt2");
  out.add_strings("tokenizer.ggml.tokens", testing::tiny_tokens(320));
  out.add_strings("tokenizer.ggml.merges", testing::tiny_merges(320));
  testing::write_file(file("old.gguf"), out.bytes());
  const auto warnings = Tokenizer::open(file("old.gguf"))->warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("tokenizer.ggml.pre"), std::string::npos);
}

// As Vicuna and LongChat are published.
TEST_F(TokenizerTest, FolderWithSentencePiecesOwnFile) {
  TinySpec spec;
  spec.vocab = 512;
  testing::write_tiny_hf(file("folder"), spec);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    std::filesystem::remove(file("folder") + "/" + name);
  std::filesystem::copy_file(SX_TEXT_DATA "/sentencepiece/llama.model", file("folder/tokenizer.model"));
  testing::write_file(file("folder/tokenizer_config.json"),
                      std::string_view(R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})"));
  testing::write_file(file("folder/added_tokens.json"), std::string_view(R"({"<pad>": 511})"));
  EXPECT_EQ(inspect(file("folder")).tokenizer, "tokenizer.model");
  const auto engine = open(file("folder"));
  const auto prompt = engine->tokenizer().tokenize("the river", true);
  EXPECT_EQ(prompt.front(), 1);
  EXPECT_EQ(engine->tokenizer().detokenize(prompt), "the river");
  EXPECT_EQ(engine->tokenizer().tokenize("<pad>"), std::vector<Token>{511});
  GenerateOptions o;
  o.max_tokens = 8, o.grammar = "root ::= \" was \" [a-z]+";
  EXPECT_EQ(engine->start()->generate(prompt, o).text.substr(0, 5), " was ");

  ConvertOptions convert_options;
  convert_options.model = file("folder"), convert_options.out = file("made.gguf"), convert_options.type = "f32";
  const auto notes = convert(convert_options).notes;
  EXPECT_TRUE(notes.empty()) << notes.front();
  const auto made = Tokenizer::open(file("made.gguf"));
  for (const char* text : {"the river", " two  spaces\n", "über 日本語 <s>x", "12345"})
    EXPECT_EQ(made->tokenize(text, true), engine->tokenizer().tokenize(text, true)) << text;
}

// Where generation_config.json is absent or silent, config.json says what ends a text.
TEST_F(TokenizerTest, EndsOfConfig) {
  testing::write_tiny_hf(file("folder"), TinySpec());
  const auto config = [&](const nlohmann::ordered_json& ends) {
    testing::write_file(file("folder/config.json"),
                        edited(file("folder/config.json"), [&](auto& json) { json["eos_token_id"] = ends; }));
    return Tokenizer::open(file("folder"));
  };
  EXPECT_FALSE(config({7, 9})->is_end(9));
  std::filesystem::remove(file("folder/generation_config.json"));
  const auto list = config({7, 9});
  EXPECT_TRUE(list->is_end(7) && list->is_end(9));
  const auto one = config(8);
  EXPECT_TRUE(one->is_end(8) && !one->is_end(9));
  testing::write_file(file("folder/generation_config.json"), std::string_view(R"({"do_sample": true})"));
  EXPECT_TRUE(config(11)->is_end(11));
}

}  // namespace
}  // namespace sx
