// The table of speculation settings: name, meaning, reader and writer of each. The command line (--spec
// NAME:key=value), the API (SpecOptions::settings) and the documents all use these names. Values are parsed strictly;
// an error names the setting, the given text and the accepted values.
#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "kv/types.h"
#include "speculative/config/config.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

constexpr int kMostNodes = kMaxTreeNodes - 1;  // drafted: without node 0
constexpr int kMostLayers = 1024;              // of a model: more than any has

struct Setting {
  const char* name;
  std::string what;  // meaning and values, one line
  std::function<void(SpecConfig&, std::string_view)> set;
  std::function<std::string(const SpecConfig&)> get;
};

[[noreturn]] void refuse(const char* name, std::string_view text, std::string_view expected) {
  fail("speculation setting {}: '{}' given, expected {}", name, printable(text, 60), expected);
}

// The whole text as a number within [least, most], which no NaN is.
template <class T>
std::optional<T> number_in(std::string_view text, T least, T most) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || !(value >= least && value <= most)) return std::nullopt;
  return value;
}

// "1,1,3"; an empty text is an empty list. Nothing when a piece is not a number of the range or there are too many.
template <class T>
std::optional<std::vector<T>> list_in(std::string_view text, T least, T most) {
  std::vector<T> list;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const auto value = number_in(text.substr(0, comma), least, most);
    if (!value || comma + 1 == text.size() || list.size() == size_t(kMaxTreeNodes)) return std::nullopt;
    list.push_back(*value);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return list;
}

template <class T>
std::string range_text(T least, T most) {
  return fmt::format("{} from {} to {}", std::is_integral_v<T> ? "a whole number" : "a number", least, most);
}

// `field` gives the member of a configuration, const or not.
template <class T, class Field>
Setting number(const char* name, const char* what, T least, T most, Field field) {
  const std::string values = range_text(least, most);
  return {name, fmt::format("{}: {}", what, values),
          [=](SpecConfig& config, std::string_view text) {
            const auto value = number_in(text, least, most);
            if (!value) refuse(name, text, values);
            field(config) = *value;
          },
          [=](const SpecConfig& config) { return fmt::format("{}", field(config)); }};
}

template <class T, class Field>
Setting list(const char* name, const char* what, T least, T most, Field field) {
  const std::string values = fmt::format("a list with commas, each {}", range_text(least, most));
  return {name, fmt::format("{}: {}", what, values),
          [=](SpecConfig& config, std::string_view text) {
            auto value = list_in(text, least, most);
            if (!value) refuse(name, text, values);
            field(config) = std::move(*value);
          },
          [=](const SpecConfig& config) { return fmt::format("{}", fmt::join(field(config), ",")); }};
}

template <class T>
using Names = std::vector<std::pair<const char*, T>>;

template <class T, class Field>
Setting choice(const char* name, const char* what, const Names<T>& names, Field field) {
  std::string values;
  for (const auto& [word, value] : names) {
    if (!values.empty()) values += &word == &names.back().first ? " or " : ", ";
    values += *word ? word : "nothing";
  }
  return {name, fmt::format("{}: {}", what, values),
          [=](SpecConfig& config, std::string_view text) {
            for (const auto& [word, value] : names)
              if (text == word) return void(field(config) = value);
            refuse(name, text, values);
          },
          [=](const SpecConfig& config) -> std::string {
            for (const auto& [word, value] : names)
              if (field(config) == value) return word;
            return "?";  // not a value of the enumeration: apply_setting refuses it
          }};
}

template <class Field>
Setting flag(const char* name, const char* what, Field field) {
  return choice<bool>(name, what, {{"on", true}, {"off", false}}, field);
}

// Nodes and depth of the tree that has these children per node, level by level; no nodes: more than a tree may have.
std::pair<int, int> shape_of_widths(const std::vector<int>& widths) {
  int64_t level = 1, nodes = 0;
  for (int width : widths) {
    level *= width;
    nodes += level;
    if (nodes > kMostNodes) return {0, 0};
  }
  return {int(nodes), int(widths.size())};
}

// The same for rank paths: each is a node (check_tree_config sees to those on the way).
std::pair<int, int> shape_of_paths(const std::vector<std::vector<int>>& paths) {
  size_t depth = 0;
  for (const auto& path : paths) depth = std::max(depth, path.size());
  return {int(paths.size()), int(depth)};
}

// A static tree has the nodes and the depth of its shape.
void follow_shape(TreeConfig& tree, std::pair<int, int> shape, const char* name, std::string_view text) {
  if (shape.first == 0) refuse(name, text, fmt::format("a tree of at most {} nodes", kMostNodes));
  if (tree.kind == TreeKind::kStatic) std::tie(tree.nodes, tree.depth) = shape;
}

Setting widths_setting() {
  Setting setting = list(
      "widths", "static: children per node, level by level", 1, kMostNodes,
      [](auto& c) -> auto& { return c.tree.widths; });
  setting.set = [read = setting.set](SpecConfig& config, std::string_view text) {
    SpecConfig changed = config;
    read(changed, text);
    if (!text.empty()) follow_shape(changed.tree, shape_of_widths(changed.tree.widths), "widths", text);
    config = std::move(changed);
  };
  return setting;
}

Setting paths_setting() {
  constexpr const char* kName = "paths";
  constexpr const char* kValues = "at most 511 nodes with semicolons, each as ranks with commas: 0;0,0;1";
  const auto set = [](SpecConfig& config, std::string_view text) {
    SpecConfig changed = config;
    changed.tree.paths.clear();
    for (std::string_view rest = text; !rest.empty();) {
      const size_t end = rest.find(';');
      auto path = list_in(rest.substr(0, end), 0, kMostNodes - 1);
      if (!path || path->empty() || end + 1 == rest.size() || changed.tree.paths.size() == size_t(kMostNodes))
        refuse(kName, text, kValues);
      changed.tree.paths.push_back(std::move(*path));
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    }
    if (!text.empty()) follow_shape(changed.tree, shape_of_paths(changed.tree.paths), kName, text);
    config = std::move(changed);
  };
  const auto get = [](const SpecConfig& config) {
    std::string text;
    for (const auto& path : config.tree.paths)
      text += fmt::format("{}{}", text.empty() ? "" : ";", fmt::join(path, ","));
    return text;
  };
  return {kName, fmt::format("static: instead of widths, {}", kValues), set, get};
}

// The length of a chain is its depth: a depth that was not set apart goes along.
Setting nodes_setting() {
  Setting setting = number(
      "nodes", "drafted tokens of a tree; of a chain: its length", 1, kMostNodes,
      [](auto& c) -> auto& { return c.tree.nodes; });
  setting.set = [read = setting.set](SpecConfig& config, std::string_view text) {
    TreeConfig& tree = config.tree;
    const bool together = tree.depth == tree.nodes;
    read(config, text);
    if (tree.kind == TreeKind::kChain) tree.depth = together ? tree.nodes : std::min(tree.depth, tree.nodes);
  };
  return setting;
}

Setting draft_model_setting() {
  return {"draft-model", "the model that drafts: a GGUF file or a Hugging Face folder, also of a draft head",
          [](SpecConfig& config, std::string_view text) { config.draft_model = text; },
          [](const SpecConfig& config) { return config.draft_model; }};
}

Setting draft_kv_type_setting() {
  const char* const values = "f32, f16, bf16, q8_0, q4_0 or q4_1, or two of them for keys and values (q8_0/q4_0)";
  return {"draft-kv-type", fmt::format("type of the draft model's KV cache, nothing for the fastest: {}", values),
          [values](SpecConfig& config, std::string_view text) {
            try {
              kv_types_from_name(text, DType::kF32);
            } catch (const Error&) { refuse("draft-kv-type", text, values); }
            config.draft_kv_type = text;
          },
          [](const SpecConfig& config) { return config.draft_kv_type; }};
}

// Beside the drafters there are, those that a program has registered.
Setting drafter_setting() {
  using D = DrafterKind;
  Setting setting = choice<D>(
      "drafter", "who drafts",
      {{"none", D::kNone},
       {"model", D::kModel},
       {"mtp", D::kMtp},
       {"self", D::kSelf},
       {"ngram", D::kNgram},
       {"suffix", D::kSuffix},
       {"fuse", D::kFuse}},
      [](auto& c) -> auto& { return c.drafter; });
  setting.set = [known = setting.set](SpecConfig& config, std::string_view text) {
    config.drafter_name = is_registered_drafter(text) ? text : "";
    if (config.drafter_name.empty()) known(config, text);
    else config.drafter = D::kNamed;
  };
  setting.get = [known = setting.get](const SpecConfig& config) {
    return config.drafter == D::kNamed ? config.drafter_name : known(config);
  };
  return setting;
}

std::vector<Setting> drafter_settings() {
  using D = DrafterKind;
  return {
      drafter_setting(),
      choice<D>(
          "fuse-model", "fuse: the drafter with a distribution",
          {{"model", D::kModel}, {"mtp", D::kMtp}, {"self", D::kSelf}}, [](auto& c) -> auto& { return c.fuse_model; }),
      choice<D>(
          "fuse-index", "fuse: the drafter that copies", {{"suffix", D::kSuffix}, {"ngram", D::kNgram}},
          [](auto& c) -> auto& { return c.fuse_index; }),
      choice<D>(
          "inner", "staged drafting: what drafts for the drafter, to save passes of its model",
          {{"none", D::kNone}, {"suffix", D::kSuffix}, {"ngram", D::kNgram}, {"model", D::kModel}},
          [](auto& c) -> auto& { return c.inner; }),
      number(
          "inner-nodes", "inner: tokens it drafts at most", 1, 64, [](auto& c) -> auto& { return c.inner_nodes; }),
      number(
          "inner-budget", "inner model: size of its KV cache, the first and the most recent cells", 32, 1048576,
          [](auto& c) -> auto& { return c.inner_budget; }),
  };
}

std::vector<Setting> tree_settings() {
  using T = TreeKind;
  return {
      choice<T>(
          "tree", "how a model's candidates become a tree",
          {{"chain", T::kChain},
           {"static", T::kStatic},
           {"sequoia", T::kSequoia},
           {"eagle2", T::kEagle2},
           {"opt-tree", T::kOptTree},
           {"best-first", T::kBestFirst}},
          [](auto& c) -> auto& { return c.tree.kind; }),
      widths_setting(),
      paths_setting(),
      list(
          "rates", "sequoia: acceptance rate of the first, second, ... child", 0.0, 1.0,
          [](auto& c) -> auto& { return c.tree.rates; }),
      nodes_setting(),
      number(
          "depth", "deepest level of a tree", 1, kMostNodes, [](auto& c) -> auto& { return c.tree.depth; }),
      number(
          "topk", "eagle2, best-first: children per node", 1, 128, [](auto& c) -> auto& { return c.tree.topk; }),
      number(
          "threshold", "opt-tree: least expected gain of a further level, in tokens", 0.0f, 10.0f,
          [](auto& c) -> auto& { return c.tree.threshold; }),
      number(
          "beams", "best-first: nodes expanded at a time", 1, kMostNodes,
          [](auto& c) -> auto& { return c.tree.beams; }),
      number(
          "decay", "best-first: factor on a path's probability per level", 0.01f, 1.0f,
          [](auto& c) -> auto& { return c.tree.decay; }),
  };
}

std::vector<Setting> accept_settings() {
  using A = AcceptKind;
  return {
      choice<A>(
          "accept", "acceptance rule: which drafted tokens become text",
          {{"match", A::kMatch},
           {"chain", A::kChain},
           {"block", A::kBlockwise},
           {"specinfer", A::kSpecInfer},
           {"no-replacement", A::kNoReplacement},
           {"traversal", A::kTraversal},
           {"typical", A::kTypical},
           {"margin", A::kMargin}},
          [](auto& c) -> auto& { return c.accept.kind; }),
      number(
          "epsilon", "typical: probability that always passes", 0.0f, 1.0f,
          [](auto& c) -> auto& { return c.accept.epsilon; }),
      number(
          "alpha", "typical: factor on exp(-entropy)", 0.0f, 1.0f, [](auto& c) -> auto& { return c.accept.alpha; }),
      number(
          "margin", "margin: share of the first choice's probability that the second needs", 0.0f, 1.0f,
          [](auto& c) -> auto& { return c.accept.margin; }),
  };
}

Setting store_file_setting() {
  return {"store-file", "suffix: a text file that is searched, too",
          [](SpecConfig& config, std::string_view text) { config.index.store_file = text; },
          [](const SpecConfig& config) { return config.index.store_file; }};
}

// Numbers of single drafters.
std::vector<Setting> own_settings() {
  return {
      number(
          "ngram-min", "ngram: shortest match", 1, 32, [](auto& c) -> auto& { return c.index.ngram_min; }),
      number(
          "ngram-max", "ngram: longest match, looked for first", 1, 32,
          [](auto& c) -> auto& { return c.index.ngram_max; }),
      number(
          "match-max", "suffix: longest match that is looked for", 1, 1024,
          [](auto& c) -> auto& { return c.index.match_max; }),
      number(
          "factor", "suffix: drafted tokens per token of the match, at most", 0.0f, 100.0f,
          [](auto& c) -> auto& { return c.index.factor; }),
      number(
          "offset", "suffix: drafted tokens added to that limit", 0.0f, 511.0f,
          [](auto& c) -> auto& { return c.index.offset; }),
      number(
          "min-prob", "suffix: paths below this probability are not followed", 0.0f, 1.0f,
          [](auto& c) -> auto& { return c.index.min_prob; }),
      number(
          "store", "suffix: tokens of earlier responses that are searched, too (0: none)", 0, 1 << 22,
          [](auto& c) -> auto& { return c.index.store; }),
      store_file_setting(),
      choice<SelfWeights>(
          "self-weights",
          "self: weights it drafts with; q4_0 is a copy in 4 bits, auto takes it for targets of 8 and more",
          {{"own", SelfWeights::kOwn}, {"q4_0", SelfWeights::kQ4_0}, {"auto", SelfWeights::kAuto}},
          [](auto& c) -> auto& { return c.self.weights; }),
      number(
          "skip", "self: share of the layers' halves left out, spread evenly", 0.0f, 0.95f,
          [](auto& c) -> auto& { return c.self.skip; }),
      list(
          "skip-layers", "self: layers left out, instead of a share", 0, kMostLayers - 1,
          [](auto& c) -> auto& { return c.self.layers; }),
      number(
          "exit", "self: all layers from this one on are left out, instead of a share (0: no)", 0, kMostLayers - 1,
          [](auto& c) -> auto& { return c.self.exit; }),
  };
}

// "auto", "last", "all", or numbers.
Setting score_layers_setting() {
  constexpr const char* kName = "layers";
  const auto set = [](SpecConfig& config, std::string_view text) {
    const bool named = text == "all" || text == "auto";
    const auto value = list_in(named ? "" : text == "last" ? "-1" : text, -kMostLayers, kMostLayers - 1);
    if (!value || (value->empty() && !named))
      refuse(kName, text, "auto, last, all, or layers with commas (negative: from the end)");
    config.cache.all_layers = text == "all";
    config.cache.layers = *value;
  };
  const auto get = [](const SpecConfig& config) {
    return config.cache.all_layers       ? "all"
           : config.cache.layers.empty() ? "auto"
                                         : fmt::format("{}", fmt::join(config.cache.layers, ","));
  };
  return {
      kName,
      "retrieval, prune: layers of the target that score the text: auto (the two that find a repetition best), last, all, or a list with commas",
      set, get};
}

// The name of a policy in the registry.
Setting cache_setting() {
  constexpr const char* kName = "cache";
  const auto set = [](SpecConfig& config, std::string_view text) {
    const CachePolicy* policy = find_cache_policy(text);
    if (!policy) refuse(kName, text, cache_policy_names());
    config.cache.policy = policy;
  };
  const auto get = [](const SpecConfig& config) -> std::string { return config.cache.policy->name; };
  return {kName, fmt::format("cells of the text a draft works on: {}", cache_policy_names()), set, get};
}

// Which cells of the text a draft model or head works on.
std::vector<Setting> cache_settings() {
  using P = CachePositions;
  return {
      cache_setting(),
      choice<P>(
          "positions",
          "where the draft sees them: counted among themselves and within its trained length, or in the text",
          {{"compact", P::kCompact}, {"original", P::kOriginal}}, [](auto& c) -> auto& { return c.cache.positions; }),
      number(
          "budget", "cells of a bounded cache after a refresh", 16, 1 << 20,
          [](auto& c) -> auto& { return c.cache.budget; }),
      number(
          "share", "share of the text that a bounded cache holds where that is more than its budget", 0.0f, 1.0f,
          [](auto& c) -> auto& { return c.cache.share; }),
      number(
          "chunk", "cells chosen together", 1, 4096, [](auto& c) -> auto& { return c.cache.chunk; }),
      number(
          "interval", "rounds from one refresh to the next", 1, 1 << 20,
          [](auto& c) -> auto& { return c.cache.interval; }),
      number(
          "sink", "first cells that are always chosen", 0, 1 << 20, [](auto& c) -> auto& { return c.cache.sink; }),
      number(
          "recent", "last cells that are always chosen", 0, 1 << 20, [](auto& c) -> auto& { return c.cache.recent; }),
      number(
          "window", "cells the draft looks back over in its own prompt pass (0: all, -1: what suits the cache)", -1,
          1 << 20, [](auto& c) -> auto& { return c.cache.window; }),
      score_layers_setting(),
  };
}

std::vector<Setting> other_settings() {
  return {
      flag(
          "cost-model", "limit trees to the size that pays by measured times (rule match only)",
          [](auto& c) -> auto& { return c.cost_model; }),
      flag(
          "controller", "for a request alone, decide before each draft whether the model drafts and how deep",
          [](auto& c) -> auto& { return c.controller; }),
      flag(
          "defer-prefill", "the draft reads a long prompt after the first token, in chunks, and does not delay it",
          [](auto& c) -> auto& { return c.lazy; }),
      flag(
          "couple", "when the target samples, rank draft candidates with the target's own noise",
          [](auto& c) -> auto& { return c.couple; }),
      flag(
          "allow-lossy", "allow rules that change the text", [](auto& c) -> auto& { return c.allow_lossy; }),
      draft_model_setting(),
      draft_kv_type_setting(),
  };
}

// What others depend on comes first: applied in this order, it does not matter in which they were given.
const std::vector<Setting>& settings() {
  static const std::vector<Setting> table = [] {
    std::vector<Setting> all;
    for (auto make : {drafter_settings, tree_settings, accept_settings, own_settings, cache_settings, other_settings})
      for (Setting& setting : make()) all.push_back(std::move(setting));
    return all;
  }();
  return table;
}

const Setting& setting_named(std::string_view name) {
  std::string names;
  for (const Setting& setting : settings()) {
    if (name == setting.name) return setting;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", setting.name);
  }
  fail("speculation has no setting '{}'; there are {}", printable(name, 60), names);
}

}  // namespace

std::span<const SettingInfo> setting_infos() {
  static const std::vector<SettingInfo> infos = [] {
    std::vector<SettingInfo> list;
    for (const Setting& setting : settings()) list.push_back({setting.name, setting.what.c_str()});
    return list;
  }();
  return infos;
}

void apply_setting(SpecConfig& config, std::string_view name, std::string_view value) {
  setting_named(name).set(config, value);
}

std::string setting_value(const SpecConfig& config, std::string_view name) { return setting_named(name).get(config); }

}  // namespace sx
