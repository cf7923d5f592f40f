// Presets against the numbers of the papers, settings against their own stated ranges, and the combinations that are
// refused against a second statement of the rules.
#include "speculative/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <regex>
#include <set>

#include "speculative/draft/medusa_paths.h"
#include "setting_error.h"

namespace sx {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::set_error;
using testing::with_model;

std::map<std::string, std::string> values_of(const SpecConfig& config) {
  std::map<std::string, std::string> values;
  for (const SettingInfo& info : setting_infos()) values[info.name] = setting_value(config, info.name);
  return values;
}

TEST(Presets, HaveTheNumbersOfThePapers) {
  const std::map<std::string, std::map<std::string, std::string>> expected = {
      {"off", {{"drafter", "none"}}},
      {"sd", {{"drafter", "model"}, {"tree", "chain"}, {"nodes", "5"}, {"depth", "5"}}},
      {"specinfer",
       {{"drafter", "model"}, {"tree", "static"}, {"widths", "1,1,3,1,1,1,1,1"}, {"nodes", "20"}, {"depth", "8"}}},
      {"opt-tree",
       {{"drafter", "model"}, {"tree", "opt-tree"}, {"nodes", "50"}, {"threshold", "0.7"}, {"depth", "10"}}},
      {"eagle2-tree", {{"drafter", "model"}, {"tree", "eagle2"}, {"nodes", "59"}, {"topk", "10"}, {"depth", "8"}}},
      {"eagle1",
       {{"drafter", "model"},
        {"tree", "static"},
        {"nodes", "25"},
        {"depth", "5"},
        {"paths",
         "0;1;2;3;0,0;0,1;0,2;1,0;1,1;2,0;2,1;3,0;0,0,0;0,0,1;0,0,2;0,1,0;0,1,1;0,2,0;0,2,1;1,0,0;"
         "0,0,0,0;0,0,0,1;0,0,0,2;0,0,0,0,0;0,0,0,0,1"}}},
      {"eagle2", {{"drafter", "model"}, {"tree", "eagle2"}, {"nodes", "59"}, {"topk", "10"}, {"depth", "8"}}},
      {"eagle3", {{"drafter", "model"}, {"tree", "eagle2"}, {"nodes", "59"}, {"topk", "10"}, {"depth", "8"}}},
      {"medusa", {{"drafter", "model"}, {"tree", "static"}, {"widths", ""}, {"nodes", "63"}, {"depth", "4"}}},
      {"longspec",
       {{"drafter", "model"},
        {"tree", "eagle2"},
        {"nodes", "68"},
        {"topk", "16"},
        {"depth", "5"},
        {"cache", "full"},
        {"window", "-1"}}},
      {"specextend",
       {{"drafter", "model"},
        {"tree", "opt-tree"},
        {"nodes", "50"},
        {"threshold", "0.7"},
        {"depth", "10"},
        {"cache", "retrieval"},
        {"positions", "compact"},
        {"budget", "1024"},
        {"chunk", "32"},
        {"interval", "4"},
        {"sink", "4"},
        {"recent", "64"},
        {"layers", "auto"}}},
      {"specextend-eagle3",
       {{"drafter", "model"},
        {"tree", "eagle2"},
        {"nodes", "59"},
        {"topk", "10"},
        {"depth", "8"},
        {"cache", "retrieval"},
        {"budget", "1024"},
        {"chunk", "32"},
        {"interval", "4"}}},
      {"dflash",
       {{"drafter", "model"}, {"tree", "best-first"}, {"nodes", "32"}, {"depth", "16"}, {"decay", "1"}, {"topk", "8"}}},
      {"mtp", {{"drafter", "mtp"}, {"tree", "opt-tree"}, {"nodes", "16"}, {"depth", "4"}, {"cache", "full"}}},
      {"specextend-mtp", {{"drafter", "mtp"}, {"nodes", "16"}, {"cache", "retrieval"}, {"positions", "compact"}}},
      {"streamingllm",
       {{"drafter", "model"},
        {"tree", "chain"},
        {"nodes", "5"},
        {"depth", "5"},
        {"cache", "streaming"},
        {"positions", "compact"},
        {"budget", "1024"},
        {"sink", "4"}}},
      {"specexec",
       {{"drafter", "model"},
        {"tree", "best-first"},
        {"nodes", "64"},
        {"beams", "32"},
        {"topk", "16"},
        {"decay", "0.95"},
        {"depth", "32"}}},
      {"sequoia", {{"drafter", "model"}, {"tree", "sequoia"}, {"nodes", "64"}, {"depth", "8"}}},
      {"suffix",
       {{"drafter", "suffix"},
        {"nodes", "32"},
        {"depth", "32"},
        {"min-prob", "0.1"},
        {"match-max", "64"},
        {"factor", "1"},
        {"offset", "0"}}},
      {"ngram", {{"drafter", "ngram"}, {"tree", "chain"}, {"nodes", "10"}, {"ngram-min", "1"}, {"ngram-max", "3"}}},
      {"self-skip", {{"drafter", "self"}, {"tree", "chain"}, {"nodes", "5"}, {"skip", "0.45"}, {"exit", "0"}}},
      {"self-exit", {{"drafter", "self"}, {"tree", "chain"}, {"nodes", "6"}, {"exit", "8"}}},
      {"magicdec",
       {{"drafter", "self"},
        {"tree", "chain"},
        {"nodes", "4"},
        {"skip", "0"},
        {"cache", "streaming"},
        {"budget", "1024"}}},
      {"rapid",
       {{"drafter", "self"},
        {"tree", "chain"},
        {"nodes", "10"},
        {"cache", "retrieval"},
        {"budget", "4096"},
        {"interval", "1048576"}}},
      {"staged", {{"drafter", "model"}, {"tree", "chain"}, {"nodes", "8"}, {"inner", "suffix"}, {"inner-nodes", "6"}}},
      {"triforce",
       {{"drafter", "self"},
        {"skip", "0"},
        {"tree", "chain"},
        {"nodes", "6"},
        {"cache", "retrieval"},
        {"chunk", "8"},
        {"budget", "4096"},
        {"interval", "64"},
        {"inner", "model"},
        {"inner-nodes", "6"},
        {"inner-budget", "256"}}},
      {"fuse",
       {{"drafter", "fuse"},
        {"fuse-model", "model"},
        {"fuse-index", "suffix"},
        {"tree", "best-first"},
        {"nodes", "32"}}},
      {"auto",
       {{"drafter", "fuse"},
        {"fuse-model", "model"},
        {"fuse-index", "suffix"},
        {"tree", "best-first"},
        {"cache", "retrieval"},
        {"controller", "on"},
        {"nodes", "32"}}},
      {"self",
       {{"drafter", "fuse"},
        {"fuse-model", "self"},
        {"fuse-index", "suffix"},
        {"tree", "best-first"},
        {"self-weights", "auto"},
        {"skip", "0"},
        {"cache", "verified"},
        {"positions", "original"},
        {"share", "0.05"},
        {"nodes", "32"},
        {"depth", "8"}}},
      {"partial",
       {{"drafter", "self"},
        {"tree", "chain"},
        {"nodes", "16"},
        {"inner", "suffix"},
        {"inner-nodes", "15"},
        {"self-weights", "own"},
        {"cache", "verified"}}},
      {"self-suffix",
       {{"drafter", "fuse"},
        {"fuse-model", "self"},
        {"fuse-index", "suffix"},
        {"tree", "best-first"},
        {"nodes", "32"}}},
  };
  size_t seen = 0;
  for (const PresetInfo& info : preset_infos()) {
    SCOPED_TRACE(info.name);
    const SpecConfig config = preset_config(info.name);
    ASSERT_TRUE(expected.contains(info.name));
    ++seen;
    for (const auto& [name, value] : expected.at(info.name)) EXPECT_EQ(setting_value(config, name), value) << name;
    EXPECT_EQ(config.preset, info.name);
    EXPECT_EQ(config.needs_model(), info.needs_draft);
    EXPECT_EQ(config.on(), info.name != std::string("off"));
    EXPECT_EQ(setting_value(config, "accept"), "match");
    if (!expected.at(info.name).contains("cache")) { EXPECT_EQ(setting_value(config, "cache"), "full"); }
    EXPECT_EQ(setting_value(config, "allow-lossy"), "off");
    EXPECT_GT(std::string(info.what).size(), 10u);
    EXPECT_NO_THROW(check_config(with_model(config)));
  }
  EXPECT_EQ(seen, expected.size());
}

TEST(Presets, MedusaHasATreeForAnyNumberOfHeads) {
  for (const int heads : {1, 2, 3, 4, 5, 10, 64}) {
    const auto paths = medusa_paths(heads);
    EXPECT_EQ(paths.size(), heads == 1 ? 10u : 63u);
    const std::set<std::vector<int>> all(paths.begin(), paths.end());
    EXPECT_EQ(all.size(), paths.size());
    size_t depth = 0;
    for (auto path : paths) {
      depth = std::max(depth, path.size());
      if (path.back() > 0) {
        --path.back();
        EXPECT_TRUE(all.contains(path)) << "a lower rank without the one above it";
        ++path.back();
      }
      path.pop_back();
      EXPECT_TRUE(path.empty() || all.contains(path));
    }
    EXPECT_LE(int(depth), heads);
    EXPECT_GE(int(depth), std::min(heads, 4));
    EXPECT_EQ(paths[0], std::vector<int>{0});
  }
  const SpecConfig preset = preset_config("medusa");
  EXPECT_EQ(preset.tree.paths, medusa_paths(kMedusaHeads));
  EXPECT_EQ(preset.tree.nodes, int(preset.tree.paths.size()));
}

TEST(Presets, UnknownNamesListTheKnown) {
  EXPECT_THAT(error_of([] { preset_config("hydra"); }),
              AllOf(HasSubstr("'hydra'"), HasSubstr("opt-tree"), HasSubstr("suffix")));
  EXPECT_NE(error_of([] { preset_config(""); }), "");
  EXPECT_NE(error_of([] { preset_config("SD"); }), "");
}

TEST(Settings, NamesAreThoseOfTheDocumentation) {
  std::vector<std::string> names;
  for (const SettingInfo& info : setting_infos()) {
    names.push_back(info.name);
    EXPECT_EQ(std::string(info.what).find('\n'), std::string::npos);
  }
  EXPECT_THAT(
      names, ::testing::UnorderedElementsAre(
                 "drafter", "fuse-model", "fuse-index", "inner", "inner-nodes", "inner-budget", "tree", "nodes",
                 "depth", "topk", "threshold", "beams", "decay", "widths", "paths", "rates", "accept", "epsilon",
                 "alpha", "margin", "ngram-min", "ngram-max", "match-max", "factor", "offset", "min-prob", "store",
                 "store-file", "self-weights", "skip", "skip-layers", "exit", "cache", "positions", "budget", "share",
                 "chunk", "interval", "sink", "recent", "window", "layers", "cost-model", "controller", "defer-prefill",
                 "couple", "allow-lossy", "draft-model", "draft-kv-type"));
  EXPECT_THAT(set_error("node", "5"), AllOf(HasSubstr("'node'"), HasSubstr("nodes")));
  EXPECT_NE(error_of([] { setting_value({}, "--spec-nodes"); }), "");
}

// Each setting states its range in its own line; its ends pass and what lies beyond does not.
TEST(Settings, RangesHoldToTheirEnds) {
  const std::regex range("(.*): a (whole )?number from (-?[0-9.]+) to ([0-9.]+)");
  int numbers = 0;
  for (const SettingInfo& info : setting_infos()) {
    std::cmatch match;
    if (!std::regex_match(info.what, match, range)) continue;
    ++numbers;
    SCOPED_TRACE(info.name);
    const bool whole = match[2].matched;
    const double least = std::stod(match[3]), most = std::stod(match[4]), step = whole ? 1 : 0.001;
    const auto text = [&](double value) {
      return whole ? fmt::format("{}", int(value)) : fmt::format("{}", float(value));
    };
    for (double inside : {least, most, least + step, most - step}) {
      SpecConfig config;
      EXPECT_NO_THROW(apply_setting(config, info.name, text(inside))) << inside;
      EXPECT_EQ(setting_value(config, info.name), text(inside));
    }
    std::vector<std::string> wrong = {text(least - step),
                                      text(most + step),
                                      "",
                                      " ",
                                      "x",
                                      "nan",
                                      "-nan",
                                      "inf",
                                      "-inf",
                                      "1e99",
                                      "99999999999999999999",
                                      "-99999999999999999999",
                                      "0x4",
                                      "--4",
                                      "4,4",
                                      "4 ",
                                      " 4",
                                      "+4",
                                      "4x",
                                      std::string("4\0", 2),
                                      "٤",
                                      "1e",
                                      "."};
    if (whole) wrong.insert(wrong.end(), {"4.0", "4.5", "4e0", "1e2"});
    for (const std::string& value : wrong) {
      const std::string error = set_error(info.name, value);
      EXPECT_THAT(error, AllOf(HasSubstr(info.name), HasSubstr(match[3].str() + " to " + match[4].str()))) << value;
      if (value.size() == 1 && value != " ") { EXPECT_THAT(error, HasSubstr("'" + value + "'")); }
    }
  }
  EXPECT_EQ(numbers, 27);
}

TEST(Settings, ChoicesTakeExactlyTheirWords) {
  const std::map<std::string, std::vector<std::string>> words = {
      {"drafter", {"none", "model", "self", "ngram", "suffix", "fuse"}},
      {"fuse-model", {"model", "self"}},
      {"fuse-index", {"suffix", "ngram"}},
      {"self-weights", {"own", "q4_0", "auto"}},
      {"inner", {"none", "suffix", "ngram", "model"}},
      {"tree", {"chain", "static", "sequoia", "eagle2", "opt-tree", "best-first"}},
      {"accept", {"match", "chain", "block", "specinfer", "no-replacement", "traversal", "typical", "margin"}},
      {"cache", {"full", "window", "streaming", "retrieval", "once", "quest", "snap", "prune", "random", "verified"}},
      {"positions", {"compact", "original"}},
      {"cost-model", {"on", "off"}},
      {"defer-prefill", {"on", "off"}},
      {"couple", {"on", "off"}},
      {"allow-lossy", {"on", "off"}},
      {"draft-kv-type", {"", "f32", "f16", "bf16", "q8_0", "q4_1", "/f16", "q8_0/", "q8_0/q4_0", "q4_0"}}};
  std::vector<std::string> all = {"yes", "true", "1", "Match", "match ", "q4_0", "auto", "?", "kMatch"};
  for (const auto& [name, list] : words) all.insert(all.end(), list.begin(), list.end());
  for (const auto& [name, list] : words)
    for (const std::string& word : all) {
      SpecConfig config;
      const bool known = std::find(list.begin(), list.end(), word) != list.end();
      const std::string error = error_of([&] { apply_setting(config, name, word); });
      EXPECT_EQ(error.empty(), known) << name << " " << word;
      if (known) EXPECT_EQ(setting_value(config, name), word);
      else EXPECT_THAT(error, AllOf(HasSubstr(name), HasSubstr("'" + word + "'"), HasSubstr(list.back())));
    }
}

TEST(Settings, Lists) {
  SpecConfig config;
  apply_setting(config, "skip-layers", "3,5,7");
  EXPECT_EQ(config.self.layers, (std::vector<int>{3, 5, 7}));
  apply_setting(config, "skip-layers", "");
  EXPECT_TRUE(config.self.layers.empty());
  apply_setting(config, "rates", "0.6,0.1,0");
  EXPECT_EQ(config.tree.rates, (std::vector<double>{0.6, 0.1, 0}));
  apply_setting(config, "paths", "0;0,0;1;0,2,5");
  EXPECT_EQ(config.tree.paths, (std::vector<std::vector<int>>{{0}, {0, 0}, {1}, {0, 2, 5}}));
  EXPECT_EQ(setting_value(config, "paths"), "0;0,0;1;0,2,5");
  EXPECT_EQ(config.tree.nodes, 5) << "a chain's numbers stay";
  for (const char* wrong :
       {",", "1,", ",1", "1,,2", "1;2", "1, 2", "a", "-1", "0", "1.5", "512", "300,300", "99999999999999"})
    EXPECT_THAT(set_error("widths", wrong), HasSubstr("widths")) << wrong;
  for (const char* wrong : {";", "0;", ";0", "0;;1", ",", "0,", "0,;1", "a", "-1", "511", "0 ;1"})
    EXPECT_THAT(set_error("paths", wrong), HasSubstr("paths")) << wrong;
  for (const char* wrong : {"0.5,", "1.1", "-0.1", "nan", "0.5;0.1", "inf"})
    EXPECT_THAT(set_error("rates", wrong), HasSubstr("rates")) << wrong;
  std::string many = "1";
  for (int i = 0; i < 600; ++i) many += ",1";
  for (const char* name : {"widths", "paths", "rates", "skip-layers"}) EXPECT_NE(set_error(name, many), "") << name;
}

// The nodes of a static tree are counted by building it.
TEST(Settings, StaticTreesKnowTheirSize) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> widths(1 + random() % 6);
    for (int& width : widths) width = 1 + int(random() % 4);
    std::vector<std::vector<int>> level = {{}}, nodes;
    for (int width : widths) {
      std::vector<std::vector<int>> next;
      for (const auto& node : level)
        for (int rank = 0; rank < width; ++rank) {
          next.push_back(node);
          next.back().push_back(rank);
        }
      nodes.insert(nodes.end(), next.begin(), next.end());
      level = std::move(next);
    }
    const std::string text = fmt::format("{}", fmt::join(widths, ","));
    SpecConfig config = preset_config("specinfer");
    if (nodes.size() > 511) {
      EXPECT_THAT(error_of([&] { apply_setting(config, "widths", text); }), HasSubstr("511"));
      EXPECT_EQ(values_of(config), values_of(preset_config("specinfer"))) << "a refused value changes nothing";
      continue;
    }
    apply_setting(config, "widths", text);
    EXPECT_EQ(config.tree.nodes, int(nodes.size())) << text;
    EXPECT_EQ(config.tree.depth, int(widths.size())) << text;
    // The same tree node by node, in any order.
    std::shuffle(nodes.begin(), nodes.end(), random);
    std::string paths;
    for (const auto& path : nodes) paths += fmt::format("{}{}", paths.empty() ? "" : ";", fmt::join(path, ","));
    SpecConfig by_paths = preset_config("specinfer");
    apply_setting(by_paths, "paths", paths);
    EXPECT_EQ(by_paths.tree.nodes, int(nodes.size())) << paths;
    EXPECT_EQ(by_paths.tree.depth, int(widths.size())) << paths;
    EXPECT_NO_THROW(check_config(with_model(by_paths)));
  }
}

TEST(Settings, DepthOfAChainFollowsItsLength) {
  SpecConfig config = preset_config("sd");
  apply_setting(config, "nodes", "12");
  EXPECT_EQ(config.tree.depth, 12);
  apply_setting(config, "nodes", "3");
  EXPECT_EQ(config.tree.depth, 3);
  apply_setting(config, "depth", "2");
  EXPECT_EQ(config.tree.nodes, 3);
  apply_setting(config, "nodes", "9");
  EXPECT_EQ(config.tree.depth, 2) << "a depth of its own stays";
  config = preset_config("specexec");
  apply_setting(config, "nodes", "200");
  EXPECT_EQ(config.tree.depth, 32) << "trees keep theirs";
}

// Writing all settings of a random configuration and reading them into a fresh one gives the same.
TEST(Settings, RoundTrip) {
  const std::map<std::string, std::vector<std::string>> samples = {
      {"widths", {"", "2,2,2", "1,5"}},
      {"paths", {"", "0;1;0,3"}},
      {"rates", {"", "0.123456789012345,0.1"}},
      {"skip-layers", {"", "0,2,1000"}},
      {"draft-model", {"", "a b/ü.gguf", "-"}},
      {"threshold", {"0.3", "0.333333343"}},
      {"nodes", {"1", "17", "511"}},
      {"depth", {"1", "8"}},
      {"decay", {"0.9", "1"}},
      {"skip", {"0", "0.1", "0.7"}},
      {"tree", {"chain", "static", "sequoia", "eagle2", "best-first"}},
      {"drafter", {"model", "self", "fuse"}},
      {"accept", {"block", "typical"}},
      {"cost-model", {"on", "off"}},
      {"exit", {"0", "12"}},
      {"cache", {"full", "retrieval", "snap"}},
      {"positions", {"compact", "original"}},
      {"budget", {"16", "777"}},
      {"window", {"-1", "0", "64"}},
      {"layers", {"auto", "last", "all", "-2,0"}},
      {"draft-kv-type", {"", "q8_0", "q8_0/q4_1"}}};
  std::mt19937 random(2);
  const auto presets = preset_infos();
  for (int round = 0; round < 500; ++round) {
    SpecConfig config = preset_config(presets[random() % presets.size()].name);
    for (const SettingInfo& info : setting_infos()) {
      const auto sample = samples.find(info.name);
      if (sample != samples.end() && random() % 2)
        apply_setting(config, info.name, sample->second[random() % sample->second.size()]);
    }
    SpecConfig copy;
    for (const SettingInfo& info : setting_infos()) apply_setting(copy, info.name, setting_value(config, info.name));
    ASSERT_EQ(values_of(copy), values_of(config));
  }
}

// A draw that is not in the tree would bias rules without replacement.
TEST(Check, GapsInPaths) {
  for (const char* rule : {"match", "specinfer", "no-replacement", "traversal"}) {
    SpecConfig config = with_model(preset_config("sd"));
    apply_setting(config, "tree", "static");
    apply_setting(config, "accept", rule);
    apply_setting(config, "paths", "1;0;0,1;0,0;1,0");
    EXPECT_NO_THROW(check_config(config)) << rule;
    const bool biased = rule == std::string("no-replacement") || rule == std::string("traversal");
    for (const auto& [paths, words] :
         {std::pair{"0;2", "2 but not 1"}, {"1", "1 but not 0"}, {"0;0,1", "0,1 but not 0,0"}}) {
      apply_setting(config, "paths", paths);
      if (biased) EXPECT_THAT(error_of([&] { check_config(config); }), AllOf(HasSubstr(rule), HasSubstr(words)));
      else EXPECT_NO_THROW(check_config(config)) << rule;
    }
  }
}

// Every drafter, tree and rule, with and without consent: allowed exactly where this says so.
TEST(Check, Combinations) {
  const std::vector<std::string> drafters = {"model", "self", "ngram", "suffix", "fuse"},
                                 trees = {"chain", "static", "sequoia", "eagle2", "opt-tree", "best-first"},
                                 rules = {"match",          "chain",     "block",   "specinfer",
                                          "no-replacement", "traversal", "typical", "margin"};
  const auto in = [](const std::string& word, std::initializer_list<const char*> list) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  int allowed = 0;
  for (const auto& drafter : drafters)
    for (const auto& tree : trees)
      for (const auto& rule : rules)
        for (bool consent : {false, true}) {
          SpecConfig config = preset_config("sd");
          apply_setting(config, "drafter", drafter);
          apply_setting(config, "tree", tree);
          if (tree == "static") apply_setting(config, "widths", "2,2");
          if (tree == "sequoia") apply_setting(config, "rates", "0.6,0.2");
          apply_setting(config, "accept", rule);
          config.allow_lossy = consent;
          bool good = true;
          if (drafter == "ngram") good = tree == "chain";
          if (drafter == "suffix") good = tree == "best-first";
          if (in(rule, {"chain", "block"})) good = good && in(drafter, {"model", "self"}) && tree == "chain";
          if (in(rule, {"specinfer", "no-replacement", "traversal"}))
            good = good && in(drafter, {"model", "self"}) && in(tree, {"chain", "static", "sequoia"});
          if (in(rule, {"typical", "margin"})) good = good && consent;
          const std::string error = error_of([&] { check_config(with_model(config)); });
          ASSERT_EQ(error.empty(), good) << drafter << " " << tree << " " << rule << " " << consent << ": " << error;
          if (!good) { EXPECT_TRUE(error.find(drafter) != error.npos || error.find(rule) != error.npos) << error; }
          allowed += good;
        }
  EXPECT_GT(allowed, 50);
}

TEST(Check, DraftModels) {
  for (const PresetInfo& info : preset_infos()) {
    SpecConfig config = preset_config(info.name);
    const std::string without = error_of([&] { check_config(config); });
    config.draft_model = "small.gguf";
    const std::string with = error_of([&] { check_config(config); });
    if (info.needs_draft) {
      EXPECT_THAT(without, AllOf(HasSubstr(info.name), HasSubstr("-md"), HasSubstr("suffix")));
      EXPECT_EQ(with, "");
    } else {
      EXPECT_EQ(without, "");
      EXPECT_THAT(with, AllOf(HasSubstr(info.name), HasSubstr("small.gguf"), HasSubstr("sd")));
    }
  }
  SpecConfig config = preset_config("suffix");
  config.draft_kv_type = "q8_0";
  EXPECT_THAT(error_of([&] { check_config(config); }), HasSubstr("draft-kv-type"));
}

TEST(Check, NumbersThatCameInAnotherWay) {
  const auto error_with = [](auto change, const char* preset = "suffix") {
    SpecConfig config = with_model(preset_config(preset));
    change(config);
    return error_of([&] { check_config(config); });
  };
  EXPECT_EQ(error_with([](SpecConfig&) {}), "");
  EXPECT_THAT(error_with([](SpecConfig& c) { c.tree.nodes = 512; }), HasSubstr("nodes"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.tree.nodes = 0; }), HasSubstr("nodes"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.index.min_prob = std::nanf(""); }), HasSubstr("min-prob"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.draft_kv_type = "q4_K"; }), HasSubstr("draft-kv-type"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.draft_kv_type = "f16/q4_0/f16"; }), HasSubstr("draft-kv-type"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.accept.kind = AcceptKind(99); }), HasSubstr("accept"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.fuse_model = DrafterKind::kNgram; }), HasSubstr("fuse-model"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.index.ngram_min = 4; }, "ngram"), HasSubstr("ngram-min"));
  EXPECT_EQ(error_with([](SpecConfig& c) { c.index.ngram_min = 4; }), "") << "not a number of this drafter";
  EXPECT_THAT(error_with([](SpecConfig& c) { c.self.layers = {3}; }, "self-exit"), HasSubstr("skip-layers"));
  EXPECT_EQ(error_with([](SpecConfig& c) { c.self.layers = {3}; }, "self-skip"), "");
  EXPECT_EQ(error_with([](SpecConfig& c) { c.self.weights = SelfWeights::kQ4_0; }, "self-skip"), "");
  EXPECT_THAT(error_with([](SpecConfig& c) { c.self.weights = SelfWeights::kAuto; }, "suffix"),
              HasSubstr("self-weights"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.tree.widths = {2}; }, "sd"), HasSubstr("widths"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.tree.rates = {0.5}; }, "opt-tree"), HasSubstr("sequoia"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.tree.rates = {0.9, 0.9}; }, "sequoia"), HasSubstr("rates"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.tree.paths = {{0, 0}}; }, "specinfer"), HasSubstr("paths"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.cache.budget = 15; }, "specextend"), HasSubstr("budget"));
  EXPECT_THAT(error_with([](SpecConfig& c) { c.cache.window = -2; }, "specextend"), HasSubstr("window"));
}

}  // namespace
}  // namespace sx
