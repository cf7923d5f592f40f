// `specextend convert`: a Hugging Face folder as a GGUF file, a GGUF file as a folder.
#include <memory>

#include "cli/convert_common.h"

namespace sx::cli {
namespace {

struct ConvertArgs {
  ConvertOptions options;
  OutputFlags flags;
  bool no_tokenizer = false;
};

}  // namespace

Command add_convert(CLI::App& app) {
  auto args = std::make_shared<ConvertArgs>();
  ConvertOptions& o = args->options;
  app.add_option("IN", o.model, "Hugging Face folder or GGUF file")->required();
  app.add_option("OUT", o.out, "GGUF file or folder to write: the other form")->required();
  app.add_option("--type", o.type, "F32, F16 or BF16 (default: as they are; quantised weights become BF16)");
  app.add_option("--pre", o.pre, "GGUF's name of the pre-tokeniser, where it is not found");
  app.add_option("--vocabulary", o.vocabulary, "folders: write the vocabulary of this model, e.g. of a draft's target");
  app.add_flag("--no-tokenizer", args->no_tokenizer, "leave the vocabulary out");
  add_output_flags(app, args->flags);
  return [args] {
    return run_conversion("converting", args->flags, [&](std::function<void(double)> progress) {
      ConvertOptions options = args->options;
      options.tokenizer = !args->no_tokenizer;
      options.force = args->flags.force, options.dry_run = args->flags.dry_run, options.threads = args->flags.threads;
      options.on_progress = std::move(progress);
      return convert(options);
    });
  };
}

}  // namespace sx::cli
