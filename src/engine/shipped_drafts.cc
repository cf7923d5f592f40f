#include "engine/shipped_drafts.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "formats/family.h"
#include "engine/beside_program.h"
#include "engine/convert_vocabulary.h"
#include "engine/sha256.h"
#include "engine/speculation.h"
#include "engine/startup_cache.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace sx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "drafts.json";
constexpr size_t kMaxList = size_t{1} << 20;  // bytes of the list
constexpr const char* kKinds[] = {"model", "eagle1", "eagle3", "medusa", "longspec", "dflash"};

bool there_is(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// ---- the target

std::string describe(const DraftTarget& t) {
  return fmt::format("{}, {} layers of width {}, {} tokens (vocabulary {})", t.architecture, t.layers, t.width, t.vocab,
                     t.vocabulary);
}

// ---- the list

// One entry of the list, read with errors that name it.
struct Entry {
  const Json& json;
  std::string where;

  std::string text(const char* key) const {
    const auto value = json_string(json, key, where);
    if (!value || value->empty()) fail("{}: key '{}' is missing", where, key);
    return *value;
  }
  int64_t number(const char* key, int64_t most) const {
    const auto value = json_int(json, key, where);
    if (!value) fail("{}: key '{}' is missing", where, key);
    if (*value < 1 || *value > most) fail("{}: key '{}' is {}, out of range", where, key, *value);
    return *value;
  }
};

DraftTarget read_target(const Entry& in) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  DraftTarget target;
  target.architecture = in.text("architecture");
  target.layers = static_cast<int>(in.number("layers", kMost));
  target.width = static_cast<int>(in.number("width", kMost));
  target.vocab = static_cast<int>(in.number("vocab", kMost));
  target.vocabulary = in.text("vocabulary");
  return target;
}

ShippedDraft read_draft(const Entry& in, const fs::path& folder) {
  ShippedDraft draft;
  draft.name = in.text("name");
  draft.kind = in.text("kind");
  if (std::find(std::begin(kKinds), std::end(kKinds), draft.kind) == std::end(kKinds))
    fail("{}: key 'kind' is '{}'; {} are known", in.where, printable(draft.kind), fmt::join(kKinds, ", "));
  const fs::path path = in.text("path");
  if (path.is_absolute() || *path.lexically_normal().begin() == "..")
    fail("{}: key 'path' is '{}'; a path inside the folder is expected", in.where, printable(path.string()));
  draft.path = (folder / path).lexically_normal().string();
  draft.bytes = static_cast<uint64_t>(in.number("size", std::numeric_limits<int64_t>::max()));
  draft.sha256 = in.text("sha256");
  const Json* target = json_member(in.json, "target");
  if (!target || !target->is_object()) fail("{}: key 'target' is not an object", in.where);
  draft.target = read_target({*target, in.where + ", target"});
  return draft;
}

// ---- the choice

// The kinds that a method drafts with, the most fitting first. vLLM's configuration has methods of its own.
std::vector<std::string> wanted_kinds(const SpecOptions& options) {
  std::string method = options.preset;
  const std::string where = "speculative config";
  if (!options.json.empty()) method = json_string(parse_json(options.json, where), "method", where).value_or("");
  if (method == "medusa" || method == "longspec" || method == "dflash") return {method};
  if (method.ends_with("eagle3")) return {"eagle3"};  // also specextend-eagle3
  if (method == "auto") return {"eagle3", "model"};   // a head reads no prompt by itself
  if (method == "eagle" || method == "eagle1" || method == "eagle2") return {"eagle1", "eagle3"};
  return {"model"};
}

// A head reads the target's states. A model of its own only shares its tokens, though it drafts best for the target it
// was trained on.
const ShippedDraft* choose(const std::vector<ShippedDraft>& drafts, const std::vector<std::string>& kinds,
                           const DraftTarget& target) {
  for (const std::string& kind : kinds) {
    const ShippedDraft* other = nullptr;
    for (const ShippedDraft& draft : drafts) {
      if (draft.kind != kind) continue;
      if (draft.target == target) return &draft;
      if (!other && kind == "model" && draft.target.vocabulary == target.vocabulary) other = &draft;
    }
    if (other) return other;
  }
  return nullptr;
}

void check_file(const ShippedDraft& draft, StartupCache& cache) {
  std::error_code error;
  const fs::path file = draft.kind == "model" ? fs::path(draft.path) : fs::path(draft.path) / "model.safetensors";
  const auto size = fs::file_size(file, error);
  if (error)
    fail("{}: the weights of the shipped draft '{}' cannot be read: {}", file.string(), draft.name, error.message());
  if (size != draft.bytes)
    fail("{}: has {} bytes and should have {} by {}: it is damaged or another file", file.string(), size, draft.bytes,
         kList);
  // A kept result is believed when it says that all is well; a kept failure is checked again.
  if (cache.sha256(file.string()) != draft.sha256 && sha256_of_file(file.string()) != draft.sha256)
    fail("{}: its SHA-256 is not the one in {}: it is damaged or another file", file.string(), kList);
}

std::string what_would_fit(const std::vector<std::string>& kinds, const DraftTarget& target,
                           const std::vector<ShippedDraft>& drafts) {
  std::string out =
      fmt::format("no shipped draft fits: one of kind {} for {} would", fmt::join(kinds, " or "), describe(target));
  const std::string folder = shipped_drafts_folder();
  if (folder.empty()) return out + "; none are installed (SPECEXTEND_MODELS names their folder)";
  out += fmt::format("; in '{}' there {}", folder, drafts.empty() ? "are none" : drafts.size() == 1 ? "is" : "are");
  for (size_t i = 0; i < drafts.size(); ++i)
    out += fmt::format("{} {} (kind {}, for {})", i == 0 ? "" : ",", drafts[i].name, drafts[i].kind,
                       describe(drafts[i].target));
  return out;
}

}  // namespace

std::string shipped_drafts_folder() {
  if (const char* given = std::getenv("SPECEXTEND_MODELS"); given && *given) return given;
  const std::string list = fmt::format("models/{}", kList);
  return fs::path(file_beside_program(list, list)).parent_path().string();
}

std::vector<ShippedDraft> shipped_drafts() {
  const fs::path folder = shipped_drafts_folder();
  const std::string file = (folder / kList).string();
  std::vector<ShippedDraft> out;
  if (folder.empty() || !there_is(file)) return out;
  const Json list = parse_json(read_text_file(file, kMaxList), file);
  if (!list.is_array()) fail("{}: is {}; a list of drafts is expected", file, list.type_name());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}: draft {}", file, i);
    if (!list[i].is_object()) fail("{}: is {}; an object is expected", where, list[i].type_name());
    out.push_back(read_draft({list[i], where}, folder));
  }
  return out;
}

DraftTarget draft_target(const ModelFile& target, StartupCache& cache) {
  const ModelConfig& c = target.config();
  if (target.tokenizer().empty())
    fail("{}: the model has no vocabulary, so that no draft can be known to fit", target.path());
  const std::string key = build_key(target.path());
  const auto kept = cache.find("tokens", key);
  std::string vocabulary = kept && kept->is_string() ? kept->get<std::string>() : "";
  if (vocabulary.empty()) {
    ++cache.work.hashed;
    vocabulary = vocabulary_fingerprint(target.tokenizer());
    cache.keep("tokens", key, vocabulary);
  }
  return {c.family->gguf, c.layers, c.width, c.vocab, vocabulary};
}

DraftTarget draft_target(const std::string& model) {
  StartupCache nothing({});
  return draft_target(*ModelFile::open(model.empty() ? default_model_path() : model), nothing);
}

bool lacks_draft(const SpecOptions& options) {
  const SpecConfig config = configured(options);
  return config.needs_model() && config.draft_model.empty();
}

void take_shipped_draft(SpecOptions& options, const ModelFile& target, StartupCache& cache, bool self_pays) {
  if (!lacks_draft(options)) return;
  const auto without_model = [&] {  // preset auto works without a draft model, too
    const std::pair<std::string, std::string> suffix[] = {{"drafter", "suffix"}, {"cache", "full"}},
                                              self[] = {{"fuse-model", "self"}, {"self-weights", "auto"},
                                                        {"skip", "0"},          {"cache", "verified"},
                                                        {"share", "0.05"},      {"positions", "original"},
                                                        {"depth", "8"},         {"beams", "2"},
                                                        {"topk", "4"}};  // as preset self
    if (!self_pays)
      return options.settings.insert(options.settings.end(), std::begin(suffix), std::end(suffix)), void();
    options.settings.insert(options.settings.begin(), std::begin(self), std::end(self));  // what was said wins
  };
  if (options.preset == "auto" && target.tokenizer().empty()) return without_model();
  const auto kinds = wanted_kinds(options);
  const auto drafts = shipped_drafts();
  const DraftTarget wanted = draft_target(target, cache);
  if (const ShippedDraft* draft = choose(drafts, kinds, wanted)) {
    check_file(*draft, cache);
    options.draft_model = draft->path;
    return;
  }
  if (options.preset == "auto") return without_model();
  try {
    resolve(options);  // says what is missing, or what else is wrong
  } catch (const Error& error) { fail("{}\n{}", error.what(), what_would_fit(kinds, wanted, drafts)); }
}

}  // namespace sx
