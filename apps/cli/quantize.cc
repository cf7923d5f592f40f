// `specextend quantize`: a model in another type, as a GGUF file; a draft head in another type, as a folder.
#include <memory>
#include <utility>

#include "cli/convert_common.h"

namespace sx::cli {
namespace {

struct QuantizeArgs {
  QuantizeOptions options;
  OutputFlags flags;
  std::vector<std::string> tensors;
  std::string rounding = "search";
  bool no_tokenizer = false;
};

// NAME=TYPE
std::pair<std::string, std::string> single(const std::string& text) {
  const size_t sign = text.rfind('=');
  if (sign == std::string::npos || sign == 0 || sign + 1 == text.size())
    throw Error("--tensor-type '" + text + "': expected NAME=TYPE");
  return {text.substr(0, sign), text.substr(sign + 1)};
}

}  // namespace

Command add_quantize(CLI::App& app) {
  auto args = std::make_shared<QuantizeArgs>();
  QuantizeOptions& o = args->options;
  app.add_option("IN", o.model, "GGUF file, Hugging Face folder, or folder of a draft head")->required();
  app.add_option("OUT", o.out, "GGUF file to write; of a draft head the folder")->required();
  app.add_option("TYPE", o.type, "of the layers' matrices: Q8_0, Q4_0, Q4_1, Q4_K, MXFP4, IQ4_NL, F16, BF16 or F32")
      ->required();
  app.add_option("--embedding", o.embedding, "type of the embedding (default: Q8_0 beside 4-bit types, else TYPE)");
  app.add_option("--output", o.output, "type of the output head (default: as for the embedding)");
  app.add_option("--tensor-type", args->tensors, "NAME=TYPE: of a single matrix; may be repeated");
  app.add_option("--round", args->rounding, "search: scales with the least error; nearest: as simulated in training")
      ->check(CLI::IsMember({"search", "nearest"}))
      ->capture_default_str();
  app.add_flag("--requantize", o.requantize, "accept weights that are quantised already");
  app.add_option("--pre", o.pre, "folders: GGUF's name of the pre-tokeniser, where it is not found");
  app.add_option("--vocabulary", o.vocabulary, "folders: write the vocabulary of this model, e.g. of a draft's target");
  app.add_flag("--no-tokenizer", args->no_tokenizer, "folders: leave the vocabulary out");
  add_output_flags(app, args->flags);
  return [args] {
    return run_conversion("quantizing", args->flags, [&](std::function<void(double)> progress) {
      QuantizeOptions options = args->options;
      options.tokenizer = !args->no_tokenizer;
      options.nearest = args->rounding == "nearest";
      for (const std::string& text : args->tensors) options.tensors.push_back(single(text));
      options.force = args->flags.force, options.dry_run = args->flags.dry_run, options.threads = args->flags.threads;
      options.on_progress = std::move(progress);
      return quantize(options);
    });
  };
}

}  // namespace sx::cli
