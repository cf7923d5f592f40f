#include "server/server.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <specextend/ranks.h>

#include "server/connection.h"
#include "server/hosts.h"
#include "server/listener.h"
#include "server/origins.h"
#include "server/page.h"
#include "server/protocols.h"
#include "server/replies.h"
#include "server/routes.h"
#include "server/service.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr size_t kSmallUnwanted = 65536;  // read where nobody wants it, so that the connection can be kept
constexpr size_t kBodies = size_t(256) << 20, kLargestBodies = 16;  // in memory: bytes, and so many of the largest
constexpr size_t kLargeBody = 16384, kHugeBody = size_t(1) << 20;   // take longer: not beside smaller ones

// The trace that a request is part of (W3C's traceparent); empty: none.
std::string trace_id(const std::string& traceparent) {
  constexpr size_t kBegin = 3, kSize = 32;  // "00-" and 32 digits, then "-"
  const std::string id = traceparent.size() > kBegin + kSize ? traceparent.substr(kBegin, kSize) : std::string();
  const bool fine = id.find_first_not_of("0123456789abcdef") == id.npos && id.find_first_not_of('0') != id.npos &&
                    traceparent[2] == '-' && traceparent[kBegin + kSize] == '-';
  return !id.empty() && fine ? id : std::string();
}

ListenerOptions listener_options(const ServerOptions& o) {
  const size_t all = size_t(o.connections);
  return {.host = o.host,
          .port = o.port,
          .cert_file = o.cert_file,
          .key_file = o.key_file,
          .connections = {all, o.connections_per_address > 0 ? size_t(o.connections_per_address) : all},
          .request = std::chrono::seconds(o.header_timeout_s),
          .bodies_bytes = std::max(kBodies, kLargestBodies * o.body_bytes)};
}

class HttpServer final : public Server, private HttpSide {
 public:
  explicit HttpServer(const ServerOptions& options)
      : options_(options), hosts_{is_loopback(options.host), !options.keys->empty(), options.hosts} {
    hosts_.names.push_back(options.host);
    add_routes();
    listener_ = Listener::create(listener_options(options), *this);
  }
  ~HttpServer() override { stop(); }

  int bind() override { return listener_->bind(); }
  void listen() override { listener_->listen(); }
  void loading(double done) override { loaded_ = done; }
  void attach(Engine& engine) override {
    own_ = std::make_unique<Service>(engine, options_, metrics_);
    service_ = own_.get();
  }
  void drain(std::chrono::seconds deadlines) override { listener_->drain(deadlines); }
  void stop() override {
    if (own_) own_->scheduler().stop();  // first: its jobs end with an answer
    listener_->stop();
  }

 private:
  using Handler = Routes::Handler;

  Admission admit(const RequestHead& head, const HttpRequest& req, HttpReply& res) override {
    name_request(req, res);
    try {
      check(head, req, res);
    } catch (const ApiError& error) {
      send_error(res, error, req.path);
      return {.refused = true};
    }
    const Route* route = routes_.find(req.method, req.path);
    if (!route && head.length > kSmallUnwanted) {
      send_error(res, no_route(req, res), req.path);
      return {.refused = true};
    }
    if (!route || !head.has_body()) return {};
    const bool slow = route->slow || head.length > kHugeBody;
    const Lane lane = slow ? Lane::kSlow : head.length > kLargeBody ? Lane::kLarge : Lane::kQuick;
    const auto who = tenant(req);
    return {.lane = lane, .owner = who && !who->name.empty() ? fmt::format("the key '{}'", who->name) : ""};
  }

  // Before the body is read: who may not ask, and what is not taken.
  void check(const RequestHead& head, const HttpRequest& req, HttpReply& res) const {
    const auto refuse = [](int status, const std::string& message) {
      throw ApiError(status, "invalid_request_error", message);
    };
    if (!(head.old && head.header("host").empty()) && !host_allowed(head.header("host"), hosts_))
      throw ApiError(403, "permission_error", "the server may not be asked under this name (--allowed-host allows it)",
                     "", "host_not_allowed");
    allow_origin(req, res, options_.origins);
    const bool preflight = req.method == "OPTIONS";
    if (!preflight && !allowed(req)) throw no_key();
    if (!preflight && is_foreign(req, options_.origins))
      throw ApiError(403, "permission_error", "pages of this origin may not ask (--cors-origin allows them)", "",
                     "origin_not_allowed");
    if (!head.takes_body() && head.has_body()) refuse(400, fmt::format("{} has no body", req.method));
    if (req.has_header("Content-Encoding")) refuse(415, "compressed bodies are not taken");
    if (head.takes_body() && !head.measured)
      refuse(411, "give the body's Content-Length; chunked bodies are not taken");
    if (head.length > options_.body_bytes)
      refuse(413, fmt::format("the body is larger than {} bytes", options_.body_bytes));
  }

  // Everything needs a key but what says that the server is alive, and the page's files.
  bool allowed(const HttpRequest& req) const {
    if (public_.contains(req.path) && (req.method == "GET" || req.method == "HEAD")) return true;
    return tenant(req).has_value();
  }

  std::optional<Tenant> tenant(const HttpRequest& req) const {
    return options_.keys->find(req.get_header_value("Authorization"), req.get_header_value("X-Api-Key"));
  }

  static ApiError no_key() {
    return {401, "authentication_error", "a valid API key is needed: Authorization: Bearer KEY", "", "invalid_api_key"};
  }

  ApiError no_route(const HttpRequest& req, HttpReply& res) const {
    const std::string methods = routes_.methods(req.path);
    if (methods.empty()) return {404, "not_found_error", fmt::format("there is no {}", req.path)};
    res.set_header("Allow", methods);
    return {405, "invalid_request_error",
            fmt::format("{} is not allowed on {}, use {}", req.method, req.path, methods)};
  }

  void handle(HttpRequest& req, HttpReply& res) override {
    try {
      if (req.method == "OPTIONS") {
        res.status = 204;
        return;
      }
      const Route* route = routes_.find(req.method, req.path);
      if (!route) throw no_route(req, res);
      Routes::match(*route, req);
      route->handler(req, res);
    } catch (const TakesLong&) { res.takes_long = true; } catch (const ApiError& error) {
      explain(req, res, error);
    } catch (const std::exception& e) { explain(req, res, {500, "server_error", e.what(), "", "internal_error"}); }
  }

  void explain(const HttpRequest& req, HttpReply& res, const ApiError& error) override {
    name_request(req, res);
    const Service* there = service_;
    if (error.code == kReadingQueueFull)  // the scheduler counts what it refuses itself
      if (const auto who = tenant(req); who && !who->name.empty()) metrics_.count_rejected(who->name);
    const int guess = error.status == 429 && there ? own_->scheduler().retry_after() : 1;
    send_error(res, error, req.path, error.retry_after > 0 ? error.retry_after : guess);
  }

  void count(int status) override { metrics_.count_response(status); }

  void log(const HttpRequest& req, const HttpReply& res, std::chrono::milliseconds took) override {
    if (!options_.log_requests) return;
    Json line{{"time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
              {"id", res.get_header_value(kRequestId)},
              {"method", req.method},
              {"path", req.path},
              {"status", res.status},
              {"ms", took.count()}};
    if (const auto who = tenant(req); who && !who->name.empty()) line["key"] = who->name;
    if (const std::string trace = trace_id(req.get_header_value("traceparent")); !trace.empty())
      line["trace_id"] = trace;
    fmt::print(stderr, "{}\n", line.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

  Service& service() const {
    Service* there = service_;
    if (!there) throw ApiError(503, "unavailable_error", "Loading model", "", "loading");
    return *there;
  }

  using Method = void (Service::*)(const HttpRequest&, HttpReply&);
  using ConstMethod = void (Service::*)(const HttpRequest&, HttpReply&) const;
  void get(const std::string& path, Handler handler) {
    routes_.add({.method = "GET", .handler = std::move(handler)}, path);
  }
  void get(const std::string& path, ConstMethod method) { get(path, bound(method)); }
  void get_under(const std::string& path, ConstMethod method) {
    routes_.add({.method = "GET", .handler = bound(method), .prefix = true}, path);
  }
  void post(const std::string& path, Handler handler) {
    routes_.add({.method = "POST", .handler = std::move(handler)}, path);
  }
  void post(const std::string& path, Method method) { post(path, bound(method)); }
  void delete_under(const std::string& path, ConstMethod method) {
    routes_.add({.method = "DELETE", .handler = bound(method), .prefix = true}, path);
  }
  void post_under(const std::string& path, Method method) {
    routes_.add({.method = "POST", .handler = bound(method), .prefix = true, .slow = true}, path);
  }
  template <typename AnyMethod>
  Handler bound(AnyMethod method) {
    return [this, method](const HttpRequest& req, HttpReply& res) { (service().*method)(req, res); };
  }

  void add_routes() {
    for (const char* path : {"/health", "/v1/health", "/health/ready"}) {
      public_.insert(path);
      get(path, [this](const auto&, auto& res) { health(res); });
    }
    public_.insert("/health/live");
    get("/health/live", [](const auto&, auto& res) { send(res, {{"status", "ok"}}); });
    if (options_.page)
      for (const PageAsset& asset : page_assets()) add_asset(asset);
    get("/v1/models", &Service::models);
    get_under("/v1/models/", &Service::one_model);
    get("/props", &Service::props);
    get("/slots", &Service::slots);
    post_under("/slots/", &Service::slot_action);
    get("/metrics", [this](const auto& req, auto& res) {
      const Service* there = service_;
      const auto who = tenant(req);
      if (!who) throw no_key();  // it was taken away meanwhile
      res.set_header("Process-Start-Time-Unix", std::to_string(started_));
      res.set_content(who->sees_all ? metrics_.text(options_.model_name, there ? own_->gauges() : Gauges())
                                    : metrics_.text_of_key(options_.model_name, who->name),
                      "text/plain; version=0.0.4");
    });
    get("/server_info", &Service::server_info);
    get("/v1/loads", &Service::loads);
    get("/load", &Service::load);
    get("/version", &Service::version);
    post("/tokenize", &Service::tokenize);
    post("/detokenize", &Service::detokenize);
    post("/apply-template", &Service::apply_template);
    post("/v1/chat/completions/input_tokens", &Service::count_chat_tokens);
    post("/v1/completions", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_completion(req.body, service().limits(req)));
    });
    post("/v1/chat/completions", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_chat(req.body, service().limits(req)));
    });
    post("/completion", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_native(req.body, service().limits(req)));
    });
    add_protocols();
    get("/openapi.json", &Service::openapi);
  }

  void add_protocols() {
    post("/v1/messages", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_messages(req.body, service().limits(req)));
    });
    post("/v1/messages/count_tokens", &Service::count_tokens);
    post("/v1/responses", &Service::responses);
    get_under("/v1/responses/", &Service::kept_response);
    delete_under("/v1/responses/", &Service::delete_response);
    routes_.add({.method = "POST", .handler = bound(&Service::cancel_response), .prefix = true}, "/v1/responses/");
    post("/api/chat", &Service::ollama_chat);
    post("/api/generate", &Service::ollama_generate);
    post("/api/show", &Service::ollama_show);
    get("/api/tags", &Service::ollama_tags);
    get("/api/version", &Service::ollama_version);
    for (const char* path : {"/v1/embeddings", "/v1/rerank", "/api/embed", "/api/embeddings"})
      post(path, &Service::no_embeddings);
  }

  void add_asset(const PageAsset& asset) {
    const std::string path(asset.path);
    public_.insert(path);
    get(path, [&asset](const auto&, auto& res) {
      res.set_header("Content-Security-Policy", std::string(kPagePolicy));
      res.set_header("X-Content-Type-Options", "nosniff");
      res.set_header("Cache-Control", "no-cache");
      res.set_content(std::string(asset.body), asset.content_type);
    });
  }

  void health(HttpReply& res) const {
    if (const std::string why = lost_rank(); !why.empty())
      throw ApiError(500, "server_error", "a rank is lost, the server ends: " + why, "", "rank_lost");
    if (service_ && own_->scheduler().failed())
      throw ApiError(500, "server_error", "the model broke down: the server must be started again", "",
                     "internal_error");
    if (service_) return send(res, {{"status", "ok"}});
    Json body = Json::parse(error_body({503, "unavailable_error", "Loading model", "", "loading"}));
    body["progress"] = loaded_.load();
    send(res, body);
    res.status = 503;
  }

  const ServerOptions options_;
  HostRules hosts_;
  const int64_t started_ = int64_t(std::time(nullptr));
  Metrics metrics_;
  std::unique_ptr<Service> own_;
  std::atomic<Service*> service_{nullptr};  // null: the model is not there yet
  std::atomic<double> loaded_{0};
  Routes routes_;
  std::set<std::string> public_;
  std::unique_ptr<Listener> listener_;  // ends first
};

}  // namespace

std::unique_ptr<Server> Server::create(const ServerOptions& options) { return std::make_unique<HttpServer>(options); }

}  // namespace sx::server
