// `specextend widen`: zero-padded upscale of a model: a larger shape that computes the same function.
#include <memory>

#include "cli/convert_common.h"

namespace sx::cli {
namespace {

struct Args {
  WidenOptions options;
  OutputFlags flags;
};

}  // namespace

Command add_widen(CLI::App& app) {
  auto args = std::make_shared<Args>();
  WidenOptions& o = args->options;
  app.add_option("IN", o.model, "GGUF file, Hugging Face folder, or folder of an EAGLE-3 head")->required();
  app.add_option("OUT", o.out, "GGUF file to write; a folder for a head")->required();
  app.add_option("--shape", o.shape, "llama-1b, llama-3b, llama-8b or llama-70b; the numbers below change it");
  app.add_option("--width", o.width, "width of the residual stream");
  app.add_option("--layers", o.layers, "number of layers");
  app.add_option("--heads", o.heads, "number of query heads");
  app.add_option("--kv-heads", o.kv_heads, "number of KV heads");
  app.add_option("--head-dim", o.head_dim, "size of a head, a multiple of the old one");
  app.add_option("--ffn", o.ffn, "feed-forward length");
  app.add_option("--type", o.type, "of the matrices: BF16, F16, F32, Q8_0, Q4_0, Q4_1 or Q4_K")->capture_default_str();
  app.add_option("--embedding", o.embedding, "type of the embedding (default: Q8_0 beside 4-bit types, else the type)");
  app.add_option("--output", o.output, "type of the output head (default: as for the embedding)");
  add_output_flags(app, args->flags);
  return [args] {
    return run_conversion("widening", args->flags, [&](std::function<void(double)> progress) {
      WidenOptions options = args->options;
      options.force = args->flags.force, options.dry_run = args->flags.dry_run, options.threads = args->flags.threads;
      options.on_progress = std::move(progress);
      return widen(options);
    });
  };
}

}  // namespace sx::cli
