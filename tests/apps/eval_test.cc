// What `specextend eval` says about runs: scores of texts, the order of methods, results that survive an interruption,
// and what counts as a change.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/eval_data.h"
#include "cli/beside.h"
#include "cli/eval_page.h"
#include "cli/eval_suite.h"
#include "cli/eval_plots.h"
#include "cli/eval_stats.h"
#include "cli/eval_store.h"

namespace sx::cli {
namespace {

template <typename Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

EvalRun run_of(const std::string& method, const std::string& prompt, int repetition, double ms) {
  EvalRun run;
  run.cell = {method, {.prompt = prompt, .length = 0, .temperature = 0, .answer = 10, .batch = 1}};
  run.repetition = repetition;
  run.tokens = 10, run.prompt_tokens = 5, run.rounds = 5, run.accepted = 5, run.drafted_rounds = 5, run.drafted = 20;
  run.whole_ms = ms, run.decode_ms = ms / 2, run.prompt_ms = ms / 2, run.first_token_ms = ms / 2;
  run.answer = "00ff";
  return run;
}

TEST(EvalScores, RougeIsTheShareOfTheLongestCommonSubsequence) {
  EXPECT_DOUBLE_EQ(rouge_l("the cat sat", "The cat, sat!"), 1);
  EXPECT_DOUBLE_EQ(rouge_l("the cat sat on the mat", "the dog sat on a mat"), 2 * 4.0 / 12);  // the sat on mat
  EXPECT_DOUBLE_EQ(rouge_l("b a", "a b"), 0.5);                                               // order counts
  EXPECT_DOUBLE_EQ(rouge_l("", "a"), 0);
  EXPECT_DOUBLE_EQ(rouge_l("...", "!"), 1);  // no words on either side
  EXPECT_DOUBLE_EQ(rouge_l("a", "a b c"), 0.5);
  EXPECT_DOUBLE_EQ(rouge_l("größe", "gr e"), 0);  // bytes beyond ASCII are letters
}

TEST(EvalScores, ExactMatchLooksThroughCaseAndSpace) {
  EXPECT_TRUE(exact_match(" Paris\n", "paris"));
  EXPECT_TRUE(exact_match("New  York", "new\tyork"));
  EXPECT_FALSE(exact_match("Paris.", "Paris"));
  EXPECT_FALSE(exact_match("NewYork", "New York"));
  EXPECT_TRUE(exact_match("", "  "));
}

TEST(EvalScores, Median) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(EvalPlan, EveryMethodHasEveryPlaceInTheOrder) {
  constexpr size_t kMethods = 4;
  std::vector<std::set<size_t>> places(kMethods);
  for (int repetition = 0; repetition < 12; ++repetition)
    for (size_t with = 0; with < 3; ++with) {
      std::vector<size_t> order = method_order(kMethods, with, repetition);
      // Plain decoding is what the others are compared with.
      EXPECT_TRUE(repetition > 0 || order[0] == 0u);
      for (size_t i = 0; i < order.size(); ++i) places[order[i]].insert(i);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3}));
    }
  for (const auto& seen : places) EXPECT_EQ(seen.size(), kMethods);
  EXPECT_EQ(method_order(1, 5, 7), std::vector<size_t>{0});
}

TEST(EvalPlan, TheWholeGridComesOnceBeforeItComesAgain) {
  const std::vector<EvalJob> jobs = eval_jobs(3, 4, 2);
  ASSERT_EQ(jobs.size(), 24u);
  std::set<std::tuple<size_t, size_t, int>> all;
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(jobs[i].repetition, int(i / 12));
    EXPECT_EQ(jobs[i].with, i % 12 / 3);
    all.insert({jobs[i].method, jobs[i].with, jobs[i].repetition});
  }
  EXPECT_EQ(all.size(), jobs.size());
}

TEST(EvalPlan, GridsAreChecked) {
  const EvalGrid grid = checked({.methods = {"suffix", "off", "suffix"}, .lengths = {64, 64}});
  EXPECT_EQ(grid.methods, (std::vector<std::string>{"off", "suffix"}));
  EXPECT_EQ(grid.lengths, std::vector<int>{64});
  EXPECT_NE(error_of([] { checked({.lengths = {3}}); }).find("--length 3"), std::string::npos);
  EXPECT_NE(error_of([] { checked({.temperatures = {-1}}); }).find("--temp -1"), std::string::npos);
  EXPECT_NE(error_of([] { checked({.answers = {0}}); }).find("-n 0"), std::string::npos);
  EXPECT_NE(error_of([] { checked({.batches = {0}}); }).find("--batch 0"), std::string::npos);
}

TEST(EvalData, LinesAndTheirErrors) {
  const auto data = parse_eval_data(
      "{\"prompt\": \"a\"}\n\n{\"text\": \"b\", \"instruction\": \"do\", \"id\": 7, \"reference\": \"r\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}], \"id\": \"x\", \"category\": \"chat\"}\n",
      "f");
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(data[0].id, "1");
  EXPECT_FALSE(data[0].reference);
  EXPECT_EQ(data[1].id, "7");
  EXPECT_TRUE(data[1].document);
  EXPECT_EQ(data[1].reference, "r");
  EXPECT_EQ(data[2].category, "chat");
  EXPECT_EQ(data[2].where, "'f' line 4");
  const auto wrong = [](const std::string& line, const std::string& words) {
    const std::string error = error_of([&] { parse_eval_data("{\"prompt\": \"a\"}\n" + line + "\n", "f"); });
    EXPECT_NE(error.find("'f' line 2"), std::string::npos) << error;
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  wrong("{bad", "not JSON");
  wrong("[]", "object");
  wrong("{\"id\": 1}", "one of");
  wrong("{\"prompt\": \"a\", \"text\": \"b\"}", "one of");
  wrong("{\"prompt\": 1}", "not a string");
  wrong("{\"prompt\": \"\"}", "empty");
  wrong("{\"messages\": []}", "messages");
  wrong("{\"messages\": [{\"role\": \"user\"}]}", "content");
  wrong("{\"prompt\": \"a\", \"instruction\": \"b\"}", "instruction");
  EXPECT_NE(error_of([] { parse_eval_data("\n", "f"); }).find("no prompts"), std::string::npos);
  EXPECT_NE(error_of([&] { joined({data, data}, 0); }).find("twice"), std::string::npos);
  EXPECT_EQ(joined({data}, 2).size(), 2u);
  EXPECT_GE(parse_eval_data(builtin_eval_data(), "built-in").size(), 5u);
}

// A token per byte; the template puts two bytes around each message.
class Bytes : public Tokenizer {
 public:
  std::vector<Token> tokenize(std::string_view text, bool, bool) const override { return {text.begin(), text.end()}; }
  std::string detokenize(std::span<const Token> tokens, bool, bool) const override {
    return {tokens.begin(), tokens.end()};
  }
  std::string token_text(Token token) const override { return token_bytes(token); }
  std::string token_bytes(Token token) const override { return std::string(1, char(token)); }
  bool is_end(Token) const override { return false; }
  std::string apply_template_json(std::string_view messages, bool, std::string_view, std::string_view) const override {
    std::string out;
    for (const auto& m : nlohmann::json::parse(messages)) out += "<" + m["content"].get<std::string>() + ">";
    return out;
  }
};

TEST(EvalData, CutsKeepTheInstruction) {
  const Bytes bytes;
  const auto cut = [&](const EvalPrompt& p, int length, bool chat = false) {
    const auto tokens = eval_tokens(p, length, {.chat = chat, .instruction = "say:"}, bytes);
    return std::string(tokens.begin(), tokens.end());
  };
  EvalPrompt prompt;
  prompt.prompt = "what is in " + std::string(100, 'x') + " please?";
  EXPECT_EQ(cut(prompt, 0), prompt.prompt);
  EXPECT_EQ(cut(prompt, 200), "");  // it is shorter
  const std::string middle = cut(prompt, 40);
  EXPECT_EQ(middle.size(), 40u);
  EXPECT_TRUE(middle.starts_with("what is in ") && middle.ends_with(" please?")) << middle;
  EvalPrompt document;
  document.document = true, document.prompt = std::string(100, 'd');
  EXPECT_EQ(cut(document, 26), "say:\n\n" + std::string(20, 'd'));
  document.instruction = "own";
  EXPECT_EQ(cut(document, 26, true), "<own\n\n" + std::string(19, 'd') + ">");
  EvalPrompt chat;
  chat.messages = {{"system", "be kind"}, {"user", "first " + std::string(90, 'm') + " last"}};
  const std::string talk = cut(chat, 50);
  EXPECT_EQ(talk.size(), 50u);
  EXPECT_TRUE(talk.starts_with("<be kind><first m") && talk.ends_with("m last>")) << talk;
  EXPECT_NE(error_of([&] { cut(document, 4); }), "no error");
}

TEST(EvalStats, MediansOfRepetitionsAgainstPlain) {
  std::vector<EvalRun> runs;
  for (int i = 0; i < 3; ++i) {
    runs.push_back(run_of("off", "a", i, 100 + 10 * i));  // median 110
    runs.push_back(run_of("sd", "a", i, 50 + 10 * i));    // 60
    runs.push_back(run_of("off", "b", i, 100));
    runs.push_back(run_of("sd", "b", i, 125));
  }
  runs.back().equal = false;
  const auto cells = summarise(runs);
  ASSERT_EQ(cells.size(), 4u);
  EXPECT_DOUBLE_EQ(cells[1].speedup, 110.0 / 60);
  EXPECT_EQ(cells[1].typical.whole_ms, 60);
  EXPECT_DOUBLE_EQ(cells[1].spread(), 10.0 / 60);
  EXPECT_FALSE(cells[3].equal);
  const auto rows = rows_of(cells);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].method, "off");
  EXPECT_EQ(rows[1].cells, 2);
  EXPECT_EQ(rows[1].different, 1);
  EXPECT_EQ(rows[1].worst_prompt, "b");
  EXPECT_DOUBLE_EQ(rows[1].worst, 0.8);
  EXPECT_DOUBLE_EQ(rows[1].speedup, (110.0 / 60 + 0.8) / 2);
  EXPECT_DOUBLE_EQ(rows[1].tokens_per_pass, 2);
  EXPECT_DOUBLE_EQ(rows[1].accepted_per_pass, 1);
  EXPECT_NE(eval_table({{}, runs}).find("1 DIFFERENT"), std::string::npos);
}

TEST(EvalStats, AnAnswerWithoutTokensIsComparedByItsTime) {
  std::vector<EvalRun> runs{run_of("off", "a", 0, 100), run_of("sd", "a", 0, 50)};
  for (EvalRun& run : runs) run.tokens = 0;
  EXPECT_DOUBLE_EQ(summarise(runs)[1].speedup, 2);
  auto later = runs;
  for (EvalRun& run : later) run.whole_ms *= 2;
  EXPECT_EQ(diff(summarise(runs), summarise(later)).slower, 2);
}

TEST(EvalStats, OnlyWhatIsBeyondTheSpreadHasMoved) {
  const auto cells = [](double scale, double wobble) {
    std::vector<EvalRun> runs;
    for (int i = 0; i < 3; ++i) runs.push_back(run_of("sd", "a", i, scale * (100 + wobble * (i - 1))));
    return summarise(runs);
  };
  const auto moved = [&](double scale, double wobble) { return diff(cells(1, wobble), cells(scale, wobble)); };
  EXPECT_EQ(moved(1.2, 1).slower, 1);
  EXPECT_TRUE(moved(1.2, 1).worse());
  EXPECT_EQ(moved(1.2, 30).slower, 0) << "repetitions differ by more";
  EXPECT_EQ(moved(0.8, 1).faster, 1);
  EXPECT_FALSE(moved(0.8, 1).worse());
  EXPECT_EQ(moved(1.02, 0).slower, 0) << "below the least noise";
  EXPECT_EQ(diff(cells(1, 0), cells(1.02, 0), 0.01).slower, 1);
  auto before = cells(1, 1), after = cells(1, 1);
  after[0].equal = false, after[0].typical.answer = "other";
  const EvalDiff lost = diff(before, after);
  EXPECT_TRUE(lost.worse());
  EXPECT_EQ(lost.lost_bytes, 1);
  EXPECT_EQ(lost.text_changed, 1);
  EXPECT_NE(diff_table(lost).find("BYTES DIFFER"), std::string::npos);
  EXPECT_EQ(diff({}, after).only_after, 1);
  EXPECT_EQ(diff(before, {}).only_before, 1);
}

TEST(EvalStats, ASingleRunTakesTheSpreadOfTheOthers) {
  std::vector<EvalRun> runs{run_of("sd", "single", 0, 100)};
  for (int i = 0; i < 3; ++i) runs.push_back(run_of("sd", "three", i, 100 + 10.0 * i));
  auto later = runs;
  later[0].whole_ms = 112;
  EXPECT_EQ(diff(summarise(runs), summarise(later)).slower, 0);  // the others differ by 9 % each
  later[0].whole_ms = 130;
  EXPECT_EQ(diff(summarise(runs), summarise(later)).slower, 1);
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("eval_test_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string results() const { return (path_ / "results.jsonl").string(); }

 private:
  std::filesystem::path path_;
};

const nlohmann::ordered_json kHead{{"eval", 1}, {"fixed", {{"model", "m"}, {"seed", 1}}}};

TEST(EvalStore, GoesOnBehindAHalfWrittenLine) {
  const Folder folder;
  EvalRun run = run_of("sd", "a, \"b\"", 0, 12.5);
  run.tried_at_depth = {5, 3}, run.accepted_at_depth = {4, 1}, run.rouge = 0.5, run.times.verify = 7;
  {
    EvalStore store(folder.path(), kHead, false);
    EXPECT_FALSE(store.has(run.cell, 0));
    store.add(run), store.add(run_of("sd", "b", 1, 13));
  }
  std::ofstream(folder.results(), std::ios::app) << "{\"method\": \"sd\", \"prom";
  {
    EvalStore store(folder.path(), kHead, false);
    ASSERT_EQ(store.results().runs.size(), 2u);
    EXPECT_TRUE(store.has(run.cell, 0));
    EXPECT_FALSE(store.has(run.cell, 1));
    EXPECT_EQ(to_object(store.results().runs[0]), to_object(run));
    store.add(run_of("sd", "c", 0, 14));
  }
  EXPECT_EQ(read_eval_results(folder.path()).runs.size(), 3u);
  auto other = kHead;
  other["fixed"]["seed"] = 2;
  const std::string error = error_of([&] { EvalStore(folder.path(), other, false); });
  EXPECT_NE(error.find("seed was 1, is 2"), std::string::npos) << error;
  EXPECT_EQ(EvalStore(folder.path(), other, true).results().runs.size(), 0u);
  EXPECT_NE(error_of([&] { read_eval_results(folder.path()); }).find("no results"), std::string::npos);
}

TEST(EvalStore, ABrokenLineInTheMiddleIsNamed) {
  const std::string head = kHead.dump() + "\n", good = to_object(run_of("sd", "a", 0, 1)).dump() + "\n";
  EXPECT_EQ(parse_eval_results(head + good + good, "f").runs.size(), 2u);
  EXPECT_EQ(parse_eval_results(head + good + "{}\n", "f").runs.size(), 1u);  // at the end: not written whole
  EXPECT_NE(error_of([&] { parse_eval_results(head + "{}\n" + good, "f"); }).find("'f' line 2"), std::string::npos);
  EXPECT_NE(error_of([&] { parse_eval_results("{}\n" + good, "f"); }).find("'f' line 1"), std::string::npos);
}

TEST(EvalStore, CsvQuotesWhatNeedsIt) {
  const std::string csv = eval_csv(std::vector<EvalRun>{run_of("sd:nodes=8", "a, \"b\"", 0, 10)});
  EXPECT_TRUE(csv.starts_with("method,prompt,")) << csv;
  EXPECT_NE(csv.find("\nsd:nodes=8,\"a, \"\"b\"\"\","), std::string::npos) << csv;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
}

TEST(EvalSuite, ThePapersFiguresStandBesideOurs) {
  const EvalGrid quick = checked(paper_grid(true)), whole = checked(paper_grid(false));
  EXPECT_LT(quick.methods.size() * quick.lengths.size() * size_t(quick.repetitions), 12u);
  EXPECT_GT(whole.lengths.size(), 3u);
  for (const std::string& method : whole.methods) EXPECT_NO_THROW(parse_spec(method)) << method;
  EXPECT_TRUE(paper_figures(std::vector<EvalRow>{{.method = "specextend"}, {.method = "off"}}).empty());
  std::vector<EvalRow> rows;
  for (const int length : {1024, 4096})
    for (const auto& [method, speed] : {std::pair{"off", 10.0},
                                        {"specextend:cache=full,positions=original", 8.0},
                                        {"specextend", length == 4096 ? 16.0 : 11.0}})
      rows.push_back({.method = method, .length = length, .prompt_tokens = double(length), .tokens_per_second = speed});
  const auto figures = paper_figures(rows);
  ASSERT_EQ(figures.size(), 3u);  // those of methods that were run
  EXPECT_EQ(figures[0].paper, "1.38x");
  EXPECT_DOUBLE_EQ(*figures[0].whole, 0.8);
  EXPECT_DOUBLE_EQ(*figures[2].whole, 2) << "at the longest prompts";
  EXPECT_FALSE(figures[2].decode);
}

TEST(Beside, TheMostThatDraftsCouldGain) {
  EXPECT_EQ(best_decode_gain({{4, 20.0}}), 0);
  EXPECT_DOUBLE_EQ(best_decode_gain({{1, 10.0}, {4, 16.0}, {8, 40.0}}), 2.5);
  BesideRun plain{.method = "off"}, other{.method = "<b>"};
  plain.time = {1000, 0, 3000}, other.time = {1000, 500, 1500}, other.equal = false;
  other.ratio = speedup(plain.time, other.time);
  const std::vector<BesideRun> runs{plain, other};
  const std::string table = beside_table(runs, {{1, 10.0}, {4, 16.0}}), page = beside_page(runs, {}, "cpu");
  EXPECT_NE(table.find("1.33x"), std::string::npos) << table;
  EXPECT_NE(table.find("more than 4.0x"), std::string::npos) << table;
  EXPECT_NE(table.find("DIFFERENT"), std::string::npos) << table;
  EXPECT_EQ(page.find("<th scope=\"row\" class=\"t\"><b>"), std::string::npos);
}

TEST(EvalPage, TextsAreEscapedAndTicksAreRound) {
  EvalResults results{.head = kHead, .runs = {run_of("off", "<script>alert(1)</script>", 0, 10)}};
  const std::string page = eval_page(results);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(round_ticks(97, 5), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(round_ticks(0.9, 3).back(), 1);
  EXPECT_EQ(plot_xy({.title = "empty"}, {{.name = "a"}}), "");
}

}  // namespace
}  // namespace sx::cli
