#include "cli/explain_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/explain_assets.h"
#include "cli/put.h"

namespace sx::cli {
namespace {

using Json = nlohmann::ordered_json;
using Children = std::vector<std::vector<int>>;

// Bytes of the UTF-8 character that begins at `at`; 0: none does.
size_t character(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned first = byte(0);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : (first & 0xF0) == 0xE0        ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool outside = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);  // surrogates; too large
  return overlong || outside ? 0 : length;
}

// With a sign for each line break, so that a token of nothing else can be seen. In running text the break itself stays;
// the sign is the style's, so that copies and readers get the text as it is.
std::string token_html(std::string_view text, bool running) {
  std::string out;
  for (const char c : html_text(text)) {
    if (c != '\n') out += c;
    else out += running ? "<i class=\"n\" aria-hidden=\"true\"></i>\n" : "\u21B5";
  }
  return out;
}
std::string running_html(std::string_view text) { return token_html(text, true); }
std::string chip_html(std::string_view text) { return token_html(text, false); }

// The last part of a path: pages are passed on, the folders of this machine need not be.
std::string_view base_name(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path.substr(path.find_last_of('/') + 1);
}

int shade(int depth) { return std::min(depth, 8); }
bool accepts(const ExplainRound& r, int node) { return std::find(r.path.begin(), r.path.end(), node) != r.path.end(); }

Children children_of(const ExplainRound& r) {
  Children children(r.tokens.size());
  for (size_t n = 1; n < r.tokens.size(); ++n) children[size_t(r.parents[n])].push_back(int(n));
  for (auto& c : children) std::stable_partition(c.begin(), c.end(), [&](int n) { return accepts(r, n); });
  return children;
}

// One line per unbranched stretch, its branches below it; rejected tokens that nothing follows share a line.
void put_branch(std::string& out, const ExplainRound& r, const Children& children, int node, int depth) {
  out += "<li>";
  for (;; ++depth) {
    const std::string text = chip_html(r.texts[size_t(node)]);
    if (node == 0) put(out, "<q>{}</q>", text);
    else if (accepts(r, node)) put(out, "<b class=\"d{}\">{}</b>", shade(depth), text);
    else put(out, "<s>{}</s>", text);
    if (children[size_t(node)].size() != 1) break;
    node = children[size_t(node)][0];
  }
  std::string leaves;
  if (!children[size_t(node)].empty()) out += "<ul>";
  for (const int child : children[size_t(node)]) {
    if (accepts(r, child) || !children[size_t(child)].empty()) put_branch(out, r, children, child, depth + 1);
    else put(leaves, "{}<s>{}</s>", leaves.empty() ? "<li>" : "| ", chip_html(r.texts[size_t(child)]));
  }
  if (!leaves.empty()) put(out, "{}</li>", leaves);
  if (!children[size_t(node)].empty()) out += "</ul>";
  out += "</li>";
}

// What came after the accepted path: the target's own token, or the end.
void put_outcome(std::string& out, const Explanation& e, const ExplainRound& r, const std::vector<int>& refused) {
  const bool bonus = r.made > r.accepted;
  if (bonus) {
    put(out, "<p>The target chose <span class=\"tok\">{}</span>", chip_html(e.pieces[size_t(r.first + r.made - 1)]));
    for (size_t i = 0; i < refused.size(); ++i)
      put(out, "{}<s class=\"tok\">{}</s>", i ? ", " : " instead of ", chip_html(r.texts[size_t(refused[i])]));
    out += refused.empty() && r.verified > 0 ? "; nothing was drafted for this place.</p>" : ".</p>";
  } else {
    put(out, "<p>The text ended here ({}).</p>", finish_reason_name(e.reason));
  }
}

void put_rounds(std::string& out, const Explanation& e) {
  out += "<details id=\"rounds\"><summary>Every round: what was drafted, accepted and chosen</summary>\n";
  for (size_t i = 0; i < e.rounds.size(); ++i) {
    const ExplainRound& r = e.rounds[i];
    const Children children = children_of(r);
    put(out, "<section class=\"round\" id=\"r{}\"><h3>Round {}</h3>", i + 1, i + 1);
    if (r.verified == 0) out += "<p class=\"soft\">Nothing drafted: a plain step.</p>";
    else put(out, "<p class=\"soft\">{} drafted, {} verified, {} accepted</p>", r.drafted, r.verified, r.accepted);
    put(out, "<p class=\"soft\">{:.1f} ms: draft {:.1f}, verify {:.1f}, rest {:.1f}</p>", total_ms(r.times),
        r.times.draft, r.times.verify, total_ms(r.times) - r.times.draft - r.times.verify);
    put_outcome(out, e, r, children[size_t(r.path.back())]);
    if (r.verified > 0) {
      out += "<ul class=\"tree\">";
      put_branch(out, r, children, 0, 0);
      out += "</ul>";
    }
    out += "</section>\n";
  }
  out += "</details>\n";
}

void put_text(std::string& out, const Explanation& e) {
  out +=
      "<section><h2 id=\"text\">The text</h2>\n"
      "<input type=\"checkbox\" class=\"all\" id=\"all\"> <label for=\"all\">show what was drafted and "
      "rejected</label>\n"
      "<p class=\"legend\"><span>accepted drafts by depth <span class=\"k\">";
  for (int d = 1; d <= 8; ++d) put(out, "<span class=\"d{}\">{}{}</span>", d, d, d == 8 ? "+" : "");
  out +=
      "</span></span><span>plain: the target's own (bonus) token of the round</span>"
      "<span><s>struck out</s>: drafted for this place and rejected</span></p>\n"
      "<div class=\"two\"><p class=\"text card\">";
  for (size_t i = 0; i < e.rounds.size(); ++i) {
    const ExplainRound& r = e.rounds[i];
    if (r.made == 0) continue;
    put(out, "<a class=\"r\" href=\"#r{}\">", i + 1);
    for (int k = 0; k < r.made; ++k) {
      const std::string piece = running_html(e.pieces[size_t(r.first + k)]);
      if (k < r.accepted) {
        put(out, "<span class=\"d{}\">{}</span>", shade(k + 1), piece);
        continue;
      }
      for (size_t n = 1; n < r.tokens.size(); ++n)
        if (r.parents[n] == r.path.back()) put(out, "<s>{}</s>", chip_html(r.texts[n]));
      out += piece;
    }
    out += "</a>";
  }
  out +=
      "</p>\n<aside class=\"panel card js\" id=\"panel\" aria-live=\"polite\" aria-label=\"The round under the pointer "
      "or with the focus\">"
      "</aside></div>\n<p class=\"soft js\">Point at the text, or move through it with the arrow keys, to see its "
      "rounds.</p>\n";
  put_rounds(out, e);
  out += "</section>\n";
}

void put_tile(std::string& out, std::string_view name, std::string_view value, std::string_view note) {
  put(out, "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n", name, value, html_text(note));
}

void put_summary(std::string& out, const Explanation& e, const ExplainSums& s) {
  const Timings& t = e.timings;
  const auto rate = [](int tokens, double ms) { return ms > 0 ? 1e3 * tokens / ms : 0.0; };
  out += "<dl class=\"tiles\">\n";
  put_tile(out, "Tokens", fmt::format("{}", e.tokens.size()),
           fmt::format("after a prompt of {}; finished: {}", e.prompt_tokens, finish_reason_name(e.reason)));
  put_tile(out, "Rounds", fmt::format("{}", e.rounds.size()), fmt::format("{} of them with a draft", s.drafted_rounds));
  put_tile(out, "Acceptance length", fmt::format("{:.2f}", s.tokens_per_round()),
           fmt::format("tokens per drafted round; {:.2f} without the bonus token", s.accepted_per_round()));
  put_tile(out, "Accepted", fmt::format("{}", s.accepted),
           fmt::format("of {} drafted, {} verified", s.drafted, s.verified));
  put_tile(out, "Decode", fmt::format("{:.1f} tok/s", rate(t.generated_tokens, t.decode_ms)),
           fmt::format("{:.0f} ms; prefill {:.0f} ms", t.decode_ms, t.prompt_ms));
  if (e.plain_ms > 0 && t.generated_tokens > 0 && t.decode_ms > 0)
    put_tile(out, "Plain step", fmt::format("{:.2f} ms", e.plain_ms),
             fmt::format("with drafts {:.2f} times as fast{}", e.plain_ms * t.generated_tokens / t.decode_ms,
                         !e.compared ? " (from the rounds without a draft)"
                         : e.equal   ? "; the same tokens"
                                     : "; " + e.difference));
  put_tile(out, "Refreshes", fmt::format("{}", s.refreshes), "of the cells the draft works on");
  out += "</dl>\n";
}

void put_round_table(std::string& out, const Explanation& e) {
  out += "<details><summary>The chart as a table</summary><div class=\"scroll\"><table id=\"table\"><thead><tr>";
  for (const char* name : {"round", "tokens", "drafted", "verified", "accepted", "running mean", "ms"})
    put(out, "<th scope=\"col\">{}</th>", name);
  out += "</tr></thead><tbody>\n";
  for (size_t i = 0; i < e.rounds.size(); ++i) {
    const ExplainRound& r = e.rounds[i];
    put(out, "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.1f}</td></tr>\n", i + 1,
        r.made, r.drafted, r.verified, r.accepted, r.mean, total_ms(r.times));
  }
  out += "</tbody></table></div></details>\n";
}

void put_chart(std::string& out, const Explanation& e) {
  if (e.rounds.empty()) return;
  int most = 1;
  for (const ExplainRound& r : e.rounds) most = std::max(most, r.accepted);
  const int top = most + (most + 9) / 10, step = std::max(1, (most + 3) / 4);
  put(out,
      "<section><h2>Acceptance over time</h2>\n<p class=\"legend\"><span><i "
      "style=\"background:var(--bar)\"></i>drafted tokens accepted in a round"
      "</span><span><i style=\"background:var(--mean);height:2px;vertical-align:.3em\"></i>mean of the last {} "
      "rounds</span></p>\n"
      "<figure><div class=\"wrap\">",
      kMeanRounds);
  for (int y = 0; y <= most; y += step)
    put(out, "<span class=\"y\" style=\"bottom:{:.2f}%\">{}</span>", 100.0 * y / top, y);
  put(out,
      "<div class=\"plot chart\" id=\"chart\" role=\"img\" aria-label=\"Accepted tokens of {} rounds; "
      "the table below has the numbers\">"
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
      e.rounds.size(), 100 * e.rounds.size(), 100 * top);
  for (int y = step; y <= most; y += step)
    put(out, "<path class=\"grid\" d=\"M0 {}H{}\"/>", 100 * (top - y), 100 * e.rounds.size());
  out += "<path class=\"bar\" d=\"";
  for (size_t i = 0; i < e.rounds.size(); ++i)
    if (const int n = e.rounds[i].accepted) put(out, "M{} {}v-{}h70v{}z", 100 * i + 15, 100 * top, 100 * n, 100 * n);
  out += "\"/><polyline class=\"mean\" points=\"";
  for (size_t i = 0; i < e.rounds.size(); ++i) put(out, "{},{:.0f} ", 100 * i + 50, 100 * (top - e.rounds[i].mean));
  out +=
      "\"/></svg></div></div><figcaption id=\"told\" aria-live=\"polite\">One bar for each round, in "
      "order.</figcaption></figure>\n";
  put_round_table(out, e);
  out += "</section>\n";
}

// The part of the ranges in [first, end), as rectangles of one row.
void put_row(std::string& out, const ExplainRefresh& r, size_t row, int first, int end) {
  for (const auto& [a, b] : r.ranges)
    if (const int from = std::max(a, first), to = std::min(b, end); from < to)
      put(out, "M{} {}h{}v1h-{}z", from, row, to - from, to - from);
}

// How often each chunk was in the cache, in five shades.
void put_shares(std::string& out, const Explanation& e, int cells) {
  std::vector<int64_t> count(e.chunks.size());
  for (const ExplainRefresh& r : e.refreshes)
    for (const auto& [a, b] : r.ranges)
      for (int c = a / e.chunk; c <= (b - 1) / e.chunk && c < int(count.size()); ++c)
        count[size_t(c)] += std::min(b, (c + 1) * e.chunk) - std::max(a, c * e.chunk);
  std::array<std::string, 5> paths;
  for (int c = 0; c < int(count.size()); ++c) {
    const int size = std::min(cells, (c + 1) * e.chunk) - c * e.chunk;
    const double share = double(count[size_t(c)]) / (double(size) * double(e.refreshes.size()));
    if (count[size_t(c)]) put(paths[size_t(std::min(4, int(share * 5)))], "M{} 0h{}v1h-{}z", c * e.chunk, size, size);
  }
  for (size_t k = 0; k < paths.size(); ++k)
    if (!paths[k].empty()) put(out, "<path class=\"get h{}\" d=\"{}\"/>", k + 1, paths[k]);
}

void put_refresh_table(std::string& out, const Explanation& e) {
  out +=
      "<details><summary>The strip as a table</summary><div class=\"scroll\"><table id=\"refreshes\"><thead><tr><th "
      "scope=\"col\">refresh</th>"
      "<th scope=\"col\">round</th><th scope=\"col\">tokens of the text</th><th scope=\"col\">in the cache</th>"
      "<th scope=\"col\" class=\"t\">places in the text</th></tr></thead><tbody>\n";
  for (const ExplainRefresh& r : e.refreshes) {
    int cells = 0;
    std::string places;
    for (const auto& [a, b] : r.ranges) {
      cells += b - a;
      if (!places.empty()) places += ", ";
      if (b - a > 1) put(places, "{}–{}", a, b - 1);
      else put(places, "{}", a);
    }
    put(out, "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"t\">{}</td></tr>\n", r.number, r.round + 1,
        r.length, cells, places);
  }
  out += "</tbody></table></div></details>\n";
}

void put_strip_svg(std::string& out, const Explanation& e, int cells) {
  const size_t rows = e.refreshes.size();
  const auto svg = [&](size_t height) {
    put(out, "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">", cells, height);
  };
  out += "<div class=\"plot strip sum\" title=\"all refreshes together\">";
  svg(1);
  put_shares(out, e, cells);
  put(out,
      "</svg></div>\n<div class=\"plot strip\" id=\"strip\" role=\"img\" style=\"height:{}px\" "
      "data-cells=\"{}\" data-chunk=\"{}\" "
      "data-prompt=\"{}\" data-sink=\"{}\" data-recent=\"{}\" aria-label=\"{} refreshes over {} tokens; the table "
      "below has the places\" "
      "aria-describedby=\"where\">",
      std::clamp<size_t>(14 * rows, 56, 420), cells, e.chunk, e.prompt_tokens, e.sink, e.recent, rows, cells);
  svg(rows);
  std::string sink, get, recent;
  for (size_t row = 0; row < rows; ++row) {
    const ExplainRefresh& r = e.refreshes[row];
    const int late = std::max(e.sink, r.length - e.recent);
    put_row(sink, r, row, 0, e.sink);
    put_row(get, r, row, e.sink, late);
    put_row(recent, r, row, late, cells);
  }
  put(out,
      "<path class=\"recent\" d=\"{}\"/><path class=\"get\" d=\"{}\"/><path class=\"sink\" d=\"{}\"/><path "
      "class=\"end\" d=\"M{} 0V{}\"/></svg></div>\n",
      recent, get, sink, e.prompt_tokens, rows);
}

void put_strip(std::string& out, const Explanation& e) {
  out += "<section><h2>What the draft worked on</h2>\n";
  if (e.refreshes.empty() || e.chunk <= 0) {
    out +=
        "<p>No part of the text was left out: the draft had no cache of its own, or one that holds "
        "everything.</p></section>\n";
    return;
  }
  const int cells = e.prompt_tokens + int(e.tokens.size());
  out +=
      "<p class=\"legend\"><span><i style=\"background:var(--get)\"></i>chosen</span><span><i "
      "style=\"background:var(--sink)\"></i>sink (always kept)</span>"
      "<span><i style=\"background:var(--recent)\"></i>recent (always kept)</span><span>dashed: end of the "
      "prompt</span></p>\n";
  put(out,
      "<p class=\"soft\">Left to right: the text, in chunks of {} tokens. Top to bottom: time, one row for each "
      "refresh of the draft's cache; the "
      "separate row sums them up, stronger for more often.</p>\n<figure>",
      e.chunk);
  put_strip_svg(out, e, cells);
  put(out,
      "<div class=\"ends\"><span>token 0</span><span>token {}</span></div></figure>\n<div class=\"card read js\"><p "
      "class=\"soft\" id=\"where\" aria-live=\"polite\">"
      "Point at the strip, tap it, or focus it and use the arrow keys, to read a chunk.</p><pre "
      "id=\"read\"></pre></div>\n",
      cells - 1);
  put_refresh_table(out, e);
  out += "<details><summary>The chunks</summary><ol class=\"chunks\" id=\"chunks\" start=\"0\">\n";
  for (const std::string& chunk : e.chunks) put(out, "<li>{}</li>\n", html_text(chunk));
  out += "</ol></details></section>\n";
}

void put_phases(std::string& out, const ExplainSums& s) {
  const double all = total_ms(s.times);
  if (all <= 0) return;
  out += "<section><h2>Where the time went</h2>\n<div class=\"phases\" aria-hidden=\"true\">";
  const auto list = phases_of(s.times);
  for (size_t i = 0; i < list.size(); ++i)
    put(out, "<span class=\"p{}\" style=\"width:{:.2f}%\"></span>", i, 100 * list[i].ms / all);
  out +=
      "</div>\n<table><thead><tr><th scope=\"col\" class=\"t\">phase</th><th scope=\"col\">ms</th><th "
      "scope=\"col\">%</th></tr></thead><tbody>\n";
  for (size_t i = 0; i < list.size(); ++i)
    put(out,
        "<tr><td class=\"t\"><span class=\"legend\" style=\"margin:0\"><span><i class=\"p{}\"></i>{}: "
        "{}</span></span></td><td>{:.1f}</td><td>{:.1f}</td></tr>\n",
        i, list[i].name, list[i].what, list[i].ms, 100 * list[i].ms / all);
  out += "</tbody></table></section>\n";
}

void put_settings(std::string& out, const Explanation& e) {
  const Json settings = Json::parse(e.settings_json, nullptr, false);
  if (!settings.is_object()) return;
  out += "<details><summary>Settings of the method</summary><table><tbody>\n";
  for (const auto& [name, value] : settings.items())
    put(out, "<tr><th scope=\"row\" class=\"t\">{}</th><td class=\"t\">{}</td></tr>\n", html_text(name),
        html_text(value.is_string() ? value.get<std::string>()
                                    : value.dump(-1, ' ', false, Json::error_handler_t::replace)));
  out += "</tbody></table></details>\n";
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    const size_t length = character(text, at);
    const char c = text[at];
    if (length == 0) out += "\xEF\xBF\xBD";
    else if (length > 1) out += text.substr(at, length);
    else if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else if (c == '\'') out += "&#39;";
    else if (c == 0x7F) out += "\xE2\x90\xA1";
    else if (c < 0x20 && c != '\n' && c != '\t') out += "\xE2\x90", out += char(0x80 + c);  // U+2400 + c
    else out += c;
    at += std::max<size_t>(length, 1);
  }
  return out;
}

std::string explain_page(const Explanation& e) {
  const ExplainSums s = sums_of(e);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // Nothing is fetched, whatever a text may contain.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">\n";
  put(out,
      "<title>Speculation at work: {}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n<h1>Speculation at "
      "work</h1>\n",
      html_text(e.method), kExplainStyle);
  put(out, "<p class=\"soft\">Model {}{}{} · method {} · {} · specextend {}</p>\n", html_text(base_name(e.model)),
      e.draft_model.empty() ? "" : " · draft ", html_text(base_name(e.draft_model)), html_text(e.method),
      html_text(e.backend), html_text(e.version));
  put_summary(out, e, s);
  put_text(out, e);
  put_chart(out, e);
  put_strip(out, e);
  put_phases(out, s);
  put_settings(out, e);
  put(out, "</main>\n<script>{}</script>\n</body>\n</html>\n", kExplainScript);
  return out;
}

}  // namespace sx::cli
