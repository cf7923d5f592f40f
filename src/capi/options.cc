// Options of the C interface: their defaults, versions, and translation.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "capi/handles.h"

namespace {

// Writes the defaults into as much of the structure as the caller's version has.
template <class Options>
void write_defaults(Options* out, size_t size, Options defaults) {
  if (!out || size < sizeof(size_t)) return;
  defaults.size = size;
  std::memcpy(out, &defaults, std::min(size, sizeof defaults));
  if (size > sizeof defaults) std::memset(reinterpret_cast<char*>(out) + sizeof defaults, 0, size - sizeof defaults);
}

// Returns the caller's structure with the defaults of the members that its version does not have.
template <class Options>
Options complete(const Options& given, Options defaults, const char* name) {
  if (given.size < sizeof(size_t) || given.size > sizeof defaults)
    throw sx::capi::BadArgument(fmt::format(
        "{}: its size is {}, this library (version {} of the C interface) knows {}; call {}_init, or take a newer library",
        name, given.size, SX_C_VERSION, sizeof defaults, name));
  std::memcpy(&defaults, &given, given.size);
  return defaults;
}

sx_engine_options engine_defaults() {
  const sx::EngineOptions o;
  sx_engine_options out{};
  out.context = o.context, out.threads = o.threads, out.max_sessions = o.max_sessions;
  return out;
}

sx_generate_options generate_defaults() {
  const sx::GenerateOptions o;
  const sx::SamplingOptions& s = o.sampling;
  sx_generate_options out{};
  out.max_tokens = o.max_tokens, out.temperature = s.temperature, out.top_k = s.top_k, out.top_p = s.top_p;
  out.min_p = s.min_p, out.repeat_penalty = s.repeat_penalty, out.presence_penalty = s.presence_penalty;
  out.frequency_penalty = s.frequency_penalty, out.repeat_last_n = s.repeat_last_n, out.seed = s.seed;
  out.speculate = o.speculate;
  return out;
}

template <class T>
std::span<const T> items(const T* first, size_t n, const char* name) {
  if (n > 0 && !first) throw sx::capi::BadArgument(fmt::format("{} is NULL, but {} are announced", name, n));
  return {first, n};
}

}  // namespace

void sx_engine_options_init(sx_engine_options* options, size_t size) {
  write_defaults(options, size, engine_defaults());
}

void sx_generate_options_init(sx_generate_options* options, size_t size) {
  write_defaults(options, size, generate_defaults());
}

namespace sx::capi {

EngineOptions engine_options(const sx_engine_options& given) {
  const sx_engine_options c = complete(given, engine_defaults(), "sx_engine_options");
  EngineOptions o;
  if (c.model) o.model = c.model;
  if (c.spec) o.spec = parse_spec(c.spec);
  if (c.device) o.device = c.device;
  if (c.kv_type) o.kv_type = c.kv_type;
  o.context = c.context, o.threads = c.threads, o.max_sessions = c.max_sessions;
  o.startup_cache = c.startup_cache ? c.startup_cache : startup_cache_folder();
  return o;
}

GenerateOptions generate_options(const sx_generate_options* given) {
  GenerateOptions o;
  if (!given) return o;
  const sx_generate_options c = complete(*given, generate_defaults(), "sx_generate_options");
  SamplingOptions& s = o.sampling;
  o.max_tokens = c.max_tokens, s.temperature = c.temperature, s.top_k = c.top_k, s.top_p = c.top_p, s.min_p = c.min_p;
  s.repeat_penalty = c.repeat_penalty, s.presence_penalty = c.presence_penalty;
  s.frequency_penalty = c.frequency_penalty, s.repeat_last_n = c.repeat_last_n, s.seed = c.seed;
  const auto tokens = items(c.bias_tokens, c.biases, "bias_tokens");
  const auto values = items(c.bias_values, c.biases, "bias_values");
  for (size_t i = 0; i < c.biases; ++i) s.logit_bias.emplace_back(tokens[i], values[i]);
  for (const char* word : items(c.stop, c.stops, "stop")) {
    if (!word) throw BadArgument("a stop string is NULL");
    o.stop.push_back(word);
  }
  const auto ends = items(c.stop_tokens, c.stop_token_count, "stop_tokens");
  o.stop_tokens.assign(ends.begin(), ends.end());
  o.ignore_end = c.ignore_end, o.show_special = c.show_special, o.speculate = c.speculate;
  if (c.grammar) o.grammar = c.grammar;
  o.token_logits = c.token_logits && c.on_token;
  void* const user = c.user;
  if (c.on_text) o.on_text = [user, call = c.on_text](std::string_view text) { call(user, text.data(), text.size()); };
  if (c.on_token)
    o.on_token = [user, call = c.on_token](const TokenInfo& t) {
      const sx_token_info info{t.token, t.depth, t.logits.empty() ? nullptr : t.logits.data()};
      call(user, &info);
    };
  if (c.on_prefill) o.on_prefill = [user, call = c.on_prefill](int done, int total) { call(user, done, total); };
  if (c.cancelled) o.cancelled = [user, call = c.cancelled] { return call(user) != 0; };
  return o;
}

}  // namespace sx::capi
