// `specextend inspect`: what is in a model file or a draft head, and the memory a context needs.
#include <fmt/format.h>
#include <specextend/drafts.h>
#include <specextend/inspect.h>
#include <specextend/ranks.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct InspectArgs {
  std::string model, file;
  std::vector<int> contexts;
  int ranks = 0;
  std::string split = "columns", kv_type, weight_type;
  bool tensors = false, metadata = false, json = false, target = false;
};

std::string bytes_text(size_t bytes) {
  const double b = double(bytes);
  if (b >= 1e9) return fmt::format("{:.2f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  return fmt::format("{:.1f} kB", b / 1e3);
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

constexpr const char* kTypes[] = {"f32", "bf16", "q8_0"};

nlohmann::ordered_json tensor_list(const std::vector<TensorSummary>& tensors) {
  nlohmann::ordered_json out;
  for (const auto& t : tensors)
    out.push_back({{"name", t.name}, {"type", t.type}, {"shape", t.shape}, {"bytes", t.bytes}});
  return out;
}

void print_json(const ModelSummary& s, const InspectArgs& a) {
  nlohmann::ordered_json j{{"path", s.path},
                           {"format", s.format},
                           {"name", s.name},
                           {"architecture", s.architecture},
                           {"layers", s.layers},
                           {"width", s.width},
                           {"heads", s.heads},
                           {"kv_heads", s.kv_heads},
                           {"head_dim", s.head_dim},
                           {"ffn", s.ffn},
                           {"vocab", s.vocab},
                           {"context", s.context},
                           {"window", s.window},
                           {"rope", s.rope},
                           {"types", s.types},
                           {"tied_head", s.tied_head},
                           {"parameters", s.parameters},
                           {"file_bytes", s.file_bytes},
                           {"weight_bytes", s.weight_bytes},
                           {"tokenizer", s.tokenizer}};
  if (!s.unsupported.empty()) j["unsupported"] = s.unsupported;
  for (int context : a.contexts)
    for (const char* type : kTypes) j["kv_bytes"][std::to_string(context)][type] = s.kv_bytes(context, type);
  if (a.metadata)
    for (const auto& [key, value] : s.metadata) j["metadata"][key] = value;
  if (a.tensors) j["tensors"] = tensor_list(s.tensors);
  write_out(j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string tensor_lines(const std::vector<TensorSummary>& tensors) {
  std::string out = "\ntensors\n";
  for (const auto& t : tensors)
    out += fmt::format("  {:<32}{:<6}{:<18}{:>12}\n", t.name, t.type, shape_text(t.shape), bytes_text(t.bytes));
  return out;
}

// Prints what a draft must agree with, in the form of drafts.json.
int print_target(const std::string& model) {
  const DraftTarget t = draft_target(model);
  const nlohmann::ordered_json j{{"architecture", t.architecture},
                                 {"layers", t.layers},
                                 {"width", t.width},
                                 {"vocab", t.vocab},
                                 {"vocabulary", t.vocabulary}};
  return write_out(j.dump(2) + "\n") ? 0 : 1;
}

int print_head(const HeadSummary& s, const InspectArgs& a) {
  if (a.json) {
    nlohmann::ordered_json j{{"path", s.path},
                             {"kind", s.kind},
                             {"layers", s.layers},
                             {"heads", s.heads},
                             {"width", s.width},
                             {"target_width", s.target_width},
                             {"vocab", s.vocab},
                             {"draft_vocab", s.draft_vocab},
                             {"context", s.context},
                             {"reads", s.reads},
                             {"own_embedding", s.own_embedding},
                             {"own_output", s.own_output},
                             {"types", s.types},
                             {"parameters", s.parameters},
                             {"file_bytes", s.file_bytes},
                             {"weight_bytes", s.weight_bytes}};
    if (a.tensors) j["tensors"] = tensor_list(s.tensors);
    return write_out(j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n") ? 0 : 1;
  }
  std::string out;
  const auto line = [&](const char* what, const std::string& value) { out += fmt::format("{:<14}{}\n", what, value); };
  line("folder", s.path);
  line("format", fmt::format("{} head, safetensors, {}", s.kind, bytes_text(s.file_bytes)));
  line("parameters", fmt::format("{:.1f} M", double(s.parameters) / 1e6));
  line("layers", s.heads > 1 ? fmt::format("{} heads of {} residual blocks, width {}", s.heads, s.layers, s.width)
                             : fmt::format("{} of width {}", s.layers, s.width));
  line("target", fmt::format("width {}, {} tokens; reads {}", s.target_width, s.vocab, s.reads));
  const auto whose = [](bool own) { return own ? "its own" : "the target's"; };
  line("vocabulary",
       fmt::format("{} tokens; embedding {}, output {}", s.draft_vocab, whose(s.own_embedding), whose(s.own_output)));
  if (s.context > 0) line("context", fmt::format("{} tokens trained", s.context));
  line("tensors", fmt::format("{} ({}), {}", s.tensors.size(), s.types, bytes_text(s.weight_bytes)));
  if (a.tensors) out += tensor_lines(s.tensors);
  return write_out(out) ? 0 : 1;
}

// Says what each rank of a job would hold and send.
int print_plan(const std::string& path, const InspectArgs& a) {
  const RankPlan plan = plan_ranks(path, a.ranks, a.split, a.kv_type, a.weight_type);
  if (a.json) {
    nlohmann::ordered_json j{{"path", path}, {"split", a.split}, {"ranks", nlohmann::ordered_json::array()}};
    for (const RankPart& p : plan.parts)
      j["ranks"].push_back({{"rank", p.rank},
                            {"first_layer", p.first_layer},
                            {"layers", p.layers},
                            {"first_kv_head", p.first_kv_head},
                            {"kv_heads", p.kv_heads},
                            {"weight_bytes", p.weight_bytes},
                            {"table_bytes", p.table_bytes},
                            {"kv_bytes_per_token", p.kv_bytes_per_token},
                            {"messages_per_token", p.messages},
                            {"sent_bytes_per_token", p.sent_bytes}});
    return write_out(j.dump(2) + "\n") ? 0 : 1;
  }
  std::string out = fmt::format("{} ranks by {}\n\n", a.ranks, a.split);
  out += "rank    layers  KV heads     weights   table (mapped)   KV per token   sent per token\n";
  const auto range = [](int first, int count) {
    return count == 0 ? std::string("none") : fmt::format("{}-{}", first, first + count - 1);
  };
  for (const RankPart& p : plan.parts)
    out += fmt::format("{:>4}{:>10}{:>10}{:>12}{:>17}{:>15}{:>9} in {:>4}\n", p.rank, range(p.first_layer, p.layers),
                       range(p.first_kv_head, p.kv_heads), bytes_text(p.weight_bytes), bytes_text(p.table_bytes),
                       bytes_text(p.kv_bytes_per_token), bytes_text(p.sent_bytes), p.messages);
  return write_out(out) ? 0 : 1;
}

int run(InspectArgs& a) {
  const std::string path = a.file.empty() ? a.model : a.file;
  if (a.ranks > 0) return print_plan(path.empty() ? default_model_path() : path, a);
  if (a.target) return print_target(path);
  if (is_head(path)) return print_head(inspect_head(path), a);
  const ModelSummary s = inspect(path);
  const bool runs = s.unsupported.empty();
  if (!runs) a.contexts.clear();  // the memory of a model that cannot run is not known
  else if (a.contexts.empty()) a.contexts = {s.context};
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
  if (!runs) line("not supported", s.unsupported);
  line("architecture", fmt::format("{}, {:.1f} M parameters", s.architecture, double(s.parameters) / 1e6));
  if (runs || s.layers) line("layers", fmt::format("{} of width {}, feed-forward {}", s.layers, s.width, s.ffn));
  if (runs || s.heads)
    line("attention", fmt::format("{} heads of {}, {} KV heads{}", s.heads, s.head_dim, s.kv_heads,
                                  s.window ? fmt::format(", window {}", s.window) : ""));
  if (runs) line("rope", s.rope);
  if (runs || s.context) line("context", fmt::format("{} tokens trained", s.context));
  const char* head = !runs ? "" : s.tied_head ? ", head tied to the embedding" : ", head separate";
  line("vocabulary", fmt::format("{}{}", s.vocab, head));
  line("tokenizer", s.tokenizer);
  line("tensors", fmt::format("{} ({}), {}", s.tensors.size(), s.types, bytes_text(s.weight_bytes)));
  if (runs) out += "\nmemory for a context of        weights          KV       total\n";
  for (int context : a.contexts)
    for (const char* type : kTypes) {
      const size_t kv = s.kv_bytes(context, type);
      out += fmt::format("  {:>8} tokens, KV {:<6}{:>12}{:>12}{:>12}\n", context, type, bytes_text(s.weight_bytes),
                         bytes_text(kv), bytes_text(s.weight_bytes + kv));
    }
  if (a.metadata) {
    out += "\nmetadata\n";
    for (const auto& [key, value] : s.metadata) out += fmt::format("  {} = {}\n", key, value);
  }
  if (a.tensors) out += tensor_lines(s.tensors);
  return write_out(out) ? 0 : 1;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto args = std::make_shared<InspectArgs>();
  app.add_option("FILE", args->file, "model file or folder, or the folder of a draft head");
  add_model_flag(app, args->model);
  app.add_option("-c,--ctx-size", args->contexts, "contexts to show memory for (default: the trained one)")
      ->delimiter(',');
  app.add_option("--ranks", args->ranks, "show what each of so many ranks would hold and send")
      ->check(CLI::Range(1, 64));
  app.add_option("--split", args->split, "with --ranks: divided by layers or columns")
      ->check(CLI::IsMember({"layers", "columns"}))
      ->capture_default_str();
  app.add_option("--kv-type", args->kv_type, "with --ranks: type of the KV cache (default: bf16)");
  app.add_option("--weight-type", args->weight_type,
                 "with --ranks and a folder that has config.json only: type of the weights (default: bf16)");
  app.add_flag("--tensors", args->tensors, "list every tensor");
  app.add_flag("--metadata", args->metadata, "list the file's metadata");
  app.add_flag("--target", args->target, "print what a draft must agree with, as in drafts.json");
  app.add_flag("--json", args->json, "print JSON");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
