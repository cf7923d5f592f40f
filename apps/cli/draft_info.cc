// `specextend draft-info`: what could draft for a model, whether it fits, the memory it takes, and how much of it is
// accepted on a short text that the program brings.
#include <fmt/format.h>
#include <specextend/drafts.h>
#include <specextend/inspect.h>
#include <specextend/specextend.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DraftInfoArgs {
  std::string model, draft;
  int tokens = 64, threads = 0;
  bool json = false, no_probe = false;
};

// A text with facts to come back to, so that a draft that looks back has something to find.
constexpr const char* kProbe =
    "The lighthouse on the northern cape was built in 1871 from grey granite that ships brought across the bay. Its first "
    "keeper, a carpenter named Elias Brandt, lived there for thirty-one years with his wife and four children. Every "
    "evening he climbed the hundred and twelve steps, trimmed the wick, wound the clockwork that turned the lens, and wrote "
    "the weather into a green book. In the winter of 1889 a storm broke the windows of the lantern room, and for two nights "
    "he turned the lens by hand. When the light was made electric in 1936, the clockwork was left in place, and visitors can "
    "still see it today. The green books fill two shelves in the museum of the harbour town. They tell of fog, of ice in the "
    "bay, of ships that came too close to the rocks, and of the day when the carpenter";

struct Candidate {
  std::string path, kind, preset, origin;  // path: empty for MTP blocks
  size_t weight_bytes = 0, cell_bytes = 0;
  std::string problem;                   // why it does not fit; empty: it does
  double per_pass = 0, first_level = 0;  // of the probe; 0: not run
};

struct KindPreset {
  const char *kind, *preset;
};
constexpr KindPreset kPresets[] = {
    {"EAGLE-1", "eagle2"}, {"EAGLE-3", "specextend-eagle3"}, {"Medusa", "medusa"},   {"LongSpec", "longspec"},
    {"DFlash", "dflash"},  {"MTP", "specextend-mtp"},        {"model", "specextend"}};

std::string preset_for(const std::string& kind) {
  for (const KindPreset& known : kPresets)
    if (kind == known.kind) return known.preset;
  return "sd";
}

// Of a long text: caches are made of whole blocks of cells.
size_t bytes_per_token(const ModelSummary& model) { return model.kv_bytes(1024, "bf16") / 1024; }

Candidate file_candidate(const std::string& path, const std::string& origin) {
  Candidate c;
  c.path = path, c.origin = origin;
  try {
    if (is_head(path)) {
      const HeadSummary head = inspect_head(path);
      c.kind = head.kind, c.weight_bytes = head.weight_bytes, c.cell_bytes = head.cell_values * 2;
    } else {
      const ModelSummary model = inspect(path);
      c.kind = "model", c.weight_bytes = model.weight_bytes, c.cell_bytes = bytes_per_token(model);
      c.problem = model.unsupported;
    }
  } catch (const Error& error) { c.problem = error.what(); }
  c.preset = preset_for(c.kind);
  return c;
}

// Blocks inside the model's own file: tensors of layers behind its last one.
std::vector<Candidate> mtp_candidate(const ModelSummary& model) {
  Candidate c;
  int blocks = 0;
  for (const TensorSummary& tensor : model.tensors) {
    int block = -1;
    if (std::sscanf(tensor.name.c_str(), "blk.%d.", &block) != 1 || block < model.layers) continue;
    c.weight_bytes += tensor.bytes;
    if (tensor.name.ends_with("nextn.eh_proj.weight")) ++blocks;
  }
  if (blocks == 0) return {};
  c.kind = "MTP", c.preset = preset_for(c.kind);
  c.origin = fmt::format("{} in the model's file", blocks == 1 ? "a block" : fmt::format("{} blocks", blocks));
  c.cell_bytes = bytes_per_token(model) / size_t(std::max(1, model.layers)) * size_t(blocks);
  return {c};
}

std::vector<Candidate> find_candidates(const DraftInfoArgs& a, const ModelSummary& model, const std::string& path) {
  if (!a.draft.empty()) return {file_candidate(a.draft, "given")};
  std::vector<Candidate> found = mtp_candidate(model);
  const DraftTarget target = draft_target(path);
  for (const ShippedDraft& draft : shipped_drafts())
    if (draft.target == target || (draft.kind == "model" && draft.target.vocabulary == target.vocabulary))
      found.push_back(file_candidate(draft.path, "shipped"));
  return found;
}

// Opens an engine with it: whether that works is whether it fits.
void probe(const DraftInfoArgs& a, const std::string& model, Candidate& c) {
  if (!c.problem.empty()) return;
  EngineOptions o;
  o.model = model, o.context = 1024, o.threads = a.threads;
  o.spec.preset = c.preset, o.spec.draft_model = c.path, o.spec.settings = {{"cost-model", "off"}};
  try {
    auto engine = Engine::open(o);
    if (a.no_probe) return;
    GenerateOptions g;
    g.max_tokens = a.tokens, g.ignore_end = true;
    g.sampling.temperature = 0, g.sampling.repeat_penalty = 1.1f;
    const GenerateResult result = engine->generate(kProbe, g);
    const SpecStats& s = result.spec;
    if (s.rounds > 0) c.per_pass = double(result.tokens.size()) / double(s.rounds);
    if (!s.tried_at_depth.empty() && s.tried_at_depth[0] > 0)
      c.first_level = double(s.accepted_at_depth[0]) / double(s.tried_at_depth[0]);
  } catch (const Error& error) { c.problem = error.what(); }
}

// What --spec should name: the candidate that was accepted most, if it gains at all; else copies from the text.
std::string advice(const std::vector<Candidate>& all, bool probed) {
  const Candidate* best = nullptr;
  for (const Candidate& c : all)
    if (c.problem.empty() && (!best || c.per_pass > best->per_pass)) best = &c;
  if (!best || (probed && best->per_pass < 1.2)) return "suffix";
  return best->preset;
}

std::string megabytes(size_t bytes) { return fmt::format("{:.1f} MB", double(bytes) / 1e6); }

std::string as_text(const std::vector<Candidate>& all, const std::string& use, bool probed) {
  std::string out;
  const auto line = [&](const char* what, const std::string& value) { out += fmt::format("{:<14}{}\n", what, value); };
  for (const Candidate& c : all) {
    line("draft", fmt::format("{} ({})", c.path.empty() ? "MTP blocks" : c.path, c.origin));
    if (!c.kind.empty()) line("kind", c.kind);
    line("fits", c.problem.empty() ? "yes" : "no: " + c.problem);
    if (c.weight_bytes > 0)
      line("memory", fmt::format("{} of weights, {:.1f} kB per token of text", megabytes(c.weight_bytes),
                                 double(c.cell_bytes) / 1e3));
    if (c.per_pass > 0)
      line("probe", fmt::format("{:.2f} tokens per pass; the first drafted token is accepted in {:.0f}% of rounds",
                                c.per_pass, 100 * c.first_level));
    if (c.problem.empty())
      line("use",
           fmt::format("--spec {}{}", c.preset, c.path.empty() || c.origin == "shipped" ? "" : " -md " + c.path));
    out += "\n";
  }
  if (all.empty()) out += "no draft: the file has no MTP blocks, and no shipped draft fits\n\n";
  return out + fmt::format("advice        --spec {}{}\n", use, probed ? "" : " (without a probe)");
}

Json as_json(const std::vector<Candidate>& all, const std::string& model, const std::string& use) {
  Json list = Json::array();
  for (const Candidate& c : all) {
    Json j{{"path", c.path.empty() ? Json() : Json(c.path)}, {"origin", c.origin}, {"kind", c.kind}};
    j["fits"] = c.problem.empty();
    if (!c.problem.empty()) j["problem"] = c.problem;
    j["preset"] = c.preset, j["weight_bytes"] = c.weight_bytes, j["bytes_per_token"] = c.cell_bytes;
    if (c.per_pass > 0) j["probe"] = {{"tokens_per_pass", c.per_pass}, {"first_level_acceptance", c.first_level}};
    list.push_back(std::move(j));
  }
  return {{"model", model}, {"drafts", list}, {"advice", use}};
}

int run(const DraftInfoArgs& a) {
  if (a.tokens < 1 || a.tokens > 512) throw Error(fmt::format("-n {}: expected 1 to 512", a.tokens));
  const ModelSummary model = inspect(a.model);
  if (!model.unsupported.empty()) throw Error(model.unsupported);
  std::vector<Candidate> all = find_candidates(a, model, a.model);
  for (Candidate& c : all) probe(a, a.model, c);
  const std::string use = advice(all, !a.no_probe);
  const std::string out = a.json ? as_json(all, a.model, use).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                                 : as_text(all, use, !a.no_probe);
  const bool refused = !a.draft.empty() && !all[0].problem.empty();
  return write_out(out) && !refused ? 0 : 1;
}

}  // namespace

Command add_draft_info(CLI::App& app) {
  auto args = std::make_shared<DraftInfoArgs>();
  add_model_flag(app, args->model);
  app.add_option("--md,--model-draft", args->draft,
                 "draft model or head (default: what the model's file and the shipped drafts have)");
  app.add_option("-n,--predict", args->tokens, "tokens of the probe, 1 to 512")->capture_default_str();
  app.add_option("-t,--threads", args->threads, "threads; 0: all cores")->capture_default_str();
  app.add_flag("--no-probe", args->no_probe, "do not generate text");
  app.add_flag("--json", args->json, "print JSON");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
