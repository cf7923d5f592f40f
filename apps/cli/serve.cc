// `specextend serve`: an HTTP server that speaks OpenAI's API (docs/server.md).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "cli/chat_templates.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/open_engine.h"
#include "cli/progress.h"
#include "cli/spec_flags.h"
#include "server/hosts.h"
#include "server/hub.h"
#include "server/keys.h"
#include "server/kv_events.h"
#include "server/server.h"

namespace sx::cli {
namespace {

struct ServeArgs {
  EngineOptions engine;
  SpecFlags spec;
  server::ServerOptions server;
  server::KvEventOptions kv_events;
  std::string chat_template_file, chat_template, key_file, hub, hub_name, hub_folder, reasoning = "auto",
                                                                                      reasoning_format = "auto";
  std::vector<std::string> api_keys;
  int body_mib = 16, cache_mib = 512, disk_mib = 0, shutdown_s = 25;
  bool quiet = false, no_page = false;
  bool default_spec = false;  // no flag asks for a preset
};

volatile std::sig_atomic_t g_loading = 0, g_ending = 0, g_reload = 0;
std::atomic<int64_t> g_ended_at{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t unix_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // may be called by handlers
  return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

// The first signal lets running responses finish, the second one ends the server at once, and so does one while the
// model loads.
void on_signal(int number) {
  if (g_loading) ::_exit(0);
  // One SIGTERM may arrive twice: at the process and at its group.
  const bool again = number == SIGINT || unix_ms() - g_ended_at >= 200;
  if (g_ending && again) ::_exit(128 + number);
  if (!g_ending) g_ended_at = unix_ms();
  g_ending = 1;
}

// Collects keys from the flags, a file, and the environment, where other users of the machine do not see them.
std::vector<server::ApiKey> collect_keys(const ServeArgs& a) {
  std::vector<server::ApiKey> keys;
  for (const std::string& key : a.api_keys) keys.push_back({fmt::format("flag-{}", keys.size() + 1), key});
  if (!a.key_file.empty())
    for (server::ApiKey& key : server::read_keys(a.key_file)) keys.push_back(std::move(key));
  if (const char* key = std::getenv("SPECEXTEND_API_KEY")) keys.push_back({"environment", key});
  for (const server::ApiKey& key : keys)
    if (key.key.empty()) throw Error("--api-key, SPECEXTEND_API_KEY: a key must not be empty");
  return keys;
}

std::string name_of(std::filesystem::path path) {
  if (!path.has_filename()) path = path.parent_path();  // a folder with a slash at its end
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

// A server promises that a seed gives the same text whatever else runs, and that switching speculation off does not
// change it.
void check_rule(const SpecOptions& spec) {
  if (const SpecRule rule = spec_rule(spec); rule.promise == SpecPromise::kDistribution)
    throw Error(fmt::format(
        "--spec {1}:accept={0}: this rule keeps the distribution of sampled texts but not their bytes, so that a text "
        "would depend on what else the server runs and on whether it is drafted; take match, the default",
        rule.name, spec.preset));
}

// Beside the default: what requests of clients written for earlier versions name.
constexpr const char* kNamedSpec = "suffix";

// Timing side channel: a client could tell by the speed what was generated for another API key.
void check_store(const ServeArgs& a, const std::vector<server::ApiKey>& keys) {
  const auto stores = [](const SpecOptions& spec) {
    return nlohmann::json::parse(spec_describe(spec)).value("store", "0") != "0";
  };
  std::set<std::string> different;
  for (const server::ApiKey& key : keys) different.insert(key.key);
  if (different.size() < 2 || a.server.share_prefix) return;
  if (stores(a.engine.spec) || std::ranges::any_of(a.engine.more_specs, stores))
    throw Error(
        "--spec key store drafts from responses to all API keys: with several API keys it needs --share-prefix");
}

// A model by its name at a hub: only where an address of one was given, as nothing else here asks the network.
void find_model(ServeArgs& a) {
  if (a.hub_name.empty()) return;
  if (!a.engine.model.empty()) throw Error("-m and --hf-repo: give one of them");
  const server::HubName name = server::parse_hub_name(a.hub_name);
  if (a.hub.empty())
    throw Error(
        "--hf-repo: needs --hub ADDRESS, the address of a hub with Hugging Face's paths; none is asked by default");
  if (a.hub_folder.empty()) {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const std::filesystem::path base = cache ? cache : std::filesystem::path(home ? home : "/tmp") / ".cache";
    a.hub_folder = base / "specextend" / "hub";
  }
  ProgressLine line("fetching", a.quiet);
  a.engine.model = server::model_from_hub(
      {.address = a.hub, .folder = a.hub_folder, .on_progress = [&](double done) { line.update(done, ""); }}, name);
  line.clear();
  if (!a.quiet) fmt::print(stderr, "model: {}\n", a.engine.model);
}

void prepare(ServeArgs& a) {
  find_model(a);
  std::vector<server::ApiKey> keys = collect_keys(a);
  a.default_spec = !a.spec.given();
  if (a.default_spec) a.spec.specs = {kDefaultSpec, kNamedSpec};
  std::vector<SpecOptions> specs = resolve_all(a.spec);
  for (const SpecOptions& spec : specs) check_rule(spec);
  a.engine.spec = std::move(specs.front());
  a.engine.more_specs.assign(specs.begin() + 1, specs.end());
  check_store(a, keys);
  a.server.keys->replace(std::move(keys));
  a.engine.max_sessions = a.server.parallel;
  a.server.body_bytes = size_t(a.body_mib) << 20;
  a.server.cache_bytes = size_t(a.cache_mib) << 20;
  a.server.disk_bytes = size_t(a.disk_mib) << 20;
  if (a.disk_mib > 0 && a.cache_mib == 0)
    throw Error("--cache-disk: states go to the disk from memory, and --cache-ram is 0");
  if (a.disk_mib > 0 && !std::filesystem::is_directory(a.server.disk_folder))
    throw Error(fmt::format("--cache-disk-path: '{}' is not a folder", a.server.disk_folder));
  a.server.page = !a.no_page;
  if (a.reasoning != "auto") a.server.thinks = a.reasoning == "on";
  a.server.splits_thoughts = a.reasoning_format != "none";
  if (!a.chat_template.empty()) a.engine.chat_template = chat_template_of(a.chat_template);
  a.server.version = SPECEXTEND_VERSION;
  if (!a.kv_events.endpoint.empty()) a.server.kv_events = std::make_shared<server::KvEvents>(a.kv_events);
  if (a.server.model_name.empty())
    a.server.model_name = name_of(a.engine.model.empty() ? default_model_path() : a.engine.model);
  if (!a.server.slot_folder.empty() && !std::filesystem::is_directory(a.server.slot_folder))
    throw Error(fmt::format("--slot-save-path: '{}' is not a folder", a.server.slot_folder));
}

std::string address(const server::ServerOptions& s, int port) {
  const bool v6 = s.host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", s.cert_file.empty() ? "http" : "https", v6 ? "[" : "", s.host, v6 ? "]" : "",
                     port);
}

// Takes the key file's keys anew after SIGHUP, or when the file has changed. What cannot be read changes nothing.
class KeyWatch {
 public:
  explicit KeyWatch(const ServeArgs& args) : args_(args), changed_(when()) {}
  void look() {
    if (args_.key_file.empty()) return;
    const auto now = when();
    if (!std::exchange(g_reload, 0) && (now == changed_ || now == std::filesystem::file_time_type::min())) return;
    changed_ = now;
    try {
      std::vector<server::ApiKey> keys = collect_keys(args_);
      check_store(args_, keys);
      const size_t count = keys.size();
      args_.server.keys->replace(std::move(keys));
      fmt::print(stderr, "'{}' was read again: {} keys\n", args_.key_file, count);
    } catch (const std::exception& e) { fmt::print(stderr, "error: {}; the keys stay as they were\n", e.what()); }
  }

 private:
  std::filesystem::file_time_type when() const {
    std::error_code none;
    const auto time = std::filesystem::last_write_time(args_.key_file, none);
    return none ? std::filesystem::file_time_type::min() : time;
  }
  const ServeArgs& args_;
  std::filesystem::file_time_type changed_;
};

// Stops the server on every way out: its thread must not outlive it.
class Listening {
 public:
  explicit Listening(server::Server& server) : server_(server), thread_([this] { server_.listen(), ended_ = true; }) {}
  ~Listening() {
    server_.stop();
    thread_.join();
  }
  bool ended() const { return ended_; }

 private:
  server::Server& server_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// States of sessions and large bodies take memory of their own, which goes back to the system with them. By itself the
// allocator would begin to keep such blocks in the arenas of threads after the first of them.
constexpr int kOwnMemory = 1 << 20;

int run(ServeArgs& a) {
  ::mallopt(M_MMAP_THRESHOLD, kOwnMemory);
  g_loading = 1;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  prepare(a);
  if (!a.key_file.empty()) std::signal(SIGHUP, [](int) { g_reload = 1; });
  KeyWatch keys(a);
  std::unique_ptr<Engine> engine;  // outlives the server
  const auto server = server::Server::create(a.server);
  const int port = server->bind();
  if (a.server.keys->empty() && !server::is_loopback(a.server.host))
    fmt::print(stderr, "warning: {} can be reached from other machines, and there is no API key\n", a.server.host);
  const Listening listening(*server);
  if (!a.quiet) fmt::print(stderr, "{} responds when the model is loaded\n", address(a.server, port));
  a.engine.on_load = [&](double done) { server->loading(done); };
  engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  warn_without_template(*engine);
  if (!a.quiet)
    fmt::print(stderr, "speculation: {}{}\n", a.engine.spec.json.empty() ? a.engine.spec.preset : "as configured",
               a.default_spec ? ", the default; --spec off disables it, `specextend methods` lists others" : "");
  server->attach(*engine);
  g_loading = 0;
  fmt::print(stderr, "listening on {}\n", address(a.server, port));
  while (!g_ending && !listening.ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    keys.look();
  }
  if (!g_ending) throw Error("the server stopped listening");
  if (!a.quiet)
    fmt::print(stderr, "ending when the running responses are done, after {} s at the latest\n", a.shutdown_s);
  server->drain(std::chrono::seconds(a.shutdown_s));
  return 0;
}

void add_address_flags(CLI::App& app, ServeArgs& a) {
  const HelpGroup group(app, "Address and access");
  server::ServerOptions& s = a.server;
  app.add_option("--host", s.host, "address to listen on")->capture_default_str()->envname("LLAMA_ARG_HOST");
  app.add_option("--port", s.port, "port to listen on; 0: a free one, which is printed")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->envname("LLAMA_ARG_PORT");
  app.add_option("--api-key", a.api_keys,
                 "key that clients must send; repeatable; SPECEXTEND_API_KEY hides it from process lists")
      ->allow_extra_args(false)
      ->envname("LLAMA_API_KEY");
  app.add_option(
         "--api-key-file", a.key_file,
         "file with keys, one per line, or JSON with names and limits; read again when it changes, or on SIGHUP")
      ->envname("LLAMA_ARG_API_KEY_FILE");
  app.add_option("--ssl-cert-file", s.cert_file, "PEM file with the certificate chain: serve TLS")
      ->envname("LLAMA_ARG_SSL_CERT_FILE");
  app.add_option("--ssl-key-file", s.key_file, "PEM file with the certificate's key")
      ->envname("LLAMA_ARG_SSL_KEY_FILE");
  rare(app.add_option("--cors-origin", s.origins,
                      "origin of web pages that may use the server, beside this machine's; repeatable; *: all"))
      ->allow_extra_args(false);
  rare(app.add_option("--allowed-host", s.hosts,
                      "Host header that requests may have, beside localhost and, where other machines can reach the "
                      "server, addresses, "
                      "names without a dot and names in .local; with API keys all are allowed; repeatable; *: all"))
      ->allow_extra_args(false);
  rare(app.add_flag("--no-webui,--no-ui", a.no_page, "do not serve the page at /"));
}

void add_limit_flags(CLI::App& app, ServeArgs& a) {
  const HelpGroup group(app, "Requests");
  server::ServerOptions& s = a.server;
  app.add_option("--parallel,--np", s.parallel, "requests that run at a time; each has a context of its own (-c)")
      ->capture_default_str()
      ->check(CLI::Range(1, 256))
      ->envname("LLAMA_ARG_N_PARALLEL");
  app.add_option("--queue", s.queue, "requests that may wait; further ones get status 429")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("-n,--predict,--n-predict", s.max_tokens,
                 "most tokens a request may ask for; -1: what the context holds")
      ->capture_default_str()
      ->check(CLI::Range(-1, 1 << 24));
  rare(app.add_option("--seed", s.seed, "seed of requests that give none; without it each has a random one"));
  rare(app.add_option("--reasoning", a.reasoning,
                      "whether models think where requests do not say: on, off, auto (as "
                      "the chat template has it); off also ends a thought that a template opens all the same"))
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off", "auto"}));
  rare(app.add_option("--reasoning-format", a.reasoning_format,
                      "where thoughts go by default: auto and deepseek put "
                      "them into reasoning_content, none leaves them in the content"))
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "deepseek", "none"}));
  rare(app.add_option(
      "--chat-template", a.chat_template,
      fmt::format("Jinja chat template, or the name of a common one: {}", fmt::join(chat_template_names(), ", "))));
  rare(app.add_flag("--verbose", s.verbose, "whole answers of chats have the text of their prompt (__verbose.prompt)"));
  rare(app.add_option("--temp,--temperature", s.temperature, "temperature of requests that give none"))
      ->check(CLI::Range(0.0, 2.0));
  app.add_option("--timeout,--to", s.timeout_s, "most seconds of a request, queueing included; 0: no limit")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30))
      ->envname("LLAMA_ARG_TIMEOUT");
  rare(app.add_option("--header-timeout", s.header_timeout_s,
                      "most seconds a client may take to send a request, or to read nothing of its reply"))
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  rare(app.add_option("--drain-seconds,--shutdown-timeout", a.shutdown_s,
                      "most seconds that running responses get after SIGTERM or SIGINT"))
      ->capture_default_str()
      ->check(CLI::Range(0, 86400));
  rare(app.add_option("--max-connections,--threads-http", s.connections,
                      "connections at a time; where there are more, those that wait for their client are cut off"))
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  rare(app.add_option("--max-connections-per-address", s.connections_per_address,
                      "connections at a time from one address; 0: all"))
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  rare(app.add_option("--sse-ping-interval", s.ping_s,
                      "seconds of silence after which a stream carries a comment; 0: never"))
      ->capture_default_str()
      ->check(CLI::Range(0, 86400));
  rare(app.add_option("--max-body", a.body_mib, "largest body of a request, MiB"))
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
}

void add_state_flags(CLI::App& app, ServeArgs& a) {
  const HelpGroup group(app, "State and output");
  app.add_option("-a,--alias", a.server.model_name, "the model's name for clients; without it the name of its file")
      ->envname("LLAMA_ARG_ALIAS");
  rare(app.add_option("--hf-repo,--hf", a.hub_name,
                      "the model by its name at a hub, OWNER/REPOSITORY[:TAG]; needs --hub"));
  rare(app.add_option("--hub", a.hub,
                      "address of a hub with Hugging Face's paths, https://…; nothing is fetched without it"))
      ->envname("SPECEXTEND_HUB");
  rare(app.add_option("--hub-folder", a.hub_folder, "folder for what is fetched; without it in the user's cache"));
  app.add_option("--cache-ram", a.cache_mib, "MiB of host memory for the prompt cache of evicted sessions; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24))
      ->envname("LLAMA_ARG_CACHE_RAM");
  app.add_option("--cache-disk", a.disk_mib, "MiB of disk for what leaves that cache; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24));
  rare(app.add_option("--cache-disk-path", a.server.disk_folder, "folder for it")->capture_default_str());
  app.add_flag("--share-prefix", a.server.share_prefix,
               "share caches between API keys; response times then reveal other clients' prompts");
  app.add_option("--slot-save-path", a.server.slot_folder, "folder for saved slots; without it they cannot be saved")
      ->envname("LLAMA_ARG_SLOT_SAVE_PATH");
  rare(app.add_option(
      "--kv-events", a.kv_events.endpoint,
      "ZeroMQ address to bind, tcp://127.0.0.1:5557: tell routers in vLLM's format which blocks of tokens "
      "the server holds, those of all API keys"));
  rare(app.add_option("--kv-events-replay", a.kv_events.replay_endpoint,
                      "ZeroMQ address to bind where missed events can be asked for"));
  rare(app.add_option("--kv-events-topic", a.kv_events.topic, "topic of the events"));
  rare(app.add_flag("--log-requests", a.server.log_requests,
                    "print a line of JSON for each request: id, path, status, time, key's name, trace id"));
  app.add_flag("-q,--quiet", a.quiet, "print only the address");
  const auto ignore = [&](const char* flags, const char* why) {
    rare(app.add_flag_function(
        flags, [](int64_t) {}, fmt::format("ignored, as in llama.cpp's scripts: {}", why)));
  };
  ignore("--cb,--cont-batching", "continuous batching is always on");
  ignore("--metrics,--props", "those paths are always there");
  rare(app.add_flag("--slots,!--no-slots", a.server.slots, "--no-slots: do not tell at /slots what they hold"));
  ignore("--jinja", "templates always are Jinja");
}

Command add_serve(CLI::App& app) {
  auto args = std::make_shared<ServeArgs>();
  add_address_flags(app, *args);
  add_limit_flags(app, *args);
  add_state_flags(app, *args);
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  app.footer("Further --spec presets are those that requests may name in \"spec_preset\" (docs/server.md).");
  return [args] { return run(*args); };
}

}  // namespace

std::vector<OptionalCommand> optional_commands() {
  return {{"serve", "an HTTP server that speaks OpenAI's API", add_serve}};
}

}  // namespace sx::cli
