#include "cli/eval_stats.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <tuple>

namespace sx::cli {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || std::isalnum(byte)) word += byte < 0x80 ? char(std::tolower(byte)) : c;
    else if (!word.empty()) words.push_back(std::exchange(word, {}));
  }
  if (!word.empty()) words.push_back(word);
  return words;
}

std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (!std::isspace(byte)) out += char(std::tolower(byte));
    else if (!out.empty() && out.back() != ' ') out += ' ';
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

template <typename Of>
double median_of(std::span<const EvalRun* const> runs, Of of) {
  std::vector<double> values;
  for (const EvalRun* run : runs) values.push_back(of(*run));
  return median(std::move(values));
}

EvalSummary summary_of(std::vector<const EvalRun*> runs) {
  std::stable_sort(runs.begin(), runs.end(),
                   [](const EvalRun* a, const EvalRun* b) { return a->whole_ms < b->whole_ms; });
  EvalSummary s;
  s.typical = *runs[(runs.size() - 1) / 2];
  s.cell = s.typical.cell;
  s.runs = int(runs.size());
  s.whole_ms = median_of(runs, [](const EvalRun& r) { return r.whole_ms; });
  s.least_ms = runs.front()->whole_ms, s.most_ms = runs.back()->whole_ms;
  s.first_token_ms = median_of(runs, [](const EvalRun& r) { return r.first_token_ms; });
  s.tokens_per_second = median_of(runs, [](const EvalRun& r) { return r.tokens_per_second(); });
  s.decode_tokens_per_second = median_of(runs, [](const EvalRun& r) { return r.decode_tokens_per_second(); });
  for (const EvalRun* run : runs)
    s.equal &= run->equal || !run->promised, s.peak_mb = std::max(s.peak_mb, run->peak_mb);
  return s;
}

// The mean of what some cells have.
class Mean {
 public:
  void add(const std::optional<double>& value) {
    if (value) sum_ += *value, ++count_;
  }
  std::optional<double> value() const { return count_ ? std::optional(sum_ / count_) : std::nullopt; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

EvalRow row_of(std::span<const EvalSummary* const> cells) {
  const EvalCase& with = cells.front()->cell.with;
  EvalRow row{.method = cells.front()->cell.method,
              .length = with.length,
              .answer = with.answer,
              .batch = with.batch,
              .temperature = with.temperature,
              .cells = int(cells.size())};
  const auto middle = [&](auto of) {
    std::vector<double> values;
    for (const EvalSummary* cell : cells) values.push_back(of(*cell));
    return median(std::move(values));
  };
  row.prompt_tokens = middle([](const EvalSummary& c) { return double(c.typical.prompt_tokens) / c.cell.with.batch; });
  row.first_token_ms = middle([](const EvalSummary& c) { return c.first_token_ms; });
  row.tokens_per_second = middle([](const EvalSummary& c) { return c.tokens_per_second; });
  row.decode_tokens_per_second = middle([](const EvalSummary& c) { return c.decode_tokens_per_second; });
  row.tokens_per_pass = middle([](const EvalSummary& c) { return c.typical.tokens_per_pass(); });
  row.accepted_per_pass = middle([](const EvalSummary& c) { return c.typical.accepted_per_pass(); });
  row.predicted = middle(
      [](const EvalSummary& c) { return c.typical.round_ms > 0 ? c.typical.predicted_ms / c.typical.round_ms : 0; });
  row.distinct = middle([](const EvalSummary& c) { return c.typical.distinct; });
  row.speedup = middle([](const EvalSummary& c) { return c.speedup; });
  row.decode_speedup = middle([](const EvalSummary& c) { return c.decode_speedup; });
  row.worst = std::numeric_limits<double>::infinity();
  Mean rouge, exact;
  for (const EvalSummary* cell : cells) {
    row.different += !cell->equal;
    row.peak_mb = std::max(row.peak_mb, cell->peak_mb);
    if (cell->speedup < row.worst) row.worst = cell->speedup, row.worst_prompt = cell->cell.with.prompt;
    rouge.add(cell->typical.rouge), exact.add(cell->typical.exact);
  }
  row.rouge = rouge.value(), row.exact = exact.value();
  return row;
}

}  // namespace

double rouge_l(std::string_view text, std::string_view reference) {
  const std::vector<std::string> a = words_of(text), b = words_of(reference);
  if (a.empty() || b.empty()) return a.empty() && b.empty() ? 1 : 0;
  std::vector<int> row(b.size() + 1,
                       0);  // longest common subsequence of the words of `a` so far and the first j of `b`
  for (const std::string& word : a) {
    int diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return 2.0 * row.back() / double(a.size() + b.size());
}

bool exact_match(std::string_view text, std::string_view reference) { return squeezed(text) == squeezed(reference); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double EvalRun::decode_tokens_per_second() const { return decode_ms > 0 ? 1e3 * tokens / decode_ms : 0; }

std::vector<EvalSummary> summarise(std::span<const EvalRun> runs) {
  std::vector<EvalCell> order;
  std::map<EvalCell, std::vector<const EvalRun*>> cells;
  for (const EvalRun& run : runs) {
    auto& list = cells[run.cell];
    if (list.empty()) order.push_back(run.cell);
    list.push_back(&run);
  }
  std::vector<EvalSummary> out;
  std::map<EvalCase, size_t> plain;
  for (const EvalCell& cell : order) {
    if (cell.method == kPlainMethod) plain[cell.with] = out.size();
    out.push_back(summary_of(cells[cell]));
  }
  for (EvalSummary& s : out) {
    const auto found = plain.find(s.cell.with);
    if (found == plain.end()) continue;
    const EvalSummary& p = out[found->second];
    if (p.tokens_per_second == 0 &&
        s.tokens_per_second == 0) {  // an answer that ends at once: the prompt's time is all
      s.speedup = s.decode_speedup = s.whole_ms > 0 ? p.whole_ms / s.whole_ms : 0;
      continue;
    }
    if (p.tokens_per_second > 0) s.speedup = s.tokens_per_second / p.tokens_per_second;
    if (p.decode_tokens_per_second > 0) s.decode_speedup = s.decode_tokens_per_second / p.decode_tokens_per_second;
  }
  return out;
}

std::vector<EvalRow> rows_of(std::span<const EvalSummary> cells) {
  const auto setting = [](const EvalCell& c) {
    return std::tuple(c.with.batch, c.with.length, c.with.temperature, c.with.answer);
  };
  using Key = std::pair<decltype(setting(EvalCell())), size_t>;  // the method by its first place
  std::map<std::string, size_t> methods;
  std::map<Key, std::vector<const EvalSummary*>> rows;
  for (const EvalSummary& cell : cells) {
    const size_t method = methods.emplace(cell.cell.method, methods.size()).first->second;
    rows[{setting(cell.cell), method}].push_back(&cell);
  }
  std::vector<EvalRow> out;
  for (const auto& [key, list] : rows) out.push_back(row_of(list));
  return out;
}

EvalDiff diff(std::span<const EvalSummary> before, std::span<const EvalSummary> after, double least_noise) {
  std::map<EvalCell, const EvalSummary*> old;
  std::vector<double> spreads;
  for (const auto& list : {before, after})
    for (const EvalSummary& s : list)
      if (s.runs > 1) spreads.push_back(s.spread());
  const double usual = median(spreads);
  for (const EvalSummary& s : before) old[s.cell] = &s;
  EvalDiff out;
  for (const EvalSummary& b : after) {
    const auto found = old.find(b.cell);
    if (found == old.end()) {
      ++out.only_after;
      continue;
    }
    const EvalSummary& a = *found->second;
    EvalChange c{.cell = b.cell, .before = a.tokens_per_second, .after = b.tokens_per_second};
    c.ratio = c.before > 0 ? c.after / c.before : a.whole_ms / std::max(1e-9, b.whole_ms);
    const auto noise = [&](const EvalSummary& s) { return s.runs > 1 ? s.spread() : usual; };
    c.noise = std::max(least_noise, noise(a) + noise(b));
    const bool apart = b.least_ms > a.most_ms || a.least_ms > b.most_ms;
    c.moved = apart && (c.ratio < 1 / (1 + c.noise) || c.ratio > 1 + c.noise);
    c.text_changed = a.typical.answer != b.typical.answer;
    if (c.text_changed) c.moved = c.moved && a.typical.tokens == b.typical.tokens;  // other texts take other times
    c.lost_bytes = a.equal && !b.equal;
    out.slower += c.moved && c.ratio < 1, out.faster += c.moved && c.ratio > 1;
    out.text_changed += c.text_changed, out.lost_bytes += c.lost_bytes;
    out.cells.push_back(c);
  }
  out.only_before = int(before.size()) - int(out.cells.size());
  return out;
}

}  // namespace sx::cli
