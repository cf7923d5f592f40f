// `specextend inspect`: what is in a model file, and the memory a context needs.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"

namespace sx::cli {
namespace {

struct Args {
  std::string model, file;
  std::vector<int> contexts;
  bool tensors = false, metadata = false, json = false;
};

std::string bytes_text(size_t bytes) {
  const double b = double(bytes);
  if (b >= 1e9) return fmt::format("{:.2f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  return fmt::format("{:.1f} kB", b / 1e3);
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

constexpr const char* kTypes[] = {"f32", "bf16", "q8_0"};

void print_json(const ModelSummary& s, const Args& a) {
  nlohmann::ordered_json j{{"path", s.path}, {"format", s.format}, {"name", s.name}, {"architecture", s.architecture},
      {"layers", s.layers}, {"width", s.width}, {"heads", s.heads}, {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim},
      {"ffn", s.ffn}, {"vocab", s.vocab}, {"context", s.context}, {"window", s.window}, {"rope", s.rope}, {"types", s.types},
      {"tied_head", s.tied_head}, {"parameters", s.parameters}, {"file_bytes", s.file_bytes}, {"weight_bytes", s.weight_bytes},
      {"tokenizer", s.tokenizer}};
  for (int context : a.contexts)
    for (const char* type : kTypes) j["kv_bytes"][std::to_string(context)][type] = s.kv_bytes(context, type);
  if (a.metadata) for (const auto& [key, value] : s.metadata) j["metadata"][key] = value;
  if (a.tensors)
    for (const auto& t : s.tensors) j["tensors"].push_back({{"name", t.name}, {"type", t.type}, {"shape", t.shape}, {"bytes", t.bytes}});
  write_out(j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int run(Args& a) {
  const ModelSummary s = inspect(a.file.empty() ? a.model : a.file);
  if (a.contexts.empty()) a.contexts = {s.context};
  for (int context : a.contexts)
    if (context < 1 || context > (1 << 24)) throw Error(fmt::format("context {}: expected 1 to {}", context, 1 << 24));
  if (a.json) {
    print_json(s, a);
    return 0;
  }
  std::string out;
  const auto line = [&](const char* what, const std::string& value) { out += fmt::format("{:<14}{}\n", what, value); };
  line("file", s.path);
  line("format", fmt::format("{}, {}", s.format, bytes_text(s.file_bytes)));
  if (!s.name.empty()) line("name", s.name);
  line("architecture", fmt::format("{}, {:.1f} M parameters", s.architecture, double(s.parameters) / 1e6));
  line("layers", fmt::format("{} of width {}, feed-forward {}", s.layers, s.width, s.ffn));
  line("attention", fmt::format("{} heads of {}, {} KV heads{}", s.heads, s.head_dim, s.kv_heads,
                                s.window ? fmt::format(", window {}", s.window) : ""));
  line("rope", s.rope);
  line("context", fmt::format("{} tokens trained", s.context));
  line("vocabulary", fmt::format("{}, head {}", s.vocab, s.tied_head ? "tied to the embedding" : "separate"));
  line("tokenizer", s.tokenizer);
  line("tensors", fmt::format("{} ({}), {}", s.tensors.size(), s.types, bytes_text(s.weight_bytes)));
  out += "\nmemory for a context of        weights          KV       total\n";
  for (int context : a.contexts)
    for (const char* type : kTypes) {
      const size_t kv = s.kv_bytes(context, type);
      out += fmt::format("  {:>8} tokens, KV {:<6}{:>12}{:>12}{:>12}\n", context, type, bytes_text(s.weight_bytes), bytes_text(kv),
                         bytes_text(s.weight_bytes + kv));
    }
  if (a.metadata) {
    out += "\nmetadata\n";
    for (const auto& [key, value] : s.metadata) out += fmt::format("  {} = {}\n", key, value);
  }
  if (a.tensors) {
    out += "\ntensors\n";
    for (const auto& t : s.tensors) out += fmt::format("  {:<32}{:<6}{:<18}{:>12}\n", t.name, t.type, shape_text(t.shape), bytes_text(t.bytes));
  }
  return write_out(out) ? 0 : 1;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto args = std::make_shared<Args>();
  app.add_option("FILE", args->file, "model file or folder");
  add_model_flag(app, args->model);
  app.add_option("-c,--ctx-size", args->contexts, "contexts to show memory for (default: the trained one)")->delimiter(',');
  app.add_flag("--tensors", args->tensors, "list every tensor");
  app.add_flag("--metadata", args->metadata, "list the file's metadata");
  app.add_flag("--json", args->json, "print JSON");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
