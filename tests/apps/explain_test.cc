// The page and the JSON of `specextend explain`, from data without a model: escaping, structure, numbers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "cli/explain_page.h"

namespace sx::cli {
namespace {

constexpr const char* kEvil = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\xE2\x80\xA8\x01\xFF";

// Three rounds: a tree of which two tokens are accepted, a plain step, and a draft that is refused at once.
Explanation example() {
  Explanation e;
  e.version = "1", e.model = "/folder/m<b>.gguf", e.draft_model = "d\"&.gguf", e.method = "specextend",
  e.backend = "cpu";
  e.settings_json = R"({"cache": "retrieval", "chunk": 4, "name<i>": "</table>"})";
  e.tokens = {11, 12, 13, 14, 15};
  e.pieces = {" one", kEvil, "\n", " <four>", " five"};
  for (const auto& piece : e.pieces) e.text += piece;
  e.reason = FinishReason::kLength;
  e.timings = {20, 0, 5, 10.0, 50.0};
  ExplainRound tree;
  tree.drafted = 7, tree.verified = 5, tree.accepted = 2;
  tree.tokens = {10, 21, 11, 12, 22, 23};
  tree.texts = {"pending", "no1", " one", kEvil, "no2", "no3"};
  tree.parents = {-1, 0, 0, 2, 2, 3};
  tree.path = {0, 2, 3};
  tree.times = {1, 2, 3, 4, 5, 6};
  tree.refreshes = 1;
  ExplainRound plain;
  plain.tokens = {13}, plain.texts = {"\n"}, plain.parents = {-1}, plain.path = {0};
  plain.times.verify = 2.5;
  plain.refreshes = 1;
  ExplainRound refused;
  refused.drafted = refused.verified = 1;
  refused.tokens = {14, 30}, refused.texts = {" <four>", "wrong"}, refused.parents = {-1, 0}, refused.path = {0};
  refused.refreshes = 2;
  e.rounds = {tree, plain, refused};
  e.refreshes = {{1, 0, 20, {{0, 4}, {8, 12}, {16, 20}}}, {2, 2, 24, {{0, 4}, {12, 13}, {20, 24}}}};
  e.chunk = 4, e.sink = 2, e.recent = 4, e.prompt_tokens = 20;
  e.chunks = {"first ", kEvil, "third ", "fourth ", "fifth ", "made ", "!"};
  place_rounds(e);
  return e;
}

// A checker for the HTML the page is made of: tags balance, attributes are quoted, characters are known. Fills in the
// names and ids seen; the text between tags is unescaped and collected.
struct Checker {
  std::multiset<std::string> tags;
  std::set<std::string> ids, links;
  std::string text;

  void check(const std::string& page) {
    static const std::set<std::string> kEmpty = {"meta", "input", "path", "polyline"};
    static const std::regex kTag(R"(<(/?)([a-z][a-z0-9]*)((?: [a-zA-Z-]+(?:="[^"<>]*")?)*)(/?)>)");
    static const std::regex kId(R"( id="([^"]*)\")"), kLink(R"( href="#([^"]*)\")"), kHandler(R"( on[a-z]+=)");
    std::vector<std::string> open;
    size_t at = page.find('\n') + 1;  // behind the doctype
    while (at < page.size()) {
      if (page[at] != '<') {
        const size_t end = std::min(page.find('<', at), page.size());
        text += page.substr(at, end - at);
        at = end;
        continue;
      }
      std::smatch m;
      const auto begin = page.begin() + static_cast<ptrdiff_t>(at);
      ASSERT_TRUE(std::regex_search(begin, page.end(), m, kTag, std::regex_constants::match_continuous))
          << page.substr(at, 80);
      const std::string name = m[2], attributes = m[3];
      at += size_t(m.length());
      ASSERT_FALSE(std::regex_search(attributes, kHandler)) << attributes;
      if (m[1].length()) {
        ASSERT_FALSE(open.empty()) << name;
        ASSERT_EQ(open.back(), name) << page.substr(at, 80);
        open.pop_back();
        continue;
      }
      tags.insert(name);
      std::smatch found;
      if (std::regex_search(attributes, found, kId)) {
        ASSERT_TRUE(ids.insert(found[1]).second) << "twice: " << found[1];
      }
      if (std::regex_search(attributes, found, kLink)) links.insert(found[1]);
      if (!kEmpty.count(name)) open.push_back(name);
      if (name == "script" || name == "style") {
        at = page.find("</" + name + ">", at);
        ASSERT_NE(at, std::string::npos);
      }
    }
    ASSERT_TRUE(open.empty()) << open.back();
  }
};

bool valid_utf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) { return false; }
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

TEST(Explain, TextIsEscaped) {
  EXPECT_EQ(html_text("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_text("\n\t"), "\n\t");
  EXPECT_EQ(html_text(std::string("\0\x1B\r\x7F", 4)), "\u2400\u241B\u240D\u2421");
  EXPECT_EQ(html_text("\u00E9\u20AC\U0001F600"), "\u00E9\u20AC\U0001F600");
  // Broken, overlong, surrogate, too large, cut off.
  EXPECT_EQ(html_text("\xFF|\xC0\xAF|\xE0\x80\xAF|\xED\xA0\x80|\xF4\x90\x80\x80|\xE2\x82"),
            "\uFFFD|\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD");
}

TEST(Explain, RangesAreRuns) {
  const std::vector<int32_t> cells = {0, 1, 2, 5, 7, 8};
  EXPECT_EQ(ranges_of(cells), (std::vector<std::pair<int, int>>{{0, 3}, {5, 6}, {7, 9}}));
  EXPECT_TRUE(ranges_of({}).empty());
}

TEST(Explain, RefreshesThatLeaveNothingOutAreForgotten) {
  Explanation e = example();
  e.refreshes[0].ranges = {{0, 20}};
  drop_whole_refreshes(e);
  EXPECT_EQ(e.refreshes.size(), 2u);
  e.refreshes[1].ranges = {{0, 24}};
  drop_whole_refreshes(e);
  EXPECT_TRUE(e.refreshes.empty());
}

TEST(Explain, RoundsShareTheTokens) {
  Explanation e = example();
  EXPECT_EQ(e.rounds[0].first, 0);
  EXPECT_EQ(e.rounds[0].made, 3);
  EXPECT_EQ(e.rounds[1].first, 3);
  EXPECT_EQ(e.rounds[1].made, 1);
  EXPECT_EQ(e.rounds[2].first, 4);
  EXPECT_EQ(e.rounds[2].made, 1);
  EXPECT_DOUBLE_EQ(e.rounds[2].mean, 2.0 / 3);
  // The last round is cut short by an end of text that was drafted.
  e.rounds.resize(1);
  e.tokens.resize(1);
  place_rounds(e);
  EXPECT_EQ(e.rounds[0].made, 1);
  // The running mean forgets.
  e.rounds.assign(size_t(kMeanRounds) + 1, ExplainRound());
  e.rounds[0].accepted = 4;
  place_rounds(e);
  EXPECT_DOUBLE_EQ(e.rounds[size_t(kMeanRounds) - 1].mean, 4.0 / kMeanRounds);
  EXPECT_DOUBLE_EQ(e.rounds[size_t(kMeanRounds)].mean, 0);
}

TEST(Explain, PageIsWellFormedAndInjectsNothing) {
  const std::string page = explain_page(example());
  Checker c;
  c.check(page);
  EXPECT_TRUE(valid_utf8(page));
  EXPECT_EQ(c.tags.count("script"), 1u);
  EXPECT_EQ(c.tags.count("img"), 0u);
  EXPECT_EQ(c.tags.count("svg"), 3u);
  EXPECT_EQ(count(page, "alert(1)"), count(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_NE(page.find("m&lt;b&gt;.gguf"), std::string::npos);
  EXPECT_NE(page.find("d&quot;&amp;.gguf"), std::string::npos);
  EXPECT_EQ(page.find("folder"), std::string::npos);
  EXPECT_NE(page.find("name&lt;i&gt;"), std::string::npos);
  for (const char* outside : {"http:", "https:", "url(", "@import", "src="})
    EXPECT_EQ(count(page, outside), outside == std::string("src=") ? count(page, "&lt;img src=") : 0u) << outside;
  // What the script looks for is there, and links lead somewhere.
  for (const char* id : {"panel", "chart", "table", "told", "strip", "chunks", "refreshes", "where", "read"})
    EXPECT_TRUE(c.ids.count(id)) << id;
  EXPECT_EQ(c.links, (std::set<std::string>{"r1", "r2", "r3"}));
  for (const auto& link : c.links) EXPECT_TRUE(c.ids.count(link)) << link;
}

TEST(Explain, PageTellsWhatHappened) {
  const std::string page = explain_page(example());
  // The accepted tokens by depth, then the target's own, with what it refused before it.
  EXPECT_NE(page.find("<a class=\"r\" href=\"#r1\"><span class=\"d1\"> one</span><span class=\"d2\">"),
            std::string::npos);
  EXPECT_NE(page.find("<a class=\"r\" href=\"#r2\"> &lt;four&gt;</a><a class=\"r\" href=\"#r3\"><s>wrong</s> five</a>"),
            std::string::npos);
  EXPECT_NE(
      page.find("<p>The target chose <span class=\"tok\"> five</span> instead of <s class=\"tok\">wrong</s>.</p>"),
      std::string::npos);
  EXPECT_NE(page.find("Nothing drafted: a plain step."), std::string::npos);
  // The tree of the first round: the accepted branch first, each node once.
  const size_t first = page.find("id=\"r1\""), second = page.find("id=\"r2\"");
  const std::string tree = page.substr(first, second - first);
  EXPECT_LT(tree.find("<b class=\"d1\"> one</b>"), tree.find("<s>no1</s>"));
  EXPECT_EQ(count(tree, "<s>"), 3u);
  EXPECT_EQ(count(tree, "<b class="), 2u);
  // Sink, chosen and recent are told apart in the strip.
  EXPECT_NE(page.find("<path class=\"sink\" d=\"M0 0h2v1h-2zM0 1h2v1h-2z\"/>"), std::string::npos);
  EXPECT_NE(page.find("<path class=\"get\" d=\"M2 0h2v1h-2zM8 0h4v1h-4zM2 1h2v1h-2zM12 1h1v1h-1z\"/>"),
            std::string::npos);
  EXPECT_NE(page.find("<path class=\"recent\" d=\"M16 0h4v1h-4zM20 1h4v1h-4z\"/>"), std::string::npos);
  EXPECT_NE(page.find("<td>12</td><td class=\"t\">0–3, 8–11, 16–19</td>"), std::string::npos);
  EXPECT_NE(page.find("<td>9</td><td class=\"t\">0–3, 12, 20–23</td>"), std::string::npos);
  // Each chunk's text once.
  EXPECT_EQ(count(page, "fourth "), 1u);
  EXPECT_EQ(count(page, "Plain step"), 0u);
}

TEST(Explain, PlainDecodingAndNothingAtAll) {
  Explanation e = example();
  e.compared = true, e.plain_ms = 20,
  e.difference = "rule block keeps the distribution, not the bytes: texts may differ";
  EXPECT_NE(explain_page(e).find("with drafts 2.00 times as fast; rule block keeps the distribution"),
            std::string::npos);
  EXPECT_NE(explain_json(e).find("\"difference\":\"rule block keeps"), std::string::npos);
  e.equal = true;
  EXPECT_NE(explain_page(e).find("with drafts 2.00 times as fast; the same tokens"), std::string::npos);
  e.refreshes.clear(), e.chunks.clear();
  Checker whole;
  whole.check(explain_page(e));
  EXPECT_FALSE(whole.ids.count("strip"));
  EXPECT_NE(whole.text.find("No part of the text was left out"), std::string::npos);
  Checker none;
  none.check(explain_page({}));
  EXPECT_FALSE(none.ids.count("chart"));
  EXPECT_TRUE(nlohmann::json::parse(explain_json({}))["settings"].is_null());
}

TEST(Explain, JsonSumsUpAndIsSafeInAScript) {
  const Explanation e = example();
  const std::string text = explain_json(e);
  EXPECT_TRUE(valid_utf8(text));
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(text.find("\xE2\x80\xA8"), std::string::npos);
  const auto j = nlohmann::json::parse(text);
  EXPECT_EQ(j["pieces"][3], " <four>");
  EXPECT_NE(j["pieces"][1].get<std::string>().find("\u2028"), std::string::npos);
  const auto& s = j["summary"];
  EXPECT_EQ(s["drafted"], 8);
  EXPECT_EQ(s["verified"], 6);
  EXPECT_EQ(s["accepted"], 2);
  EXPECT_EQ(s["rounds"], 3);
  EXPECT_EQ(s["drafted_rounds"], 2);
  EXPECT_EQ(s["refreshes"], 2);
  EXPECT_EQ(s["accepted_per_round"], 1.0);
  EXPECT_EQ(s["tokens_per_round"], 2.0);
  EXPECT_EQ(s["ms"]["verify"], 4.5);
  EXPECT_EQ(s["ms"]["draft"], 1.0);
  int made = 0;
  for (const auto& r : j["rounds"]) {
    EXPECT_EQ(r["first"], made);
    made += r["made"].get<int>();
  }
  EXPECT_EQ(made, s["tokens"]);
  EXPECT_EQ(j["rounds"][0]["path"], nlohmann::json({0, 2, 3}));
  EXPECT_EQ(j["refreshes"][1]["ranges"], nlohmann::json({{0, 4}, {12, 13}, {20, 24}}));
  EXPECT_EQ(j["chunks"]["texts"].size(), 7u);
  EXPECT_FALSE(s.contains("plain_ms_per_token"));
}

// A long document: 128K tokens, a refresh in every second of 500 rounds.
TEST(Explain, PagesOfLongDocumentsStaySmall) {
  Explanation e = example();
  const ExplainRound tree = e.rounds[0];
  e.rounds.assign(500, tree);
  e.tokens.assign(1500, 7);
  e.pieces.assign(1500, " word");
  e.chunk = 32, e.prompt_tokens = 131072;
  e.chunks.assign(4144, std::string(140, 'x'));
  e.refreshes.clear();
  for (int i = 0; i < 250; ++i) {
    ExplainRefresh r{i + 1, 2 * i, 131072 + 6 * i, {}};
    for (int k = 0; k < 64; ++k) r.ranges.emplace_back(2048 * k + 32 * (i % 50), 2048 * k + 32 * (i % 50) + 32);
    e.refreshes.push_back(r);
  }
  place_rounds(e);
  EXPECT_LT(explain_page(e).size(), 3u << 20);
}

}  // namespace
}  // namespace sx::cli
