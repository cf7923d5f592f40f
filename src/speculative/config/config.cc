// The presets, methods of the literature with the numbers they were published with, and what does not fit together.
// Every preset accepts with `match`, whatever rule its paper used: text never changes unless it is asked for.
#include "speculative/config/config.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/printable.h"
#include "speculative/draft/medusa_paths.h"

namespace sx {
namespace {

struct Preset {
  PresetInfo info;
  void (*fill)(SpecConfig&);
};

void fill_tree(SpecConfig& c, DrafterKind drafter, TreeKind tree, int nodes, int depth) {
  c.drafter = drafter;
  c.tree.kind = tree;
  c.tree.nodes = nodes;
  c.tree.depth = depth;
}

void fill_best_first(SpecConfig& c, int beams, int topk) {
  c.tree.beams = beams;
  c.tree.topk = topk;
  c.tree.decay = 0.95f;
}

void fill_fuse(SpecConfig& c, DrafterKind model) {
  fill_tree(c, DrafterKind::kFuse, TreeKind::kBestFirst, 32, 32);
  fill_best_first(c, 8, 8);
  c.fuse_model = model;
}

void fill_eagle2(SpecConfig& c) {
  fill_tree(c, DrafterKind::kModel, TreeKind::kEagle2, 59, 8);
  c.tree.topk = 10;
}

// Few levels: a block was trained to look one token ahead.
void fill_mtp(SpecConfig& c) { fill_tree(c, DrafterKind::kMtp, TreeKind::kOptTree, 16, 4); }

// SpecExtend: the target's attention chooses what the draft works on.
void fill_retrieval(SpecConfig& c, TreeKind tree, int nodes, int depth) {
  fill_tree(c, DrafterKind::kModel, tree, nodes, depth);
  c.cache.policy = &cache_policy("retrieval");
}

// The target itself, whole, drafts a chain on few of its cells.
void fill_whole_self(SpecConfig& c, int nodes, const char* cache) {
  fill_tree(c, DrafterKind::kSelf, TreeKind::kChain, nodes, nodes);
  c.self.skip = 0;
  c.cache.policy = &cache_policy(cache);
}

void fill_chunks(SpecConfig& c, int chunk, int budget, int interval) {
  c.cache.chunk = chunk;
  c.cache.budget = budget;
  c.cache.interval = interval;
}

// The target itself in fewer bits, each layer and head on the chunks it has just attended to.
void fill_verified(SpecConfig& c) {
  c.self.skip = 0;
  c.self.weights = SelfWeights::kAuto;
  c.cache.policy = &cache_policy("verified");
  c.cache.positions = CachePositions::kOriginal;
  c.cache.share = 0.05f;
}

constexpr Preset kPresets[] = {
    {{"off", "plain decoding", false}, [](SpecConfig&) {}},
    {{"sd", "a draft model proposes a chain of 5 (Leviathan, Chen)", true},
     [](SpecConfig& c) { fill_tree(c, DrafterKind::kModel, TreeKind::kChain, 5, 5); }},
    {{"specinfer", "a draft model fills a tree that branches once (SpecInfer)", true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kStatic, 20, 8);
       c.tree.widths = {1, 1, 3, 1, 1, 1, 1, 1};
     }},
    {{"opt-tree", "the tree with the most expected tokens, newest level included (OPT-Tree, improved)", true},
     [](SpecConfig& c) { fill_tree(c, DrafterKind::kModel, TreeKind::kOptTree, 50, 10); }},
    {{"eagle2-tree", "EAGLE-2's dynamic tree with a draft model in place of the head", true}, fill_eagle2},
    {{"eagle1", "an EAGLE-1 head fills the fixed tree of 25 nodes it was published with", true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kStatic, 25, 5);
       c.tree.paths = {{0},
                       {1},
                       {2},
                       {3},
                       {0, 0},
                       {0, 1},
                       {0, 2},
                       {1, 0},
                       {1, 1},
                       {2, 0},
                       {2, 1},
                       {3, 0},
                       {0, 0, 0},
                       {0, 0, 1},
                       {0, 0, 2},
                       {0, 1, 0},
                       {0, 1, 1},
                       {0, 2, 0},
                       {0, 2, 1},
                       {1, 0, 0},
                       {0, 0, 0, 0},
                       {0, 0, 0, 1},
                       {0, 0, 0, 2},
                       {0, 0, 0, 0, 0},
                       {0, 0, 0, 0, 1}};
     }},
    {{"eagle2", "an EAGLE-1 head grows EAGLE-2's dynamic tree of 59 nodes", true}, fill_eagle2},
    {{"eagle3", "an EAGLE-3 head grows EAGLE-2's dynamic tree of 59 nodes", true}, fill_eagle2},
    {{"medusa", "Medusa heads fill their own fixed tree, or one of 63 nodes", true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kStatic, 63, kMedusaHeads);
       c.tree.paths = medusa_paths(kMedusaHeads);
     }},
    {{"mtp", "the MTP blocks in the target's own file grow a tree of 16 nodes (DeepSeek-V3, MiMo)", false}, fill_mtp},
    {{"longspec", "a LongSpec head, which attends to the target's own cache, grows a tree of 68 nodes", true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kEagle2, 68, 5);
       c.tree.topk = 16;
     }},
    {{"dflash", "a DFlash or DSpark drafter fills all levels in one pass, the best 32 nodes are taken (DDTree)", true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kBestFirst, 32, 16);
       fill_best_first(c, 8, 8);
       c.tree.decay = 1;
     }},
    {{"specextend", "a draft model on the chunks the target attends to grows a tree (SpecExtend)", true},
     [](SpecConfig& c) { fill_retrieval(c, TreeKind::kOptTree, 50, 10); }},
    {{"specextend-eagle3", "an EAGLE-3 head on the chunks the target attends to grows a tree (SpecExtend)", true},
     [](SpecConfig& c) {
       fill_retrieval(c, TreeKind::kEagle2, 59, 8);
       c.tree.topk = 10;
     }},
    {{"specextend-mtp", "MTP blocks on the chunks the target attends to grow a tree (SpecExtend)", false},
     [](SpecConfig& c) {
       fill_mtp(c);
       c.cache.policy = &cache_policy("retrieval");
     }},
    {{"streamingllm", "a draft model on the first and the most recent tokens proposes a chain of 5 (StreamingLLM)",
      true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kChain, 5, 5);
       c.cache.policy = &cache_policy("streaming");
     }},
    {{"specexec", "the most probable prefixes, best first (SpecExec)", true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kBestFirst, 64, 32);
       fill_best_first(c, 32, 16);
     }},
    {{"sequoia", "the best fixed tree for measured acceptance rates (Sequoia)", true},
     [](SpecConfig& c) { fill_tree(c, DrafterKind::kModel, TreeKind::kSequoia, 64, 8); }},
    {{"suffix", "continuations of the longest match in the text so far, by counts (SuffixDecoding)", false},
     [](SpecConfig& c) { fill_tree(c, DrafterKind::kSuffix, TreeKind::kBestFirst, 32, 32); }},
    {{"ngram", "copies what followed the last 3, 2 or 1 tokens before (prompt lookup)", false},
     [](SpecConfig& c) { fill_tree(c, DrafterKind::kNgram, TreeKind::kChain, 10, 10); }},
    {{"self-skip", "the target without 45% of its layers' halves drafts a chain (Draft & Verify)", false},
     [](SpecConfig& c) { fill_tree(c, DrafterKind::kSelf, TreeKind::kChain, 5, 5); }},
    {{"self-exit", "the target's first 8 layers draft a chain (LayerSkip)", false},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kSelf, TreeKind::kChain, 6, 6);
       c.self.exit = 8;
     }},
    {{"magicdec", "the target on its first and most recent tokens drafts a chain of 4 (MagicDec)", false},
     [](SpecConfig& c) { fill_whole_self(c, 4, "streaming"); }},
    {{"rapid", "the target on the chunks it attends to at the prompt's end drafts a chain of 10 (RAPID)", false},
     [](SpecConfig& c) {
       fill_whole_self(c, 10, "retrieval");
       fill_chunks(c, 128, 4096, 1 << 20);
     }},
    {{"staged", "a draft model proposes a chain of 8, a suffix automaton drafts for it (Staged SD)", true},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kModel, TreeKind::kChain, 8, 8);
       c.inner = DrafterKind::kSuffix;
     }},
    {{"triforce", "the target on the chunks it attends to drafts a chain of 6, a draft model drafts for it (TriForce)",
      true},
     [](SpecConfig& c) {
       fill_whole_self(c, 6, "retrieval");
       fill_chunks(c, 8, 4096, 64);
       c.inner = DrafterKind::kModel;
     }},
    {{"partial",
      "the target on the chunks each head attends to checks what the text's own suffixes propose (TriForce, SpecPV)",
      false},
     [](SpecConfig& c) {
       fill_tree(c, DrafterKind::kSelf, TreeKind::kChain, 16, 16);
       fill_verified(c);
       c.self.weights = SelfWeights::kOwn;
       c.inner = DrafterKind::kSuffix;
       c.inner_nodes = 15;
     }},
    {{"fuse", "one tree from a draft model and the text's own suffixes (RASD)", true},
     [](SpecConfig& c) { fill_fuse(c, DrafterKind::kModel); }},
    {{"auto", "decides in every round: draft head or model, the text's own suffixes, both, or neither, and how deep",
      true},
     [](SpecConfig& c) {
       fill_fuse(c, DrafterKind::kModel);
       c.cache.policy = &cache_policy("retrieval");
       c.controller = true;
     }},
    {{"self", "one tree from the target itself, in 4 bits where it has more, and the text's own suffixes", false},
     [](SpecConfig& c) {
       fill_fuse(c, DrafterKind::kSelf);
       c.tree.depth = 8, c.tree.beams = 2, c.tree.topk = 4;
       fill_verified(c);
     }},
    {{"self-suffix", "one tree from the target without layers and the text's own suffixes", false},
     [](SpecConfig& c) { fill_fuse(c, DrafterKind::kSelf); }},
};

// Names of the presets that do, or do not, need a draft model.
std::string preset_names(bool needs_draft) {
  std::string names;
  for (const Preset& preset : kPresets)
    if (preset.info.needs_draft == needs_draft && preset.info.name != std::string_view("off"))
      names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.info.name);
  return names;
}

// Numbers that did not come through apply_setting are held against the same ranges.
void check_ranges(const SpecConfig& config) {
  SpecConfig copy = config;
  for (const SettingInfo& info : setting_infos()) apply_setting(copy, info.name, setting_value(config, info.name));
}

void check_draft_model(const SpecConfig& config) {
  if (config.needs_model() && config.draft_model.empty())
    fail(
        "speculation {} drafts with a model and none is given: name one with -md FILE (setting draft-model), or take "
        "a preset that needs none: {}",
        config.preset, preset_names(false));
  if (!config.needs_model() && !config.draft_model.empty())
    fail("speculation {} does not use the draft model '{}': leave it out, or take a preset that uses one: {}",
         config.preset, printable(config.draft_model), preset_names(true));
  if (!config.needs_model() && !config.drafts_with_mtp() && !config.draft_kv_type.empty())
    fail("speculation {} has no draft model whose cache could be {}: leave draft-kv-type out", config.preset,
         config.draft_kv_type);
}

void check_drafter(const SpecConfig& config) {
  const auto uses = [&](DrafterKind kind) {
    return config.drafter == kind || config.inner == kind ||
           (config.drafter == DrafterKind::kFuse && (config.fuse_model == kind || config.fuse_index == kind));
  };
  if (uses(DrafterKind::kNgram) && config.index.ngram_min > config.index.ngram_max)
    fail("speculation setting ngram-min is {} and ngram-max {}: the shortest match must not be longer than the longest",
         config.index.ngram_min, config.index.ngram_max);
  if (!uses(DrafterKind::kSuffix) && (config.index.store > 0 || !config.index.store_file.empty()))
    fail("speculation setting {} belongs to drafter suffix, alone, in fuse or as inner: {} does not look texts up",
         config.index.store > 0 ? "store" : "store-file", config.preset);
  const std::string inner = setting_value(config, "inner"), drafter = setting_value(config, "drafter");
  if (config.inner != DrafterKind::kNone) {
    if (config.drafter != DrafterKind::kModel && config.drafter != DrafterKind::kSelf)
      fail(
          "speculation setting inner is {} and drafter {}: there is a model whose passes it could save with drafter model or self only",
          inner, drafter);
    if (config.inner == DrafterKind::kModel && config.drafter == DrafterKind::kModel)
      fail(
          "speculation setting inner is model and so is drafter, and there is one draft model: set inner to suffix or ngram, or drafter to self");
    if (config.tree.kind != TreeKind::kChain)
      fail(
          "speculation setting inner is {} and tree {}: a drafter inside another guesses along a chain, set tree to chain",
          inner, setting_value(config, "tree"));
  }
  const bool self = config.drafts_with(DrafterKind::kSelf);
  if (!self && config.self.weights != SelfWeights::kOwn)
    fail(
        "speculation setting self-weights is {} and {} does not draft with the target: set drafter to self, or leave "
        "it out",
        setting_value(config, "self-weights"), config.preset);
  if (self && config.self.exit > 0 && !config.self.layers.empty())
    fail("speculation settings exit {} and skip-layers exclude each other: give one of them", config.self.exit);
}

void check_cache(const SpecConfig& config) {
  const CacheConfig& cache = config.cache;
  const char* name = cache.policy->name;
  if (!cache.chooses()) return;
  if (!config.has_cache())
    fail("speculation setting cache is {} and {} has no draft model or head whose cache that could be", name,
         config.preset);
  if (config.drafts_with(DrafterKind::kSelf) && cache.reads_draft())
    fail("speculation setting cache is {}, which asks the draft's own queries, and {} drafts with the target: take {}",
         name, config.preset,
         cache_policy_names([](const CachePolicy& policy) { return policy.chooses() && !policy.reads_draft(); }));
  if (cache.each_head() && !config.drafts_with(DrafterKind::kSelf))
    fail(
        "speculation setting cache is {}, by which each head of the target chooses for itself, and {} drafts with "
        "another model: take {}",
        name, config.preset,
        cache_policy_names([](const CachePolicy& policy) { return policy.chooses() && !policy.scores.each_head; }));
  if (cache.chunk > cache.budget)
    fail("speculation setting chunk is {}, more than the budget of {}", cache.chunk, cache.budget);
}

void check_tree(const SpecConfig& config) {
  const TreeConfig& tree = config.tree;
  const std::string name = setting_value(config, "tree");
  const auto only = [&](const char* setting, bool given, const char* needed) {
    if (given && name != needed)
      fail("speculation setting {} belongs to tree {}, not to tree {}: leave it out or set tree to {}", setting, needed,
           name, needed);
  };
  only("widths", !tree.widths.empty(), "static");
  only("paths", !tree.paths.empty(), "static");
  only("rates", !tree.rates.empty(), "sequoia");
  const auto own = [&](DrafterKind drafter, TreeKind kind, const char* needed) {
    if (config.drafter == drafter && tree.kind != kind)
      fail("speculation drafter {} makes its own tree and cannot follow tree {}: set tree to {}",
           setting_value(config, "drafter"), name, needed);
  };
  own(DrafterKind::kNgram, TreeKind::kChain, "chain");
  own(DrafterKind::kSuffix, TreeKind::kBestFirst, "best-first");
  check_tree_config(tree);
}

// Draws without replacement are accepted or rejected in their order: one that is drawn and left out of the tree would
// bias the rest.
void check_gaps(const TreeConfig& tree, const std::string& rule) {
  const std::set<std::vector<int>> all(tree.paths.begin(), tree.paths.end());
  for (const std::vector<int>& path : tree.paths) {
    std::vector<int> before = path;
    if (before.empty() || before.back()-- <= 0 || all.contains(before)) continue;
    fail(
        "speculation rule {} needs a tree without gaps, and its paths have {} but not {}: add that, or take match or "
        "specinfer",
        rule, fmt::join(path, ","), fmt::join(before, ","));
  }
}

void check_rule(const SpecConfig& config) {
  const AcceptKind kind = config.accept.kind;
  if (kind == AcceptKind::kMatch) return;
  const std::string rule = setting_value(config, "accept"), drafter = setting_value(config, "drafter"),
                    tree = setting_value(config, "tree");
  if (kind == AcceptKind::kTypical || kind == AcceptKind::kMargin) {
    if (!config.allow_lossy)
      fail(
          "speculation rule {} changes the text: set allow-lossy=on if that is wanted, or take "
          "accept=match, which never does",
          rule);
    return;
  }
  if (config.drafter != DrafterKind::kModel && config.drafter != DrafterKind::kMtp &&
      config.drafter != DrafterKind::kSelf)
    fail(
        "speculation rule {} needs draws from a drafter's distribution, and drafter {} has none: take match, or drafter model, mtp "
        "or self",
        rule, drafter);
  const bool chains = kind == AcceptKind::kChain || kind == AcceptKind::kBlockwise;
  if (chains && config.tree.kind != TreeKind::kChain)
    fail(
        "speculation rule {} verifies chains, not tree {}: take match or tree chain; trees static and sequoia go with "
        "specinfer, no-replacement and traversal",
        rule, tree);
  const bool fixed = config.tree.kind == TreeKind::kChain || config.tree.kind == TreeKind::kStatic ||
                     config.tree.kind == TreeKind::kSequoia;
  if (!fixed)
    fail(
        "speculation rule {} needs a tree whose shape does not depend on the guesses, and that of tree {} does: take "
        "match, or tree chain, static or sequoia",
        rule, tree);
  const bool distinct = kind == AcceptKind::kNoReplacement || kind == AcceptKind::kTraversal;
  if (distinct && config.tree.kind == TreeKind::kStatic) check_gaps(config.tree, rule);
}

}  // namespace

std::span<const PresetInfo> preset_infos() {
  static const std::vector<PresetInfo> infos = [] {
    std::vector<PresetInfo> list;
    for (const Preset& preset : kPresets) list.push_back(preset.info);
    return list;
  }();
  return infos;
}

SpecConfig preset_config(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.info.name) continue;
    SpecConfig config;
    config.preset = name;
    preset.fill(config);
    return config;
  }
  fail("speculation has no preset '{}'; there are off, {} and with a draft model {}", printable(name, 60),
       preset_names(false), preset_names(true));
}

void check_config(const SpecConfig& config) {
  check_ranges(config);
  check_draft_model(config);
  if (!config.on()) return;
  check_drafter(config);
  check_cache(config);
  check_tree(config);
  check_rule(config);
}

}  // namespace sx
