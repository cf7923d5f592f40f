// Options of a request: numbers, stops, biases.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "server/request_parts.h"

namespace sx::server {

namespace {

constexpr int kDefaultTokens = 16;   // of /v1/completions, as OpenAI's
constexpr float kForbidden = -1e9f;  // the bias that llama.cpp's `false` stands for
constexpr int kMostNodes = 1024;     // of a drafted tree; the engine has a bound of its own
constexpr int kMostSlots = 1 << 16;
constexpr size_t kMostTold = 1024;  // bytes of a client's own words in an error

// Options of a method that is off (mirostat_tau, dry_base, xtc_threshold ...) ask for nothing by themselves.
constexpr MissingField kMissing[] = {
    {"functions", "[]"},
    {"suffix", "[]"},  // OpenAI
    {"audio", "[]"},
    {"modalities", R"([["text"]])"},
    {"web_search_options", "[]"},
    {"guided_whitespace_pattern", "[]"},  // vLLM
    {"structural_tag", "[]"},
    {"use_beam_search", "[]"},
    {"length_penalty", "[1]"},
    {"early_stopping", "[]"},
    {"bad_words", "[]"},
    {"allowed_token_ids", "[]"},
    {"include_stop_str_in_output", "[]"},
    {"logits_processors", "[]"},
    {"documents", "[]"},
    {"chat_template", "[]"},
    {"mm_processor_kwargs", "[]"},
    {"mirostat", "[0]"},
    {"mirostat_mode", "[0]"},
    {"typical_p", "[1]"},
    {"tfs_z", "[1]"},
    {"top_a", "[0]"},
    {"top_n_sigma", "[-1, 0]"},  // llama.cpp
    {"dry_multiplier", "[0]"},
    {"xtc_probability", "[0]"},
    {"dynatemp_range", "[0]"},
    {"samplers", "[]"},
    {"min_keep", "[0]"},
    {"t_max_predict_ms", "[0, -1]"},
    {"n_indent", "[0]"},
    {"image_data", "[]"},
    {"lora", "[]"},
    {"post_sampling_probs", "[]"},
    {"epsilon_cutoff", "[0]"},
    {"eta_cutoff", "[0]"},
    {"smoothing_factor", "[0]"},
    {"no_repeat_ngram_size", "[0]"},
    {"num_beams", "[1]"},  // others
    {"penalty_alpha", "[0]"},
    {"guidance_scale", "[1]"},
};

// What is not there is refused rather than ignored: the answer would not be what was asked for.
void refuse_missing(const Json& body) {
  for (const auto& [name, neutral] : kMissing) {
    const Json* value = field(body, name);
    if (is_off(value)) continue;
    const Json allowed = Json::parse(neutral);
    if (std::find(allowed.begin(), allowed.end(), *value) == allowed.end())
      throw bad_request(allowed.empty()
                            ? fmt::format("'{}' is not supported", name)
                            : fmt::format("'{}' is not supported, other than {}", name, allowed.front().dump()),
                        name);
  }
}

void read_stop(const Json& body, const Limits& limits, std::vector<std::string>& stop) {
  const Json* value = field(body, "stop");
  if (!value) return;
  const auto take = [&](const Json& one) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      throw bad_request("'stop' must be a string or a list of strings, none of them empty", "stop");
    if (one.get_ref<const std::string&>().size() > limits.stop_bytes)
      throw bad_request(fmt::format("a 'stop' is longer than {} bytes", limits.stop_bytes), "stop");
    stop.push_back(one.get<std::string>());
  };
  if (!value->is_array()) return take(*value);
  if (value->size() > limits.stops) throw bad_request(fmt::format("more than {} in 'stop'", limits.stops), "stop");
  for (const Json& one : *value) take(one);
}

// {"15043": -1.5} as OpenAI has it, or [[15043, -1.5]] as llama.cpp has it, whose own path takes texts, too.
void read_bias(const Json& body, const Limits& limits, bool texts, std::vector<std::pair<Token, float>>& bias) {
  const Json* value = field(body, "logit_bias");
  if (!value) return;
  const auto wrong = [](const std::string& what = {}) {
    return bad_request(
        fmt::format(
            "'logit_bias' must be an object of token ids with numbers from -100 to 100, or a list of such pairs{}",
            what.empty() ? "" : ", not " + what),
        "logit_bias");
  };
  const auto take_token = [&](int64_t token, const Json& amount) {
    const bool never = amount.is_boolean() && !amount.get<bool>();
    if (!never && (!amount.is_number() || !(amount.get<double>() >= -100 && amount.get<double>() <= 100)))
      throw wrong();
    if (token < 0 || token >= limits.vocab)
      throw bad_request(fmt::format("'logit_bias': token {} is outside the vocabulary of {}", token, limits.vocab),
                        "logit_bias");
    bias.emplace_back(Token(token), never ? kForbidden : amount.get<float>());
  };
  const auto take_text = [&](const std::string& text, const Json& amount) {  // as llama.cpp: each token of the text
    if (!texts || !limits.tokenize || text.empty() || text.size() > limits.stop_bytes) throw wrong();
    for (const Token token : limits.tokenize(text)) take_token(token, amount);
    if (bias.size() > limits.biases)
      throw bad_request(fmt::format("more than {} tokens in 'logit_bias'", limits.biases), "logit_bias");
  };
  if (!value->is_structured()) throw wrong();
  if (value->size() > limits.biases)
    throw bad_request(fmt::format("more than {} entries in 'logit_bias'", limits.biases), "logit_bias");
  if (value->is_array()) {
    for (const Json& pair : *value) {
      if (!pair.is_array() || pair.size() != 2 || !(pair[0].is_number() || pair[0].is_string())) throw wrong();
      if (pair[0].is_string()) take_text(pair[0].get_ref<const std::string&>(), pair[1]);
      else take_token(whole_number(pair[0]).value_or(-1), pair[1]);
    }
    return;
  }
  std::string strange;  // keys that are no token ids; all are told
  for (const auto& [key, amount] : value->items()) {
    int64_t token = -1;
    const auto end = key.data() + key.size();
    const auto read = std::from_chars(key.data(), end, token);
    const bool number = read.ec == std::errc() && read.ptr == end;
    if (number) take_token(token, amount);
    else if (texts) take_text(key, amount);
    else strange += (strange.empty() ? "" : ", ") + Json(key).dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  if (!strange.empty()) throw wrong(strange.substr(0, kMostTold));
}

void read_sampling(const Json& body, const Limits& limits, CompletionRequest& request) {
  SamplingOptions& s = request.options.sampling;
  const bool native =
      request.api == Api::kNative;  // has defaults of its own: those of the library but for the temperature
  if (!native) s.top_p = 1, s.top_k = 0, s.min_p = 0;
  const double temperature = limits.temperature.value_or(native ? 0.8 : 1);
  s.temperature = float(number_field(body, "temperature", temperature, 0, native ? 100 : 2));
  s.top_p = std::max(1e-9f, float(number_field(body, "top_p", double(s.top_p), 0, 1)));
  s.top_k = std::max(0, integer_field(body, "top_k", s.top_k, -1, kMostTokens));  // -1 means all, too
  s.min_p = float(number_field(body, "min_p", double(s.min_p), 0, 1));
  s.presence_penalty = float(number_field(body, "presence_penalty", 0, -2, 2));
  s.frequency_penalty = float(number_field(body, "frequency_penalty", 0, -2, 2));
  s.repeat_penalty = float(number_field(body, "repetition_penalty", 1, 0.01, 100));
  s.repeat_penalty = float(number_field(body, "repeat_penalty", double(s.repeat_penalty), 0.01, 100));
  s.repeat_last_n = integer_field(body, "repeat_last_n", s.repeat_last_n, -1, kMostTokens);
  read_bias(body, limits, native, s.logit_bias);
  request.seeded = limits.seed.has_value();
  s.seed = limits.seed.value_or(s.seed);
  if (const Json* seed = field(body, "seed")) {
    const std::optional<int64_t> number = whole_number(*seed);
    if (!number && !seed->is_number_unsigned())
      throw bad_request("'seed' must be a whole number from -2^63 to 2^64 - 1", "seed");
    request.seeded = number != -1;  // -1 is random, as in llama.cpp
    s.seed = number ? uint64_t(*number) : seed->get<uint64_t>();
  }
}

// Fields of a whole answer, a field within another one as "generation_settings/seed".
void read_response_fields(const Json& body, CompletionRequest& request) {
  constexpr size_t kMost = 64;
  const Json* fields = field(body, "response_fields");
  if (!fields) return;
  const auto is_string = [](const Json& one) { return one.is_string(); };
  if (!fields->is_array() || fields->size() > kMost || !std::ranges::all_of(*fields, is_string))
    throw bad_request(fmt::format("'response_fields' must be a list of at most {} names", kMost), "response_fields");
  request.response_fields = fields->get<std::vector<std::string>>();
}

void read_length(const Json& body, const Limits& limits, CompletionRequest& request) {
  int most = request.api == Api::kText ? kDefaultTokens : -1;
  bool given = false;
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    given = given || field(body, name);
    most = integer_field(body, name, most, -1, kMostTokens);
  }
  if (limits.max_tokens >= 0 && (most < 0 || most > limits.max_tokens)) {
    if (given && most >= 0)
      throw bad_request(fmt::format("'max_tokens' is {}, this server allows {}", most, limits.max_tokens),
                        "max_tokens");
    most = limits.max_tokens;
  }
  request.options.max_tokens = most;
  request.options.min_tokens = integer_field(body, "min_tokens", 0, 0, kMostTokens);
  if (most >= 0 && request.options.min_tokens > most)
    throw bad_request(fmt::format("'min_tokens' is {}, 'max_tokens' {}", request.options.min_tokens, most),
                      "min_tokens");
}

// A request changes the keys nodes and depth of a preset; any other key belongs to the server's --spec.
void refuse_other_keys(const Json& body) {
  constexpr const char* kFields[] = {"spec_preset", "spec_nodes", "spec_depth", "spec_details"};
  for (const auto& [name, value] : body.items())
    if (name.starts_with("spec_") && !value.is_null() && std::ranges::count(kFields, name) == 0)
      throw bad_request(
          fmt::format(
              "'{}' is not a field of requests; there are {}, and the server's --spec NAME:key=value sets all other keys",
              name, fmt::join(kFields, ", ")),
          name);
}

void read_speculation(const Json& body, const Limits& limits, CompletionRequest& request) {
  refuse_other_keys(body);
  GenerateOptions& options = request.options;
  options.speculate = flag_field(body, "speculate", true);
  options.draft_nodes = integer_field(body, "spec_nodes", -1, 1, kMostNodes);
  options.draft_depth = integer_field(body, "spec_depth", -1, 1, kMostNodes);
  request.spec_details = flag_field(body, "spec_details", false);
  if (!field(body, "spec_preset")) return;
  options.preset = text_field(body, "spec_preset");
  if (std::find(limits.presets.begin(), limits.presets.end(), options.preset) == limits.presets.end())
    throw bad_request(fmt::format("'spec_preset' must be one of: {}", fmt::join(limits.presets, ", ")), "spec_preset");
}

// What vLLM tells of tokens: ids, log-probabilities of the prompt; and which part of a prompt it takes.
void read_token_fields(const Json& body, CompletionRequest& request) {
  const bool native = request.api == Api::kNative;
  request.token_ids = flag_field(body, "return_token_ids", false);
  request.labels_are_ids = flag_field(body, "return_tokens_as_token_ids", false);
  request.prompt_logprobs = integer_field(body, "prompt_logprobs", -1, 0, kMostLogprobs);
  if (request.prompt_logprobs >= 0 && (native || request.stream))
    throw bad_request(native ? "'prompt_logprobs' is not supported for /completion"
                             : "'prompt_logprobs' comes with whole answers only, not in a stream",
                      "prompt_logprobs");
  request.most_prompt_tokens = integer_field(body, "truncate_prompt_tokens", -1, 1, kMostTokens);
  if (field(body, "truncation_side")) {
    const std::string side = text_field(body, "truncation_side");
    if (side != "left" && side != "right")
      throw bad_request("'truncation_side' must be left or right", "truncation_side");
    request.keeps_beginning = side == "right";
  }
  if (request.echo && request.most_prompt_tokens > 0)
    throw bad_request("'echo' repeats a whole prompt: it does not go with 'truncate_prompt_tokens'", "echo");
}

}  // namespace

std::span<const MissingField> missing_fields() { return kMissing; }

bool is_text(const Json* value, std::string_view text) {
  return value && value->is_string() && value->get_ref<const std::string&>() == text;
}

bool is_off(const Json* value) {
  if (!value || (value->is_boolean() && !value->get<bool>())) return true;
  return value->is_string() ? value->get_ref<const std::string&>().empty() : value->is_structured() && value->empty();
}

void read_options(const Json& body, const Limits& limits, CompletionRequest& request) {
  if (const Json* model = field(body, "model"); model && !model->is_string())
    throw bad_request("'model' must be a string", "model");
  refuse_missing(body);
  read_length(body, limits, request);
  request.options.ignore_end = flag_field(body, "ignore_eos", false);
  request.stream = flag_field(body, "stream", false);
  if (const Json* options = field(body, "stream_options")) {
    if (!options->is_object()) throw bad_request("'stream_options' must be an object", "stream_options");
    if (!request.stream) throw bad_request("'stream_options' needs 'stream': true", "stream_options");
    request.include_usage = flag_field(*options, "include_usage", false);
    request.usage_each = flag_field(*options, "continuous_usage_stats", false) && request.include_usage;
  }
  request.return_progress = flag_field(body, "return_progress", false);
  request.cache_prompt = flag_field(body, "cache_prompt", true);
  for (const char* name : {"cache_salt", "prompt_cache_key"})  // who has a prefix is found by the prefix itself
    if (field(body, name)) text_field(body, name);
  if (field(body, "cache_salt")) request.cache_salt = text_field(body, "cache_salt");
  request.timings_per_token = flag_field(body, "timings_per_token", false);
  request.verbose = flag_field(body, "verbose", limits.verbose);
  if (request.api == Api::kNative) {
    request.return_tokens = flag_field(body, "return_tokens", false);
    request.slot = integer_field(body, "id_slot", -1, -1, kMostSlots);
    read_response_fields(body, request);
    if (request.options.ignore_end) request.ends = limits.ends;
  }
  read_stop(body, limits, request.options.stop);
  if (const Json* tokens = field(body, "stop_token_ids")) {
    if (tokens->is_array() && tokens->size() > limits.biases)
      throw bad_request(fmt::format("more than {} in 'stop_token_ids'", limits.biases), "stop_token_ids");
    request.options.stop_tokens = parse_tokens(*tokens, "stop_token_ids", limits.vocab);
  }
  if (!flag_field(body, "skip_special_tokens", true)) request.options.show_special = true;
  read_sampling(body, limits, request);
  read_speculation(body, limits, request);
}

void read_choices(const Json& body, const Limits& limits, CompletionRequest& request) {
  const bool native = request.api == Api::kNative, chat = request.api == Api::kChat;
  request.n = integer_field(body, "n", 1, 1, native ? 1 : limits.choices);
  if (integer_field(body, "best_of", request.n, 1, limits.choices) != request.n)
    throw bad_request("'best_of' must be what 'n' is", "best_of");
  const Json* logprobs = field(body, "logprobs");
  if (native) {
    const int wanted = integer_field(body, "n_probs", 0, 0, kMostLogprobs);
    request.logprobs = wanted > 0 ? wanted : -1;
  } else if (chat) {
    const int wanted = integer_field(body, "top_logprobs", 0, 0, kMostLogprobs);
    request.logprobs = flag_field(body, "logprobs", false) ? wanted : -1;
    if (wanted > 0 && request.logprobs < 0) throw bad_request("'top_logprobs' needs 'logprobs': true", "top_logprobs");
  } else if (logprobs && !(logprobs->is_boolean() && !logprobs->get<bool>())) {
    request.logprobs = integer_field(body, "logprobs", -1, 0, kMostLogprobs);
  }
  request.options.token_logits = request.logprobs >= 0;
  request.echo = flag_field(body, "echo", false);
  if (request.echo && native) throw bad_request("'echo' is not supported for /completion", "echo");
  read_token_fields(body, request);
  if (request.choices() > limits.jobs)
    throw bad_request(fmt::format("more than {} choices: prompts times 'n'", limits.jobs), "n");
}

}  // namespace sx::server
