#include "cli/common.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/progress.h"

namespace sx::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int) {
  if (g_interrupted) ::_exit(130);
  g_interrupted = 1;
}

uint64_t read_seed(const std::string& text) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  if (const auto [rest, error] = std::from_chars(text.data(), end, seed); error != std::errc() || rest != end)
    throw CLI::ValidationError("--seed", fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX));
  return seed;
}

}  // namespace

void watch_interrupt() { std::signal(SIGINT, on_interrupt); }
bool interrupted() { return g_interrupted != 0; }
void clear_interrupt() { g_interrupted = 0; }

void add_model_flag(CLI::App& app, std::string& model) {
  app.add_option("-m,--model", model, "GGUF file or Hugging Face folder (default: the default model in the cache folder)")
      ->envname("LLAMA_ARG_MODEL");
}

void add_engine_flags(CLI::App& app, EngineOptions& o, std::string& chat_template_file) {
  add_model_flag(app, o.model);
  app.add_option("-c,--ctx-size", o.context, "tokens the context holds (0: what the model was trained for)")
      ->envname("LLAMA_ARG_CTX_SIZE");
  app.add_option("-t,--threads", o.threads, "threads (0: one per core this process may use, within its CPU quota)")->envname("LLAMA_ARG_THREADS");
  app.add_option_function<int>("--tb,--threads-batch", [](int) {}, "accepted for compatibility: prompts use the same threads");
  app.add_option("-b,--batch-size,--ub,--ubatch-size", o.chunk, "prompt tokens processed in one step (0: what suits the device)")
      ->capture_default_str();
  app.add_option("--kv-type,--ctk,--cache-type-k", o.kv_type, "type of the KV cache: f32, f16, bf16 or q8_0 (default: the fastest here)");
  app.add_option_function<std::string>("--ctv,--cache-type-v", [&o](const std::string& type) {
    if (!o.kv_type.empty() && o.kv_type != type) throw CLI::ValidationError("--ctv", "K and V share one type; it is already " + o.kv_type);
    o.kv_type = type;
  }, "the same as --ctk: K and V share one type");
  app.add_option_function<std::string>("--fa,--flash-attn", [](const std::string&) {}, "accepted for compatibility: attention is always of the flash kind");
  app.add_option("--device,--dev", o.device, "where to run: cpu, cuda, cuda:N, or auto: a CUDA device if there is one")->capture_default_str();
  app.add_option_function<int>("--ngl,--gpu-layers,--n-gpu-layers", [&o](int layers) {
    if (layers == 0 && o.device == "auto") o.device = "cpu";
  }, "accepted for compatibility: a model runs on one device as a whole; 0 means --device cpu");
  app.add_option("--chat-template-file", chat_template_file, "Jinja chat template to use instead of the model's own");
}

void add_sampling_flags(CLI::App& app, GenerateOptions& o, std::vector<std::string>& bias) {
  SamplingOptions& s = o.sampling;
  app.add_option("-n,--predict,--n-predict", o.max_tokens, "tokens to generate at most (-1: until the text or the context ends)")
      ->capture_default_str();
  app.add_option("--temp,--temperature", s.temperature, "temperature; 0 takes the most likely token")->capture_default_str();
  app.add_option("--top-k", s.top_k, "sample from the K most likely tokens (0: all)")->capture_default_str();
  app.add_option("--top-p", s.top_p, "sample from the smallest set with this probability (1: all)")->capture_default_str();
  app.add_option("--min-p", s.min_p, "drop tokens less likely than this share of the likeliest (0: none)")->capture_default_str();
  app.add_option("--repeat-penalty", s.repeat_penalty, "divide the logits of recent tokens by this (1: off)")->capture_default_str();
  app.add_option("--presence-penalty", s.presence_penalty, "subtract this from the logits of recent tokens")->capture_default_str();
  app.add_option("--frequency-penalty", s.frequency_penalty, "subtract this once per recent occurrence")->capture_default_str();
  app.add_option("--repeat-last-n", s.repeat_last_n, "tokens the penalties look back at (-1: all)")->capture_default_str();
  app.add_option("-l,--logit-bias", bias, "TOKEN+VALUE or TOKEN-VALUE, e.g. 15+2.5; may be repeated");
  app.add_option_function<std::string>("-s,--seed", [&s](const std::string& text) { s.seed = read_seed(text); },
                                       "seed of the random, less than 2^64; equal seeds give equal texts")
      ->type_name("UINT")->default_str("0");
  app.add_option("-r,--stop", o.stop, "end the text before this string; may be repeated");
  auto* const grammar = app.add_option("--grammar", o.grammar, "only texts that this grammar (GBNF) describes");
  auto* const grammar_file = app.add_option_function<std::string>(
      "--grammar-file", [&o](const std::string& file) { o.grammar = read_file(file); }, "the same from a file");
  app.add_option_function<std::string>("-j,--json-schema", [&o](const std::string& schema) { o.grammar = json_schema_to_gbnf(schema); },
                                       "only JSON that this schema describes, e.g. '{}' for any")
      ->excludes(grammar, grammar_file);
  grammar_file->excludes(grammar);
  app.add_flag("--ignore-eos", o.ignore_end, "go on after end-of-text tokens");
  app.add_flag("--special", o.show_special, "show control tokens");
}

void apply_bias(GenerateOptions& options, const std::vector<std::string>& bias) {
  for (const auto& text : bias) {
    const size_t sign = text.find_first_of("+-", 1);
    try {
      size_t used = 0, used_value = 0;
      const int token = std::stoi(text, &used);
      const float value = std::stof(text.substr(used), &used_value);
      if (sign == std::string::npos || used != sign || used + used_value != text.size()) throw std::invalid_argument(text);
      options.sampling.logit_bias.emplace_back(token, value);
    } catch (const std::exception&) {
      throw Error("--logit-bias '" + text + "': expected TOKEN+VALUE or TOKEN-VALUE, e.g. 15+2.5");
    }
  }
}

// "device memory: 16.4 GB: weights 15.0, the KV store 1.1, ..." by size, what is little left out.
void print_device_memory(const Engine& engine) {
  auto uses = engine.device_memory();
  if (uses.empty()) return;
  std::sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  double total = 0;
  for (const auto& use : uses) total += double(use.second);
  std::string parts;
  for (const auto& [purpose, bytes] : uses)
    if (double(bytes) > total / 100) parts += fmt::format("{} {} {:.2f}", parts.empty() ? ":" : ",", purpose, double(bytes) / 1e9);
  fmt::print(stderr, "{}: {:.2f} GB of device memory{}\n", engine.backend(), total / 1e9, parts);
}

void print_warnings(std::span<const std::string> warnings) {
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
}

std::unique_ptr<Engine> open_engine(EngineOptions options, const std::string& chat_template_file, bool quiet) {
  if (!chat_template_file.empty()) options.chat_template = read_file(chat_template_file);
  options.startup_cache = startup_cache_folder();
  ProgressLine line("loading", quiet);
  if (!quiet)
    options.on_load = [&, told = options.on_load](double done) {
      line.update(done, "");
      if (told) told(done);
    };
  auto engine = Engine::open(options);
  line.clear();
  const std::string& draft = engine->options().spec.draft_model;
  if (!quiet && draft != options.spec.draft_model) fmt::print(stderr, "draft: {} (shipped)\n", draft);
  if (!quiet) print_device_memory(*engine);
  print_warnings(engine->warnings());
  return engine;
}

void warn_without_template(const Engine& engine) {
  if (engine.tokenizer().chat_template().empty())
    fmt::print(stderr, "warning: the model has no chat template; ChatML is used, which it may not know (--chat-template-file gives another)\n");
}

void add_prompt_flags(CLI::App& app, PromptFlags& flags) {
  app.add_option("-p,--prompt", flags.prompt, "the prompt");
  app.add_option("-f,--file", flags.file, "read the prompt from a file (- is standard input)");
  app.add_option("--prefix", flags.prefix, "text put before the prompt, e.g. an instruction before a document");
  app.add_option("--suffix", flags.suffix, "text put after the prompt");
  auto* const chat = app.add_flag("--chat", flags.chat, "send the prompt as a user's message through the chat template");
  app.add_option("--system,--sys", flags.system, "system message (with --chat)")->needs(chat);
  app.add_flag("-e,--escape", flags.escape, "read \\n, \\t, ... in the prompt as escapes");
  app.add_flag("--raw", flags.raw, "take control tokens in the prompt as plain text");
}

std::vector<Token> prompt_tokens(const PromptFlags& flags, const Engine& engine) {
  std::string text = flags.file.empty() ? flags.prompt : read_file(flags.file);
  if (flags.escape) text = unescape(text);
  if (flags.chat) warn_without_template(engine);
  text = flags.prefix + text + flags.suffix;
  return engine.tokenizer().tokenize(flags.chat ? chat_prompt(engine, flags.system, text) : text, !flags.chat, !flags.raw);
}

GenerateResult decode_plainly(Session& session, std::span<const Token> prompt, GenerateOptions options) {
  options.speculate = false;
  options.on_round = {};
  options.on_prefill = {};
  options.on_text = {};
  options.cancelled = interrupted;
  return session.generate(prompt, options);
}

std::string chat_prompt(const Engine& engine, const std::string& system, const std::string& text) {
  std::vector<Message> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", text});
  return engine.tokenizer().apply_template(messages);
}

std::string read_file(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw Error("'" + path + "' is a folder, a file is expected");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error("cannot open '" + path + "'");
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) throw Error("cannot read '" + path + "'");
  return text.str();
}

std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) { out += text[i]; continue; }
    const char c = text[++i];
    if (c == 'n') out += '\n';
    else if (c == 't') out += '\t';
    else if (c == 'r') out += '\r';
    else if (c == '\\' || c == '"' || c == '\'') out += c;
    else out += '\\', out += c;
  }
  return out;
}

std::string to_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return true;
  if (errno == EPIPE) return false;
  throw Error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

// Drafted tokens that were accepted, by depth, and where the time went.
void print_speculation(const SpecStats& s) {
  if (s.drafted_rounds == 0) return;
  const PhaseTimes& t = s.times;
  fmt::print(stderr, "\n  speculation: {} rounds, {} drafted; {} tokens drafted, {} verified, {} accepted\n", s.rounds, s.drafted_rounds, s.drafted,
             s.verified, s.accepted);
  fmt::print(stderr, "  acceptance length {:.2f} without, {:.2f} with the bonus token; by depth", s.accepted_per_round(), s.tokens_per_round());
  for (size_t d = 0; d < s.tried_at_depth.size() && s.tried_at_depth[d] > 0 && d < 10; ++d)
    fmt::print(stderr, " {:.0f}%", 100.0 * double(s.accepted_at_depth[d]) / double(s.tried_at_depth[d]));
  fmt::print(stderr, "\n  ms: draft {:.1f}, verify {:.1f}, accept {:.1f}, commit {:.1f}, score {:.1f}, host {:.1f}\n", t.draft, t.verify, t.accept, t.commit,
             t.score, t.host);
}

void print_timings(const GenerateResult& r) {
  const Timings& t = r.timings;
  const auto rate = [](int tokens, double ms) { return ms > 0 ? 1e3 * tokens / ms : 0.0; };
  fmt::print(stderr, "\n  {:<9}{:>8}{:>12}{:>12}\n", "", "tokens", "ms", "tok/s");
  fmt::print(stderr, "  {:<9}{:>8}{:>12.1f}{:>12.1f}", "prefill", t.prompt_tokens, t.prompt_ms, rate(t.prompt_tokens, t.prompt_ms));
  if (t.cached_tokens > 0) fmt::print(stderr, "  (+ {} from the cache)", t.cached_tokens);
  fmt::print(stderr, "\n  {:<9}{:>8}{:>12.1f}{:>12.1f}\n", "decode", t.generated_tokens, t.decode_ms, rate(t.generated_tokens, t.decode_ms));
  if (t.draft_prompt_ms > 0) fmt::print(stderr, "  {:<9}{:>20.1f}   beside decoding: the draft read the prompt\n", "draft", t.draft_prompt_ms);
  print_speculation(r.spec);
  fmt::print(stderr, "  finished: {}\n", finish_reason_name(r.reason));
}

}  // namespace sx::cli
