#include "engine/convert_api.h"

#include <filesystem>
#include <map>

#include "base/error.h"
#include "engine/convert_vocabulary.h"
#include "model/convert/convert.h"
#include "model/convert/quantize.h"
#include "model/convert/quantize_head.h"
#include "specextend/engine.h"

namespace sx {

std::optional<DType> type_named(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto type = dtype_from_name(name);
  if (!type) fail("type '{}' is not known; F32, F16, BF16, Q8_0, Q4_0, Q4_1 and Q4_K are", name);
  return type;
}

DType required_type(const std::string& name) {
  const auto type = type_named(name);
  if (!type) fail("no type given; F32, F16, BF16, Q8_0, Q4_0, Q4_1 or Q4_K is expected");
  return *type;
}

ConvertResult result_of(const ConvertReport& report, std::vector<std::string> notes) {
  ConvertResult out;
  out.path = report.path;
  out.bytes = report.bytes;
  out.notes = std::move(notes);
  out.notes.insert(out.notes.end(), report.notes.begin(), report.notes.end());
  std::map<std::string, int> types;
  for (const auto& tensor : report.tensors) {
    out.parameters += static_cast<uint64_t>(tensor.elements());
    ++types[dtype_name(tensor.type)];
  }
  for (const auto& [type, count] : types)
    out.types += fmt::format("{}{} {}", out.types.empty() ? "" : ", ", type, count);
  return out;
}

std::shared_ptr<ModelFile> open_source(const std::string& model, const std::string& out) {
  if (out.empty()) fail("no output given");
  return ModelFile::open(model.empty() ? default_model_path() : model);
}

void expect_gguf_name(const std::string& out) {
  if (!out.ends_with(".gguf")) fail("'{}': a GGUF file is written, and its name must end in .gguf", out);
}

namespace {

bool is_gguf(const ModelFile& file) { return file.format().starts_with("GGUF"); }

// What is said about the vocabulary of the output.
struct VocabularyChoice {
  std::string pre{}, from{};
  bool wanted = true;
};

TokenizerData gguf_vocabulary(const ModelFile& file, const VocabularyChoice& choice, std::vector<std::string>& notes);

// That of another model. What it has beyond the embedding's rows could never be chosen.
TokenizerData borrowed_vocabulary(const ModelFile& file, const VocabularyChoice& choice,
                                  std::vector<std::string>& notes) {
  if (is_gguf(file)) fail("{}: a GGUF file keeps its own vocabulary; another one is for folders", file.path());
  if (!choice.wanted) fail("{}: a vocabulary is named and none is wanted; give one of the two", choice.from);
  const auto other = ModelFile::open_any(choice.from);
  TokenizerData out = gguf_vocabulary(*other, {choice.pre, {}, true}, notes);
  if (out.tokens.empty()) fail("{}: it has no vocabulary that could be written", choice.from);
  if (static_cast<int64_t>(out.tokens.size()) > file.config().vocab)
    fail("{}: its vocabulary has {} tokens, the embedding of '{}' only {} rows", choice.from, out.tokens.size(),
         file.path(), file.config().vocab);
  return out;
}

// The vocabulary as arrays: a GGUF file's own, a folder's converted.
TokenizerData gguf_vocabulary(const ModelFile& file, const VocabularyChoice& choice, std::vector<std::string>& notes) {
  if (!choice.from.empty()) return borrowed_vocabulary(file, choice, notes);
  if (is_gguf(file)) return file.tokenizer();
  if (choice.wanted) return vocabulary_to_gguf(file.tokenizer(), choice.pre, notes);
  TokenizerData bare = file.tokenizer();
  bare.tokenizer_json.clear(), bare.sentencepiece.clear();
  return vocabulary_to_gguf(bare, choice.pre, notes);
}

}  // namespace

TokenizerData gguf_vocabulary(const ModelFile& file, std::vector<std::string>& notes) {
  return gguf_vocabulary(file, VocabularyChoice{}, notes);
}

ConvertResult quantize(const QuantizeOptions& options) {
  QuantizeJob job;
  job.out = options.out;
  job.types = {required_type(options.type), type_named(options.embedding), type_named(options.output),
               options.requantize};
  for (const auto& [name, type] : options.tensors) job.types.single.emplace_back(name, required_type(type));
  job.force = options.force;
  job.dry_run = options.dry_run;
  job.write = {options.threads, options.on_progress, options.nearest};
  if (is_head_folder(options.model)) {
    if (options.out.empty()) fail("no output given");
    if (options.out.ends_with(".gguf")) fail("'{}': a draft head is written as a folder, not as GGUF", options.out);
    if (!options.vocabulary.empty() || !options.pre.empty()) fail("{}: a draft head has no vocabulary", options.model);
    return result_of(quantize_head(options.model, job), {});
  }
  expect_gguf_name(options.out);
  const auto file = open_source(options.model, options.out);
  std::vector<std::string> notes;
  const VocabularyChoice choice{options.pre, options.vocabulary, options.tokenizer};
  const TokenizerData vocabulary = gguf_vocabulary(*file, choice, notes);
  return result_of(quantize_model(*file, vocabulary, job), std::move(notes));
}

ConvertResult convert(const ConvertOptions& options) {
  const auto file = open_source(options.model, options.out);
  ConvertJob job;
  job.out = options.out;
  job.type = type_named(options.type);
  job.force = options.force;
  job.dry_run = options.dry_run;
  job.write = {options.threads, options.on_progress};
  std::vector<std::string> notes;
  if (!is_gguf(*file)) {
    expect_gguf_name(options.out);
    const VocabularyChoice choice{options.pre, options.vocabulary, options.tokenizer};
    const TokenizerData vocabulary = gguf_vocabulary(*file, choice, notes);
    return result_of(convert_to_gguf(*file, vocabulary, job), std::move(notes));
  }
  if (!options.vocabulary.empty()) fail("{}: a folder gets the vocabulary of its GGUF file", options.out);
  if (options.out.ends_with(".gguf")) {
    fail("'{}' is a GGUF file already and becomes a folder; `specextend quantize` changes its types", file->path());
  }
  TokenizerData source = file->tokenizer();
  if (!options.tokenizer) source.tokens.clear();
  return result_of(convert_to_folder(*file, vocabulary_to_folder(source, notes), job), std::move(notes));
}

}  // namespace sx
