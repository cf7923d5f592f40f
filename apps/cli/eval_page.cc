#include "cli/eval_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <tuple>

#include "cli/eval_assets.h"
#include "cli/eval_plots.h"
#include "cli/eval_suite.h"
#include "cli/explain_data.h"
#include "cli/explain_page.h"
#include "cli/put.h"

namespace sx::cli {
namespace {

struct Report {
  const EvalResults& results;
  std::vector<EvalSummary> cells{};
  std::vector<EvalRow> rows{};
  std::vector<std::string> methods{};  // in the order of the results
  size_t colour(const std::string& method) const {
    return size_t(std::find(methods.begin(), methods.end(), method) - methods.begin());
  }
};

Report report_of(const EvalResults& results) {
  Report r{.results = results, .cells = summarise(results.runs)};
  r.rows = rows_of(r.cells);
  for (const EvalSummary& cell : r.cells)
    if (std::find(r.methods.begin(), r.methods.end(), cell.cell.method) == r.methods.end())
      r.methods.push_back(cell.cell.method);
  return r;
}

std::string setting_name(const EvalRow& row, bool batch) {
  std::string out = fmt::format("T = {:g}, {} new tokens", row.temperature, row.answer);
  if (batch) out += row.batch > 1 ? fmt::format(", batch of {}", row.batch) : ", one at a time";
  return out;
}

void put_tile(std::string& out, const char* name, const std::string& value, const std::string& note) {
  put(out, "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n", name, html_text(value), html_text(note));
}

void put_summary(std::string& out, const Report& r) {
  const EvalSummary* worst = nullptr;
  int different = 0, beside = 0;
  std::vector<double> speedups, spreads;
  for (const EvalSummary& c : r.cells) {
    different += !c.equal;
    beside += !c.typical.promised;
    spreads.push_back(c.spread());
    if (c.cell.method == kPlainMethod || c.speedup == 0) continue;
    speedups.push_back(c.speedup);
    if (!worst || c.speedup < worst->speedup) worst = &c;
  }
  out += "<dl class=\"tiles\">\n";
  put_tile(out, "cells", std::to_string(r.cells.size()), fmt::format("{} runs", r.results.runs.size()));
  put_tile(out, "bytes", different ? fmt::format("{} DIFFERENT", different) : "equal",
           beside ? fmt::format("to plain decoding; {} cells promise less", beside) : "to plain decoding, every run");
  if (worst) {
    put_tile(out, "median speed-up", fmt::format("{:.2f}x", median(speedups)), "over plain decoding, as a user waits");
    put_tile(out, "worst cell", fmt::format("{:.2f}x", worst->speedup), cell_name(worst->cell));
  }
  put_tile(out, "noise", fmt::format("± {:.1f} %", 100 * median(spreads)), "median spread of repetitions");
  out += "</dl>\n";
}

// A chart of rows: one for each setting that `key` tells apart, x and y by the functions.
template <typename Key, typename X, typename Y>
void put_charts(std::string& out, const Report& r, const PlotLabels& labels, Key key, X x, Y y) {
  std::vector<decltype(key(EvalRow()))> keys;
  for (const EvalRow& row : r.rows)
    if (std::find(keys.begin(), keys.end(), key(row)) == keys.end()) keys.push_back(key(row));
  for (const auto& each : keys) {
    PlotLabels own = labels;
    std::vector<PlotSeries> series;
    for (const std::string& method : r.methods) {
      PlotSeries s{.name = method, .colour = r.colour(method)};
      for (const EvalRow& row : r.rows) {
        if (row.method != method || key(row) != each) continue;
        if (s.points.empty() && series.empty()) own.title = labels.title + ": " + std::get<0>(each);
        s.points.push_back({x(row), y(row)});
      }
      std::sort(s.points.begin(), s.points.end());
      series.push_back(std::move(s));
    }
    out += plot_xy(own, series);
  }
}

void put_speed(std::string& out, const Report& r) {
  out += "<section><h2>Speed against length</h2>\n<div class=\"charts\">\n";
  const auto key = [](const EvalRow& row) { return std::tuple(setting_name(row, true)); };
  const auto x = [](const EvalRow& row) { return row.prompt_tokens; };
  put_charts(
      out, r,
      {.title = "Tokens per second as a user waits",
       .x = "prompt tokens",
       .y = "tokens/s",
       .note = "New tokens by the time from the request to the last token: the target's and the draft's reading of "
               "the prompt count. Medians over prompts and repetitions.",
       .log_x = true,
       .digits = 1},
      key, x, [](const EvalRow& row) { return row.tokens_per_second; });
  put_charts(out, r,
             {.title = "Decode only",
              .x = "prompt tokens",
              .y = "tokens/s",
              .note = "After the prompt has been read, by target and draft.",
              .log_x = true,
              .digits = 1},
             key, x, [](const EvalRow& row) { return row.decode_tokens_per_second; });
  out += "</div></section>\n";
}

void put_batches(std::string& out, const Report& r) {
  std::set<int> sizes;
  for (const EvalRow& row : r.rows) sizes.insert(row.batch);
  if (sizes.size() < 2) return;
  out += "<section><h2>Batch size</h2>\n<div class=\"charts\">\n";
  put_charts(
      out, r,
      {.title = "Tokens per second of all requests",
       .x = "requests at a time",
       .y = "tokens/s",
       .log_x = true,
       .digits = 1},
      [](const EvalRow& row) {
        return std::tuple(setting_name(row, false) +
                          (row.length ? fmt::format(", {} tokens", row.length) : std::string()));
      },
      [](const EvalRow& row) { return double(row.batch); }, [](const EvalRow& row) { return row.tokens_per_second; });
  out += "</div></section>\n";
}

void put_acceptance(std::string& out, const Report& r) {
  std::vector<PlotSeries> by_depth, by_budget;
  for (const std::string& method : r.methods) {
    std::vector<int64_t> tried, accepted;
    PlotSeries depth{.name = method, .colour = r.colour(method)}, budget = depth;
    for (const EvalSummary& c : r.cells) {
      if (c.cell.method != method) continue;
      const EvalRun& run = c.typical;
      tried.resize(std::max(tried.size(), run.tried_at_depth.size()));
      accepted.resize(tried.size());
      for (size_t d = 0; d < run.tried_at_depth.size(); ++d)
        tried[d] += run.tried_at_depth[d], accepted[d] += run.accepted_at_depth[d];
      if (run.rounds > 0 && run.drafted > 0)
        budget.points.push_back({double(run.verified) / double(run.rounds), run.accepted_per_pass()});
    }
    for (size_t d = 0; d < tried.size(); ++d)
      if (tried[d] > 0) depth.points.push_back({double(d + 1), double(accepted[d]) / double(tried[d])});
    by_depth.push_back(depth), by_budget.push_back(budget);
  }
  const std::string depth =
      plot_xy({.title = "Acceptance by depth",
               .x = "depth",
               .y = "share accepted",
               .note = "Of the drafted rounds whose tree reached a depth, the share that accepted "
                       "at least so many tokens."},
              by_depth);
  const std::string budget =
      plot_xy({.title = "Drafted tokens against acceptance",
               .x = "drafted tokens verified per pass",
               .y = "accepted per pass",
               .note = "One point for each cell; without the token that every pass gives anyway.",
               .joined = false},
              by_budget);
  if (depth.empty() && budget.empty()) return;
  out += "<section><h2>Acceptance</h2>\n<div class=\"charts\">\n" + depth + budget + "</div></section>\n";
}

void put_phases(std::string& out, const Report& r) {
  std::vector<std::string> names{"prompt", "draft reads the prompt"};
  for (const ExplainPhase& phase : phases_of({})) names.push_back(phase.name);
  std::vector<StackedBar> bars;
  for (const std::string& method : r.methods) {
    StackedBar bar{.name = method, .parts = std::vector<double>(names.size(), 0)};
    double tokens = 0;
    for (const EvalSummary& c : r.cells) {
      if (c.cell.method != method) continue;
      const EvalRun& run = c.typical;
      tokens += run.tokens;
      bar.parts[0] += run.prompt_ms, bar.parts[1] += run.draft_prompt_ms;
      size_t at = 2;
      for (const ExplainPhase& phase : phases_of(run.times)) bar.parts[at++] += phase.ms;
    }
    for (double& part : bar.parts) part /= std::max(1.0, tokens);
    bars.push_back(bar);
  }
  out += "<section><h2>Where the time goes</h2>\n";
  out += plot_bars({.title = "Milliseconds per new token",
                    .y = "ms per new token",
                    .note = "All cells of a method together, each with its run of median time."},
                   names, bars);
  out += "</section>\n";
}

void put_predicted(std::string& out, const Report& r) {
  std::vector<PlotSeries> all;
  std::vector<double> errors;
  for (const EvalSummary& c : r.cells) {
    const EvalRun& run = c.typical;
    if (!(run.predicted_ms > 0) || !(run.round_ms > 0)) continue;
    auto s = std::find_if(all.begin(), all.end(), [&](const PlotSeries& own) { return own.name == c.cell.method; });
    if (s == all.end()) s = all.insert(all.end(), {.name = c.cell.method, .colour = r.colour(c.cell.method)});
    s->points.push_back({run.round_ms, run.predicted_ms});
    errors.push_back(std::abs(run.predicted_ms / run.round_ms - 1));
  }
  const std::string chart =
      plot_xy({.title = "Predicted against measured",
               .x = "measured ms",
               .y = "predicted ms",
               .note = fmt::format(
                   "A round of each cell, drafts and all, as the cost model told it before it ran, and as "
                   "it was; on the line they are equal. Median error {:.1f} %, {} of {} within 10 %.",
                   100 * median(errors), std::count_if(errors.begin(), errors.end(), [](double e) { return e <= 0.1; }),
                   errors.size()),
               .diagonal = true,
               .joined = false},
              all);
  if (!chart.empty()) out += "<section><h2>Cost model</h2>\n<div class=\"charts\">" + chart + "</div></section>\n";
}

void put_paper(std::string& out, const Report& r) {
  const auto figures = paper_figures(r.rows);
  if (figures.empty()) return;
  out +=
      "<section><h2>The paper's figures and ours</h2>\n<p class=\"soft\">Other models on another machine: the paper's are on GPUs "
      "with 7B and 8B targets. Ours are medians at the longest prompts, as a user waits and decode only. The paper's parts for "
      "prefill and tree attention have no switch here: all methods share those kernels.</p>\n<div class=\"scroll\"><table "
      "id=\"paper\"><thead><tr><th scope=\"col\" class=\"t\">what</th><th scope=\"col\">paper</th><th scope=\"col\" "
      "class=\"t\">its setting</th><th scope=\"col\">ours</th><th scope=\"col\">decode only</th><th "
      "scope=\"col\">accepted per pass</th><th scope=\"col\">prompt</th><th scope=\"col\" class=\"t\">methods</th></tr></thead>"
      "<tbody>\n";
  const auto times = [](const std::optional<double>& v) { return v ? fmt::format("{:.2f}x", *v) : std::string("–"); };
  for (const PaperFigure& f : figures)
    put(out,
        "<tr><th scope=\"row\" class=\"t\">{}</th><td>{}</td><td class=\"t\">{}</td><td>{}</td><td>{}</td>"
        "<td>{:.2f} / {:.2f}</td><td>{:.0f}</td><td class=\"t\">{} / {}</td></tr>\n",
        html_text(f.what), html_text(f.paper), html_text(f.setting), times(f.whole), times(f.decode),
        f.accepted.value_or(0), f.base.value_or(0), f.prompt_tokens, html_text(f.method), html_text(f.against));
  out += "</tbody></table></div></section>\n";
}

std::string share(const std::optional<double>& value) { return value ? fmt::format("{:.2f}", *value) : "–"; }

void put_rows(std::string& out, const Report& r) {
  out +=
      "<section><h2>Every setting</h2>\n<div class=\"scroll\"><table id=\"rows\"><thead><tr><th scope=\"col\" class=\"t\">method"
      "</th><th scope=\"col\">batch</th><th scope=\"col\">prompt</th><th scope=\"col\">T</th><th scope=\"col\">new</th>"
      "<th scope=\"col\">first token ms</th><th scope=\"col\">tokens/s</th><th scope=\"col\">speed-up</th>"
      "<th scope=\"col\">worst</th><th scope=\"col\">decode tokens/s</th><th scope=\"col\">decode only</th>"
      "<th scope=\"col\">tokens per pass</th><th scope=\"col\">accepted</th><th scope=\"col\">8-grams</th>"
      "<th scope=\"col\">peak MB</th><th scope=\"col\">ROUGE-L</th><th scope=\"col\">exact</th>"
      "<th scope=\"col\">bytes</th></tr></thead><tbody>\n";
  for (const EvalRow& row : r.rows)
    put(out,
        "<tr><th scope=\"row\" class=\"t\">{}</th><td>{}</td><td>{:.0f}</td><td>{:g}</td><td>{}</td><td>{:.1f}</td><td>{:.1f}</td>"
        "<td>{:.2f}x</td><td title=\"{}\">{:.2f}x</td><td>{:.1f}</td><td>{:.2f}x</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.0f} "
        "%</td><td>{:.0f}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        html_text(row.method), row.batch, row.prompt_tokens, row.temperature, row.answer, row.first_token_ms,
        row.tokens_per_second, row.speedup, html_text(row.worst_prompt), row.worst, row.decode_tokens_per_second,
        row.decode_speedup, row.tokens_per_pass, row.accepted_per_pass, 100 * row.distinct, row.peak_mb,
        share(row.rouge), share(row.exact), row.different ? "<b class=\"bad\">DIFFERENT</b>" : "equal");
  out += "</tbody></table></div></section>\n";
}

void put_cells(std::string& out, const Report& r) {
  out +=
      "<section><h2>Every cell</h2>\n<details><summary>Prompt by prompt</summary><div class=\"scroll\"><table id=\"cells\"><thead><tr>"
      "<th scope=\"col\" class=\"t\">method</th><th scope=\"col\" class=\"t\">prompt</th><th scope=\"col\" class=\"t\">category</th>"
      "<th scope=\"col\">batch</th><th scope=\"col\">length</th><th scope=\"col\">T</th><th scope=\"col\">new</th>"
      "<th scope=\"col\">runs</th><th scope=\"col\">ms</th><th scope=\"col\">± %</th><th scope=\"col\">tokens/s</th>"
      "<th scope=\"col\">speed-up</th><th scope=\"col\">tokens per pass</th><th scope=\"col\">8-grams</th>"
      "<th scope=\"col\">bytes</th></tr></thead><tbody>\n";
  for (const EvalSummary& c : r.cells)
    put(out,
        "<tr><th scope=\"row\" class=\"t\">{}</th><td class=\"t\">{}</td><td class=\"t\">{}</td><td>{}</td><td>{}</td><td>{:g}</td><td>{}</td>"
        "<td>{}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.2f}x</td><td>{:.2f}</td><td>{:.0f} %</td><td>{}</td></tr>\n",
        html_text(c.cell.method), html_text(c.cell.with.prompt), html_text(c.typical.category), c.cell.with.batch,
        c.typical.prompt_tokens, c.cell.with.temperature, c.typical.tokens, c.runs, c.whole_ms, 100 * c.spread(),
        c.tokens_per_second, c.speedup, c.typical.tokens_per_pass(), 100 * c.typical.distinct,
        !c.equal          ? "<b class=\"bad\">DIFFERENT</b>"
        : c.typical.equal ? "equal"
                          : "not promised");
  out += "</tbody></table></div></details></section>\n";
}

void put_head(std::string& out, const Report& r) {
  const auto& fixed = r.results.head.at("fixed");
  const auto text = [&](const char* key) { return html_text(fixed.value(key, std::string())); };
  put(out, "<h1>Speculation, measured</h1>\n<p class=\"soft\">Model {} · {} · KV cache {} · specextend {}</p>\n",
      text("model"), text("backend"), text("kv_type"), text("version"));
}

}  // namespace

std::string eval_page(const EvalResults& results) {
  const Report r = report_of(results);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // Nothing is fetched and nothing is run, whatever a data set may contain.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";
  put(out, "<title>Speculation, measured</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n", kEvalStyle);
  put_head(out, r);
  put_summary(out, r);
  put_paper(out, r);
  put_speed(out, r);
  put_batches(out, r);
  put_acceptance(out, r);
  put_phases(out, r);
  put_predicted(out, r);
  put_rows(out, r);
  put_cells(out, r);
  out += "</main>\n</body>\n</html>\n";
  return out;
}

}  // namespace sx::cli
