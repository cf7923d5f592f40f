#include "cli/eval_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace sx::cli {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string text_of(const OrderedJson& j) { return j.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

std::string whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(fmt::format("cannot read '{}': {}", path, std::strerror(errno)));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void put_optional(OrderedJson& j, const char* key, const std::optional<double>& value) {
  if (value) j[key] = *value;
}
std::optional<double> get_optional(const Json& j, const char* key) {
  return j.contains(key) ? std::optional(j[key].get<double>()) : std::nullopt;
}

// Quotes what a spreadsheet would not read as one value.
std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

OrderedJson to_object(const EvalRun& r) {
  const PhaseTimes& t = r.times;
  OrderedJson j{{"method", r.cell.method},
                {"prompt", r.cell.with.prompt},
                {"length", r.cell.with.length},
                {"temperature", r.cell.with.temperature},
                {"max_tokens", r.cell.with.answer},
                {"batch", r.cell.with.batch},
                {"repetition", r.repetition},
                {"category", r.category},
                {"prompt_tokens", r.prompt_tokens},
                {"tokens", r.tokens},
                {"first_token_ms", r.first_token_ms},
                {"whole_ms", r.whole_ms},
                {"prompt_ms", r.prompt_ms},
                {"draft_prompt_ms", r.draft_prompt_ms},
                {"decode_ms", r.decode_ms},
                {"tokens_per_second", r.tokens_per_second()},
                {"decode_tokens_per_second", r.decode_tokens_per_second()},
                {"tokens_per_pass", r.tokens_per_pass()},
                {"accepted_per_pass", r.accepted_per_pass()},
                {"rounds", r.rounds},
                {"drafted_rounds", r.drafted_rounds},
                {"drafted", r.drafted},
                {"verified", r.verified},
                {"accepted", r.accepted},
                {"tried_at_depth", r.tried_at_depth},
                {"accepted_at_depth", r.accepted_at_depth},
                {"round_ms", r.round_ms},
                {"predicted_ms", r.predicted_ms},
                {"distinct_8grams", r.distinct},
                {"peak_mb", r.peak_mb},
                {"device_mb", r.device_mb},
                {"promised", r.promised},
                {"equal", r.equal},
                {"answer", r.answer}};
  j["ms"] = {{"draft", t.draft},   {"verify", t.verify}, {"accept", t.accept},
             {"commit", t.commit}, {"score", t.score},   {"host", t.host}};
  put_optional(j, "rouge_l", r.rouge);
  put_optional(j, "exact_match", r.exact);
  return j;
}

EvalRun eval_run_from(const Json& j) {
  EvalRun r;
  r.cell.method = j.at("method"), r.cell.with.prompt = j.at("prompt"), r.cell.with.length = j.at("length");
  r.cell.with.temperature = j.at("temperature"), r.cell.with.answer = j.at("max_tokens");
  r.cell.with.batch = j.at("batch"), r.repetition = j.at("repetition"), r.category = j.at("category");
  r.prompt_tokens = j.at("prompt_tokens"), r.tokens = j.at("tokens");
  r.first_token_ms = j.at("first_token_ms"), r.whole_ms = j.at("whole_ms"), r.prompt_ms = j.at("prompt_ms");
  r.draft_prompt_ms = j.at("draft_prompt_ms"), r.decode_ms = j.at("decode_ms");
  r.rounds = j.at("rounds"), r.drafted_rounds = j.at("drafted_rounds"), r.drafted = j.at("drafted");
  r.verified = j.at("verified"), r.accepted = j.at("accepted");
  j.at("tried_at_depth").get_to(r.tried_at_depth), j.at("accepted_at_depth").get_to(r.accepted_at_depth);
  r.round_ms = j.at("round_ms"), r.predicted_ms = j.at("predicted_ms"), r.distinct = j.at("distinct_8grams");
  r.peak_mb = j.at("peak_mb"), r.device_mb = j.at("device_mb");
  r.promised = j.at("promised"), r.equal = j.at("equal"), r.answer = j.at("answer");
  const Json& ms = j.at("ms");
  r.times = {.draft = ms.at("draft"),
             .verify = ms.at("verify"),
             .accept = ms.at("accept"),
             .commit = ms.at("commit"),
             .score = ms.at("score"),
             .host = ms.at("host")};
  r.rouge = get_optional(j, "rouge_l"), r.exact = get_optional(j, "exact_match");
  return r;
}

EvalResults parse_eval_results(const std::string& text, const std::string& name, size_t* good_bytes) {
  EvalResults out;
  size_t at = 0;
  for (int number = 1; at < text.size(); ++number) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // a last line without its end was not written whole
    const std::string line = text.substr(at, end - at);
    const bool last = end + 1 == text.size();
    try {
      if (number == 1) {
        out.head = OrderedJson::parse(line);
        if (!out.head.contains("eval") || !out.head.contains("fixed")) throw Error("");
      } else {
        out.runs.push_back(eval_run_from(Json::parse(line)));
      }
    } catch (const std::exception&) {
      if (last && number > 1) break;
      throw Error(fmt::format("'{}' line {}: not a result of `specextend eval`", name, number));
    }
    at = end + 1;
  }
  if (good_bytes) *good_bytes = at;
  return out;
}

EvalResults read_eval_results(const std::string& folder_or_file) {
  const std::string path =
      fs::is_directory(folder_or_file) ? (fs::path(folder_or_file) / "results.jsonl").string() : folder_or_file;
  if (!fs::exists(path)) throw Error(fmt::format("'{}' is not there: expected a folder of `specextend eval`", path));
  EvalResults results = parse_eval_results(whole_file(path), path);
  if (results.runs.empty()) throw Error(fmt::format("'{}' has no results yet", path));
  return results;
}

EvalStore::EvalStore(const std::string& folder, const OrderedJson& head, bool restart) : folder_(folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("cannot make the folder '{}': {}", folder, error.message()));
  path_ = (fs::path(folder) / "results.jsonl").string();
  if (!restart && fs::exists(path_)) {
    size_t good = 0;
    const std::string text = whole_file(path_);
    results_ = parse_eval_results(text, path_, &good);
    if (!results_.head.is_null() && Json(results_.head["fixed"]) != Json(head.at("fixed"))) {
      std::string which;
      for (const auto& [key, value] : head["fixed"].items())
        if (which.empty() && results_.head["fixed"].value(key, OrderedJson()) != value)
          which = fmt::format(": {} was {}, is {}", key, text_of(results_.head["fixed"].value(key, OrderedJson())),
                              text_of(value));
      throw Error(fmt::format("'{}' has results of another evaluation{}; take another folder (--out), or --restart",
                              path_, which));
    }
    if (good < text.size()) fs::resize_file(path_, good);
    for (const EvalRun& run : results_.runs) done_.insert({run.cell, run.repetition});
  }
  out_.open(path_, std::ios::binary | (results_.head.is_null() ? std::ios::trunc : std::ios::app));
  if (!out_) throw Error(fmt::format("cannot write '{}': {}", path_, std::strerror(errno)));
  if (results_.head.is_null()) append(results_.head = head);
}

void EvalStore::add(const EvalRun& run) {
  append(to_object(run));
  results_.runs.push_back(run);
  done_.insert({run.cell, run.repetition});
}

void EvalStore::append(const OrderedJson& line) {
  if (!(out_ << text_of(line) << '\n').flush())
    throw Error(fmt::format("cannot write '{}': {}", path_, std::strerror(errno)));
}

std::string eval_csv(std::span<const EvalRun> runs) {
  std::string out;
  for (const EvalRun& run : runs) {
    const OrderedJson j = to_object(run);
    std::string names, values;
    const auto put = [&](const std::string& name, const OrderedJson& value) {
      if (!names.empty()) names += ',', values += ',';
      names += name;
      values += value.is_string() ? csv_text(value.get<std::string>()) : value.is_null() ? "" : text_of(value);
    };
    for (const auto& [name, value] : j.items()) {
      if (name == "rouge_l" || name == "exact_match" || value.is_array()) continue;
      if (!value.is_object()) put(name, value);
      else
        for (const auto& [phase, ms] : value.items()) put(phase + "_ms", ms);
    }
    for (const char* name : {"rouge_l", "exact_match"}) put(name, j.value(name, OrderedJson()));
    if (out.empty()) out = names + "\n";
    out += values + "\n";
  }
  return out;
}

void write_eval_file(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  {
    std::ofstream out(next, std::ios::binary);
    if (!out || !(out << text).flush()) throw Error(fmt::format("cannot write '{}': {}", next, std::strerror(errno)));
  }
  std::error_code error;
  fs::rename(next, path, error);
  if (error) throw Error(fmt::format("cannot write '{}': {}", path, error.message()));
}

}  // namespace sx::cli
