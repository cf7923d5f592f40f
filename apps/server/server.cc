#include "server/server.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "server/connection.h"
#include "server/connection_pool.h"
#include "server/hosts.h"
#include "server/keys.h"
#include "server/origins.h"
#include "server/page.h"
#include "server/protocols.h"
#include "server/replies.h"
#include "server/service.h"
#include "server/tls.h"

namespace sx::server {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

namespace {

constexpr int kSpareThreads = 480;     // for clients that send a request, or keep their connection open
constexpr int kBacklog = 128;          // connections that wait to be taken
constexpr int kRequests = 100;         // of one connection
constexpr auto kHeaderDeadline = 10s;  // for the head of a request

// The library's routes and responses, behind connections that read the requests.
class GuardedServer final : public httplib::Server {
 public:
  GuardedServer(WireMaker wires, Connections& all, const Deadlines& deadlines, std::function<void(int)> on_refusal)
      : wires_(std::move(wires)), all_(all), deadlines_(deadlines), on_refusal_(std::move(on_refusal)) {}

 private:
  bool process_and_close_socket(socket_t socket) override {
    std::unique_ptr<Wire> wire = wires_(socket);
    if (!wire) return ::close(socket), false;
    Connection connection(socket, std::move(wire), all_, deadlines_);
    try {
      for (int served = 1; connection.next(); ++served) {
        const RequestHead& head = connection.head();
        const bool last = head.old || head.lists("connection", "close") || served == kRequests || all_.ending();
        bool closed = last;
        if (!process_request(connection, last, closed, nullptr) || closed || connection.unread()) break;
      }
    } catch (const ApiError& error) {
      connection.refuse(error);
      on_refusal_(error.status);
    }
    return true;
  }

  const WireMaker wires_;
  Connections& all_;
  const Deadlines deadlines_;
  const std::function<void(int)> on_refusal_;
};

class HttpServer final : public Server {
 public:
  explicit HttpServer(const ServerOptions& options)
      : options_(options), hosts_{is_loopback(options.host), !options.api_keys.empty(), options.hosts} {
    const std::chrono::seconds request(options.header_timeout_s);
    const Deadlines deadlines{.request = request, .head = std::min<std::chrono::seconds>(request, kHeaderDeadline)};
    http_ = std::make_unique<GuardedServer>(make_wires(options.cert_file, options.key_file), connections_, deadlines,
                                            [this](int status) { metrics_.count_response(status); });
    hosts_.names.push_back(options.host);
    configure();
    add_routes();
  }

  int bind() override {
    const int port = options_.port == 0 ? http_->bind_to_any_port(options_.host)
                                        : (http_->bind_to_port(options_.host, options_.port) ? options_.port : -1);
    if (port < 0)
      throw Error(fmt::format("cannot listen on {} port {}: in use, or not an address of this machine", options_.host,
                              options_.port));
    ::listen(listener_, kBacklog);  // the library's own is short
    return port;
  }
  void listen() override { http_->listen_after_bind(); }
  void loading(double done) override { loaded_ = done; }
  void attach(Engine& engine) override {
    own_ = std::make_unique<Service>(engine, options_, metrics_);
    service_ = own_.get();
  }
  void drain(std::chrono::seconds deadlines) override {
    stop_listening();
    connections_.begin_ending();
    connections_.wait_until_none(std::chrono::steady_clock::now() + deadlines);
  }
  void stop() override {
    if (own_) own_->scheduler().stop();  // first: handlers wait for its jobs
    stop_listening();
    connections_.begin_ending();
    connections_.cut_all();
  }

 private:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  using Turn = httplib::Server::HandlerResponse;

  // Not the library's stop(): that cuts off streams. Without the listener it waits for the connections, and listen()
  // returns.
  void stop_listening() { ::shutdown(std::exchange(listener_, -1), SHUT_RDWR); }

  void configure() {
    const int threads = options_.threads > 0 ? options_.threads : options_.parallel + options_.queue + kSpareThreads;
    http_->new_task_queue = [this, threads] { return new ConnectionPool(size_t(threads), connections_); };
    // The library would share the port with another server.
    http_->set_socket_options([this](socket_t socket) {
      listener_ = socket;
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    http_->set_keep_alive_max_count(kRequests);  // as clients are told
    http_->set_payload_max_length(options_.body_bytes);
    http_->set_logger(
        [this](const httplib::Request&, const httplib::Response& res) { metrics_.count_response(res.status); });
    http_->set_pre_routing_handler([this](const auto& req, auto& res) { return turn_away(req, res); });
    http_->set_error_handler([this](const httplib::Request& req, httplib::Response& res) { explain(req, res); });
    http_->set_exception_handler([](const httplib::Request& req, httplib::Response& res, std::exception_ptr) {
      send_error(res, {500, "server_error", "internal error"}, req.path);
    });
  }

  // Before the body is read: who may not ask, and what is not taken.
  Turn turn_away(const httplib::Request& req, httplib::Response& res) const {
    name_request(req, res);
    const RequestHead& head = Connection::current().head();
    const auto refuse = [&](const ApiError& error) {
      send_error_unread(res, error, req.path);
      return Turn::Handled;
    };
    if (!(head.old && head.header("host").empty()) && !host_allowed(head.header("host"), hosts_))
      return refuse({403, "permission_error", "the server may not be asked under this name (--allowed-host allows it)",
                     "", "host_not_allowed"});
    allow_origin(req, res, options_.origins);
    const ApiError misplaced{400, "invalid_request_error", fmt::format("{} has no body", req.method)};
    if (req.method == "OPTIONS") {
      if (head.has_body()) return refuse(misplaced);
      res.status = 204;
      return Turn::Handled;
    }
    if (!allowed(req)) return refuse(no_key());
    if (is_foreign(req, options_.origins))
      return refuse({403, "permission_error", "pages of this origin may not ask (--cors-origin allows them)", "",
                     "origin_not_allowed"});
    if (!head.takes_body() && head.has_body()) return refuse(misplaced);
    if (req.has_header("Content-Encoding"))
      return refuse({415, "invalid_request_error", "compressed bodies are not taken"});
    if (head.takes_body() && !head.measured)
      return refuse({411, "invalid_request_error", "give the body's Content-Length; chunked bodies are not taken"});
    if (head.length > options_.body_bytes)
      return refuse(
          {413, "invalid_request_error", fmt::format("the body is larger than {} bytes", options_.body_bytes)});
    return Turn::Unhandled;
  }

  // Everything needs a key but what says that the server is alive, and the page's files.
  bool allowed(const httplib::Request& req) const {
    if (public_.contains(req.path) && (req.method == "GET" || req.method == "HEAD")) return true;
    return accepted(options_.api_keys, req.get_header_value("Authorization"), req.get_header_value("X-Api-Key"));
  }

  static ApiError no_key() {
    return {401, "authentication_error", "a valid API key is needed: Authorization: Bearer KEY", "", "invalid_api_key"};
  }

  std::string method_of(const std::string& path) const {
    if (const auto known = paths_.find(path); known != paths_.end()) return known->second;
    if (path.starts_with("/v1/responses/")) return "GET, DELETE";
    return path.starts_with("/v1/models/") ? "GET" : path.starts_with("/slots/") ? "POST" : "";
  }

  // Errors of the library itself, which have no body yet.
  void explain(const httplib::Request& req, httplib::Response& res) const {
    name_request(req, res);
    if (!res.body.empty()) return;
    const auto is = [&](const char* type, const std::string& message) {
      send_error(res, {res.status, type, message}, req.path);
    };
    const std::string method = method_of(req.path);
    if (res.status == 404 && !method.empty() && req.method != method) {
      res.status = 405;
      res.set_header("Allow", method);
      is("invalid_request_error", fmt::format("{} is not allowed on {}, use {}", req.method, req.path, method));
    } else if (res.status == 404) is("not_found_error", fmt::format("there is no {}", req.path));
    else if (Connection::current().late()) {
      res.status = 408;
      is("invalid_request_error", "the body did not come in time");
    } else if (res.status >= 500) is("server_error", "internal error");
    else is("invalid_request_error", "the request could not be read");
  }

  Handler guarded(Handler handler) {
    return [this, handler = std::move(handler)](const httplib::Request& req, httplib::Response& res) {
      try {
        handler(req, res);
      } catch (const ApiError& error) {
        send_error(res, error, req.path, error.status == 429 ? service().scheduler().retry_after() : 1);
      } catch (const std::exception& e) {
        send_error(res, {500, "server_error", e.what(), "", "internal_error"}, req.path);
      }
    };
  }

  Service& service() const {
    Service* there = service_;
    if (!there) throw ApiError(503, "unavailable_error", "Loading model", "", "loading");
    return *there;
  }

  using Method = void (Service::*)(const httplib::Request&, httplib::Response&);
  using ConstMethod = void (Service::*)(const httplib::Request&, httplib::Response&) const;
  void get(const std::string& path, Handler handler) {
    paths_[path] = "GET";
    http_->Get(path, guarded(std::move(handler)));
  }
  void get(const std::string& path, ConstMethod method) {
    get(path, [this, method](const auto& req, auto& res) { (service().*method)(req, res); });
  }
  void post(const std::string& path, Handler handler) {
    paths_[path] = "POST";
    http_->Post(path, guarded(std::move(handler)));
  }
  void post(const std::string& path, Method method) {
    post(path, [this, method](const auto& req, auto& res) { (service().*method)(req, res); });
  }

  void add_routes() {
    for (const char* path : {"/health", "/v1/health"}) {
      public_.insert(path);
      get(path, [this](const auto&, auto& res) { health(res); });
    }
    if (options_.page)
      for (const PageAsset& asset : page_assets()) add_asset(asset);
    get("/v1/models", &Service::models);
    http_->Get("/v1/models/(.+)", guarded([this](const auto& req, auto& res) { service().one_model(req, res); }));
    get("/props", &Service::props);
    get("/slots", &Service::slots);
    http_->Post(R"(/slots/(\d{1,4}))",
                guarded([this](const auto& req, auto& res) { service().slot_action(req, res); }));
    get("/metrics", [this](const auto&, auto& res) {
      const Service* there = service_;
      res.set_content(metrics_.text(options_.model_name, there ? own_->scheduler().gauges() : Gauges()),
                      "text/plain; version=0.0.4");
    });
    post("/tokenize", &Service::tokenize);
    post("/detokenize", &Service::detokenize);
    post("/apply-template", &Service::apply_template);
    post("/v1/completions", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_completion(req.body, service().limits()));
    });
    post("/v1/chat/completions", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_chat(req.body, service().limits()));
    });
    post("/completion", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_native(req.body, service().limits()));
    });
    add_protocols();
    get("/openapi.json", &Service::openapi);
  }

  void add_protocols() {
    post("/v1/messages", [this](const auto& req, auto& res) {
      service().complete(req, res, parse_messages(req.body, service().limits()));
    });
    post("/v1/messages/count_tokens", &Service::count_tokens);
    post("/v1/responses", &Service::responses);
    http_->Get("/v1/responses/(.+)",
               guarded([this](const auto& req, auto& res) { service().kept_response(req, res); }));
    http_->Delete("/v1/responses/(.+)",
                  guarded([this](const auto& req, auto& res) { service().delete_response(req, res); }));
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
    paths_[path] = "GET";
    std::string pattern;  // the path itself, whatever is in it
    for (char c : path)
      pattern += std::string(std::string_view(".+()[]{}*?^$|\\").find(c) != std::string_view::npos ? "\\" : "") + c;
    http_->Get(pattern, guarded([&asset](const auto&, auto& res) {
                 res.set_header("Content-Security-Policy", std::string(kPagePolicy));
                 res.set_header("X-Content-Type-Options", "nosniff");
                 res.set_header("Cache-Control", "no-cache");
                 res.set_content(asset.body.data(), asset.body.size(), std::string(asset.content_type).c_str());
               }));
  }

  void health(httplib::Response& res) const {
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
  Metrics metrics_;
  Connections connections_;
  std::unique_ptr<Service> own_;
  std::atomic<Service*> service_{nullptr};  // null: the model is not there yet
  std::atomic<double> loaded_{0};
  std::map<std::string, std::string> paths_;
  std::set<std::string> public_;
  socket_t listener_ = -1;
  std::unique_ptr<httplib::Server> http_;
};

}  // namespace

std::unique_ptr<Server> Server::create(const ServerOptions& options) { return std::make_unique<HttpServer>(options); }

}  // namespace sx::server
