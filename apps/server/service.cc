#include "server/service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <specextend/no_memory.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "server/keys.h"
#include "server/openapi.h"
#include "server/replies.h"
#include "server/response_parts.h"
#include "server/slot_files.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

std::string file_name(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

std::string preset_name(const SpecOptions& spec) { return spec.json.empty() ? spec.preset : "speculative-config"; }

constexpr size_t kLargeText = size_t(1) << 20;  // bytes

// Of the longest token as texts spell it.
size_t longest_token(const Tokenizer& tokenizer, int count) {
  size_t most = 1;
  for (Token token = 0; token < count; ++token)
    most = std::max({most, tokenizer.token_bytes(token).size(), tokenizer.token_text(token).size()});
  return most;
}

// Of requests with at most so many choices: more would never be taken.
Limits within(Limits limits, size_t jobs) {
  limits.jobs = std::min(limits.jobs, jobs);
  limits.choices = std::min(limits.choices, int(limits.jobs));
  limits.prompts = std::min(limits.prompts, limits.jobs);
  return limits;
}

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Service::Service(Engine& engine, const ServerOptions& options, Metrics& metrics)
    : engine_(engine),
      options_(options),
      created_(int64_t(std::time(nullptr))),
      responses_(std::make_shared<ResponseStore>()),
      scheduler_(engine,
                 {.queue = size_t(options.queue),
                  .cache_bytes = options.cache_bytes,
                  .disk_bytes = options.disk_bytes,
                  .disk_folder = options.disk_folder,
                  .events = options.kv_events},
                 metrics) {
  limits_.vocab = engine.vocab();
  limits_.max_tokens = options.max_tokens;
  limits_.presets = {preset_name(engine.options().spec)};
  for (const SpecOptions& more : engine.options().more_specs) limits_.presets.push_back(preset_name(more));
  limits_.tool_style =
      tool_style(engine_.tokenizer().chat_template(), [this](const std::string& messages, const std::string& tools) {
        return engine_.tokenizer().apply_template_json(messages, true, tools);
      });
  limits_.reasoning = reasoning_style(engine_.tokenizer());
  limits_.seed = options.seed;
  limits_.temperature = options.temperature;
  limits_.thinks = options.thinks;
  limits_.splits_thoughts = options.splits_thoughts;
  limits_.verbose = options.verbose;
  limits_.tokenize = [this](const std::string& text) { return engine_.tokenizer().tokenize(text, false, true); };
  for (Token token = 0; token < engine.vocab(); ++token)
    if (engine_.tokenizer().is_end(token)) limits_.ends.push_back(token);
  const size_t places = size_t(options.parallel + options.queue);
  share_limits_ = within(limits_, std::max<size_t>(1, places / 2));
  limits_ = within(limits_, places);
  bound_ = {size_t(engine.context()) * longest_token(engine_.tokenizer(), engine.vocab()), engine.context()};
}

std::unique_lock<std::mutex> Service::turn_of(size_t bytes) {
  std::unique_lock lock(large_mutex_, std::defer_lock);
  if (bytes > kLargeText) lock.lock();
  return lock;
}

Json Service::model() const {
  return {{"id", options_.model_name},         {"object", "model"},           {"created", created_},
          {"owned_by", "specextend"},          {"root", options_.model_name}, {"parent", nullptr},
          {"max_model_len", engine_.context()}};
}

void Service::models(const HttpRequest&, HttpReply& res) const {
  send(res, {{"object", "list"}, {"data", Json::array({model()})}});
}

void Service::one_model(const HttpRequest& req, HttpReply& res) const {
  if (req.matches[1] != options_.model_name)
    throw ApiError(404, "invalid_request_error", fmt::format("there is no model '{}'", req.matches[1]), "model",
                   "model_not_found");
  send(res, model());
}

void Service::props(const HttpRequest&, HttpReply& res) const {
  const EngineOptions& o = engine_.options();
  const GenerateOptions plain;
  const Json settings{{"n_ctx", engine_.context()},
                      {"params",
                       {{"n_predict", options_.max_tokens},
                        {"seed", options_.seed ? Json(*options_.seed) : Json(-1)},
                        {"temperature", options_.temperature.value_or(1.0)},
                        {"top_p", 1.0},
                        {"top_k", 0},
                        {"min_p", 0.0},
                        {"repeat_penalty", 1.0},
                        {"repeat_last_n", plain.sampling.repeat_last_n}}}};
  send(res, {{"default_generation_settings", settings},
             {"total_slots", o.max_sessions},
             {"model_path", file_name(o.model)},
             {"model_alias", options_.model_name},
             {"chat_template", engine_.tokenizer().chat_template()},
             {"build_info", fmt::format("specextend {}", options_.version)},
             {"n_ctx", engine_.context()},
             {"n_vocab", engine_.vocab()},
             {"backend", engine_.backend()},
             {"kv_type", engine_.kv_type()},
             {"queue", options_.queue},
             {"presets", limits_.presets},
             {"speculation", Json::parse(spec_describe(o.spec))}});
}

uint64_t Service::scope(const HttpRequest& req) const { return options_.share_prefix ? 0 : tenant(req).id; }

Tenant Service::tenant(const HttpRequest& req) const {
  auto found = options_.keys->find(req.get_header_value("Authorization"), req.get_header_value("X-Api-Key"));
  if (!found) throw ApiError(401, "authentication_error", "the API key was taken away", "", "invalid_api_key");
  return *std::move(found);
}

void Service::slots(const HttpRequest& req, HttpReply& res) const {
  if (!options_.slots)
    throw ApiError(501, "not_supported_error", "this server was started with --no-slots", "", "not_supported");
  Json all = Json::array();
  for (const SlotState& state : scheduler_.slots())  // what other keys' texts are is nobody's business, nor how long
    all.push_back({{"id", all.size()},
                   {"n_ctx", engine_.context()},
                   {"is_processing", state.running},
                   {"n_past", state.scope == scope(req) ? state.held : 0}});
  send(res, all);
}

Gauges Service::gauges() const {
  Gauges gauges = scheduler_.gauges();
  gauges.cells = int64_t(engine_.context()) * options_.parallel;
  gauges.sessions = options_.parallel;
  gauges.cell_type = engine_.kv_type();
  return gauges;
}

// Bytes of cells tell how long texts are: a key that does not see all is not told them.
void Service::server_info(const HttpRequest& req, HttpReply& res) const {
  Json info{{"version", options_.version},
            {"model_path", file_name(engine_.options().model)},
            {"served_model_name", options_.model_name},
            {"max_model_len", engine_.context()},
            {"context_length", engine_.context()},
            {"max_running_requests", options_.parallel},
            {"max_queued_requests", options_.queue},
            {"max_total_num_tokens", int64_t(engine_.context()) * options_.parallel},
            {"kv_cache_dtype", engine_.kv_type()},
            {"backend", engine_.backend()},
            {"is_generation", true}};
  if (tenant(req).sees_all) {
    const KvMemory kv = scheduler_.gauges().kv;
    info.update({{"kv_shared_bytes", kv.shared}, {"kv_private_bytes", kv.own}, {"kv_saved_bytes", kv.saved}});
  }
  send(res, info);
}

// As to tokens, a key that does not see all is told of its own requests only.
void Service::loads(const HttpRequest& req, HttpReply& res) const {
  const Gauges now = gauges();
  const Tenant who = tenant(req);
  int64_t held = 0;
  for (const SlotState& state : scheduler_.slots())
    if (state.running && (who.sees_all || state.tenant == who.id)) held += state.held;
  const Json load{{"dp_rank", 0},
                  {"num_running_reqs", now.running},
                  {"num_waiting_reqs", now.waiting},
                  {"num_total_reqs", now.running + now.waiting},
                  {"num_total_tokens", held},
                  {"max_total_num_tokens", now.cells},
                  {"max_running_requests", options_.parallel},
                  {"token_usage", double(held) / double(now.cells)}};
  send(res, {{"loads", Json::array({load})}});
}

void Service::slot_action(const HttpRequest& req, HttpReply& res) {
  if (options_.slot_folder.empty())
    throw ApiError(501, "not_supported_error", "this server was started without --slot-save-path", "", "not_supported");
  const std::string& number = req.matches[1];
  size_t slot = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), slot);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size() || slot >= scheduler_.slots().size())
    throw ApiError(404, "invalid_request_error", fmt::format("there is no slot {}", number), "id", "slot_not_found");
  const std::string action = req.get_param_value("action");
  const auto start = Clock::now();
  if (action == "erase") {
    int erased = 0;
    scheduler_.on_slot({slot, scope(req)}, [&](Session& session, Turns&) {
      erased = session.length();
      session.truncate(0);
    });
    return send(res, {{"id_slot", slot}, {"n_erased", erased}});
  }
  if (action != "save" && action != "restore") throw bad_request("'action' must be save, restore or erase", "action");
  const std::string name = text_field(parse_object(req.body), "filename");
  const std::string path = slot_path(options_.slot_folder, scope(req), name);
  const std::lock_guard lock(files_mutex_);
  int length = 0;
  if (action == "save") {
    std::string bytes;
    scheduler_.on_slot({slot, scope(req)}, [&](Session& session, Turns& turns) {
      length = session.length();
      StateWriter state(session.save_bytes(), &turns);
      session.save(state.stream());
      bytes = state.take();
    });
    write_state(path, bytes);
    return send(res, {{"id_slot", slot},
                      {"filename", name},
                      {"n_saved", length},
                      {"n_written", bytes.size()},
                      {"timings", {{"save_ms", ms_since(start)}}}});
  }
  const std::string bytes = read_state(path);
  scheduler_.on_slot({slot, scope(req), true}, [&](Session& session, Turns& turns) {
    try {
      StateReader state(bytes, &turns);
      session.restore(state.stream());
      if (!state.at_end()) {
        session.truncate(0);
        throw Error("there is more in it than a state");
      }
    } catch (const NoMemory& e) {
      throw ApiError(503, "unavailable_error", e.what(), "", "out_of_memory");
    } catch (const Error& e) {
      throw bad_request(fmt::format("'{}': {}", name, e.what()), "filename", "slot_restore_failed");
    }
    length = session.length();
  });
  send(res, {{"id_slot", slot},
             {"filename", name},
             {"n_restored", length},
             {"n_read", bytes.size()},
             {"timings", {{"restore_ms", ms_since(start)}}}});
}

void Service::version(const HttpRequest&, HttpReply& res) const { send(res, {{"version", options_.version}}); }

void Service::load(const HttpRequest&, HttpReply& res) const {
  const Gauges now = gauges();
  send(res, {{"server_load", now.running + now.waiting}});
}

// llama.cpp's form of a request has 'content', vLLM's 'prompt' or 'messages'.
void Service::tokenize(const HttpRequest& req, HttpReply& res) {
  const Json body = parse_object(req.body);
  const bool chat = field(body, "messages"), prompt = field(body, "prompt");
  const bool special = flag_field(body, "add_special_tokens", flag_field(body, "add_special", prompt));
  const bool parse = flag_field(body, "parse_special", true), pieces = flag_field(body, "with_pieces", false);
  const bool texts = flag_field(body, "return_token_strs", false);
  const std::string text = chat ? chat_prompt(engine_.tokenizer(), parse_template(req.body, limits_))
                                : text_field(body, prompt ? "prompt" : "content");
  const auto turn = turn_of(text.size());
  const std::vector<Token> tokens = engine_.tokenizer().tokenize(text, special && !chat, parse);
  std::string list;
  if (pieces) {
    Json all = Json::array();
    for (const Token token : tokens)
      all.push_back({{"id", token}, {"piece", piece_json(engine_.tokenizer().token_bytes(token))}});
    list = text_of(all);
  } else {
    list = fmt::format("[{}]", fmt::join(tokens, ","));
  }
  Json strings;
  for (size_t i = 0; texts && i < tokens.size(); ++i) strings.push_back(engine_.tokenizer().token_text(tokens[i]));
  res.set_content(fmt::format("{{\"tokens\":{},\"count\":{},\"max_model_len\":{},\"token_strs\":{}}}", list,
                              tokens.size(), engine_.context(), text_of(strings)),
                  "application/json");
}

void Service::detokenize(const HttpRequest& req, HttpReply& res) {
  const Json body = parse_object(req.body);
  const Json* list = field(body, "tokens");
  const auto tokens = parse_tokens(list ? *list : Json(nullptr), "tokens", limits_.vocab);
  try {
    const std::string text = engine_.tokenizer().detokenize(tokens, true);
    send(res, {{"content", text}, {"prompt", text}});  // llama.cpp's name of it, and vLLM's
  } catch (const Error& e) {                           // the embedding may have more rows than there are tokens
    throw bad_request(e.what(), "tokens");
  }
}

void Service::apply_template(const HttpRequest& req, HttpReply& res) {
  const CompletionRequest request = parse_template(req.body, limits_);
  send(res, {{"prompt", chat_prompt(engine_.tokenizer(), request)}});
}

void Service::openapi(const HttpRequest& req, HttpReply& res) const {
  res.set_content(openapi_json(limits(req), options_.version), "application/json");
}

}  // namespace sx::server
