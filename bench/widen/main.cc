// specextend-widen: the same function in a larger shape, for measuring speculation at sizes whose weights are not at
// hand.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "bench/widen/widen_tool.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Writes a model in a larger Llama shape that computes the same: a small model's text at a large model's cost.");
  sx::WidenOptions o;
  bool quiet = false;
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
  app.add_flag("-f,--force", o.force, "overwrite existing files");
  app.add_flag("--dry-run", o.dry_run, "only say what would be written");
  app.add_flag("-q,--quiet", quiet, "no report");
  app.add_option("-t,--threads", o.threads, "threads (0: one per core)")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const sx::ConvertResult result = sx::widen(o);
    if (quiet) return 0;
    fmt::print(stderr, "{} {}: {:.3f} GB, {:.1f} M parameters ({})\n", o.dry_run ? "would write" : "wrote", result.path,
               double(result.bytes) / 1e9, double(result.parameters) / 1e6, result.types);
    for (const auto& note : result.notes) fmt::print(stderr, "note: {}\n", note);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "specextend-widen: {}\n", error.what());
    return 1;
  }
}
