#include "server/server.h"

#include <fmt/format.h>

#include <atomic>
#include <ctime>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "server/client_socket.h"
#include "server/keys.h"
#include "server/replies.h"
#include "server/request.h"
#include "server/response.h"
#include "server/scheduler.h"

namespace sx::server {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

namespace {

constexpr auto kGlance = 100ms;  // how often a waiting handler looks whether its client is still there
constexpr auto kPingAfter = 10s; // of silence on a stream
constexpr size_t kSpareThreads = 16;
constexpr int kBacklog = 128;    // connections that wait to be taken

uint64_t random_seed() {
  std::random_device device;
  return uint64_t(device()) << 32 | device();
}

class HttpServer final : public Server {
 public:
  HttpServer(Engine& engine, const ServerOptions& options)
      : engine_(engine), options_(options),
        vocabulary_(Vocabulary::open(engine.options().model, engine.options().chat_template)),
        scheduler_(engine, size_t(options.queue), metrics_) {
    limits_.vocab = engine.vocab();
    limits_.max_tokens = options.max_tokens;
    configure();
    add_routes();
  }

  int bind() override {
    const int port = options_.port == 0 ? http_.bind_to_any_port(options_.host)
                                        : (http_.bind_to_port(options_.host, options_.port) ? options_.port : -1);
    if (port < 0)
      throw Error(fmt::format("cannot listen on {} port {}: in use, or not an address of this machine", options_.host,
                              options_.port));
    ::listen(listener_, kBacklog);  // the library's own is short
    return port;
  }
  void listen() override {
    http_.listen_after_bind();
    ended_ = true;
  }
  void stop() override {
    scheduler_.stop();  // first: handlers wait for its jobs
    while (!http_.is_running() && !ended_) std::this_thread::sleep_for(5ms);  // asked before it had begun
    http_.stop();
  }

 private:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  void configure() {
    const size_t threads = size_t(engine_.options().max_sessions) + size_t(options_.queue) + kSpareThreads;
    http_.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
    // The library would share the port with another server.
    http_.set_socket_options([this](socket_t socket) {
      listener_ = socket;
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    http_.set_tcp_nodelay(true);
    http_.set_keep_alive_max_count(100);
    http_.set_read_timeout(10, 0);
    http_.set_write_timeout(30, 0);
    http_.set_payload_max_length(options_.body_bytes);
    http_.set_logger([this](const httplib::Request& req, const httplib::Response& res) {  // after the response was written
      metrics_.count_response(res.status);
      close_if_unread(req, res);
    });
    http_.set_pre_routing_handler(check_framing);
    http_.set_error_handler([this](const httplib::Request& req, httplib::Response& res) { explain(req, res); });
    http_.set_exception_handler([](const httplib::Request&, httplib::Response& res, std::exception_ptr) {
      send_error(res, {500, "server_error", "internal error"});
    });
  }

  bool allowed(const httplib::Request& req) const {
    if (req.path == "/health" || req.path == "/v1/health") return true;
    return accepted(options_.api_keys, req.get_header_value("Authorization"), req.get_header_value("X-Api-Key"));
  }

  static ApiError no_key() {
    return {401, "authentication_error", "a valid API key is needed: Authorization: Bearer KEY", "", "invalid_api_key"};
  }

  // Errors of the library itself, which have no body yet. Without a key nobody learns which paths there are.
  void explain(const httplib::Request& req, httplib::Response& res) {
    if (!res.body.empty()) return;
    const auto is = [&](const char* type, const std::string& message) { send_error(res, {res.status, type, message}); };
    if (!allowed(req)) return send_error(res, no_key());
    if (res.status == 404 && paths_.count(req.path)) {
      res.status = 405;
      res.set_header("Allow", paths_.at(req.path));
      is("invalid_request_error", fmt::format("{} is not allowed on {}, use {}", req.method, req.path, paths_.at(req.path)));
    } else if (res.status == 404) is("not_found_error", fmt::format("there is no {}", req.path));
    else if (res.status == 413)
      is("invalid_request_error", fmt::format("the body is larger than {} bytes", options_.body_bytes));
    else if (res.status >= 500) is("server_error", "internal error");
    else is("invalid_request_error", "the request could not be read");
  }

  Handler guarded(Handler handler) {
    return [this, handler = std::move(handler)](const httplib::Request& req, httplib::Response& res) {
      try {
        if (!allowed(req)) throw no_key();
        handler(req, res);
      } catch (const ApiError& error) {
        send_error(res, error);
      } catch (const std::exception& e) {
        send_error(res, {500, "server_error", e.what(), "", "internal_error"});
      }
    };
  }
  void get(const std::string& path, Handler handler) {
    paths_[path] = "GET";
    http_.Get(path, guarded(std::move(handler)));
  }
  void post(const std::string& path, Handler handler) {
    paths_[path] = "POST";
    http_.Post(path, guarded(std::move(handler)));
  }

  void add_routes() {
    for (const char* path : {"/health", "/v1/health"})
      get(path, [](const auto&, auto& res) { send(res, {{"status", "ok"}}); });
    get("/v1/models", [this](const auto&, auto& res) {
      send(res, {{"object", "list"}, {"data", Json::array({model()})}});
    });
    http_.Get("/v1/models/(.+)", guarded([this](const httplib::Request& req, httplib::Response& res) {
      if (req.matches[1] != options_.model_name)
        throw ApiError(404, "invalid_request_error", fmt::format("there is no model '{}'", req.matches[1].str()), "model",
                       "model_not_found");
      send(res, model());
    }));
    get("/props", [this](const auto&, auto& res) { send(res, props()); });
    get("/metrics", [this](const auto&, auto& res) {
      res.set_content(metrics_.text(options_.model_name, scheduler_.running(), scheduler_.waiting()),
                      "text/plain; version=0.0.4");
    });
    post("/tokenize", [this](const auto& req, auto& res) { tokenize(req, res); });
    post("/detokenize", [this](const auto& req, auto& res) { detokenize(req, res); });
    post("/apply-template", [this](const auto& req, auto& res) {
      send(res, {{"prompt", chat_prompt(parse_messages(parse_object(req.body)))}});
    });
    post("/v1/completions", [this](const auto& req, auto& res) {
      complete(req, res, parse_completion(req.body, limits_));
    });
    post("/v1/chat/completions", [this](const auto& req, auto& res) {
      complete(req, res, parse_chat(req.body, limits_));
    });
  }

  Json model() const {
    return {{"id", options_.model_name}, {"object", "model"}, {"created", started_}, {"owned_by", "specextend"},
            {"max_model_len", engine_.context()}};
  }

  Json props() const {
    return {{"model_path", engine_.options().model}, {"model_alias", options_.model_name},
            {"total_slots", engine_.options().max_sessions},
            {"default_generation_settings", {{"n_ctx", engine_.context()}}},
            {"n_vocab", engine_.vocab()}, {"backend", engine_.backend()}, {"kv_type", engine_.kv_type()},
            {"queue", options_.queue}, {"speculation", Json::parse(spec_describe(engine_.options().spec))}};
  }

  void tokenize(const httplib::Request& req, httplib::Response& res) {
    const Json body = parse_object(req.body);
    const std::string text = text_field(body, field(body, "prompt") ? "prompt" : "content");
    const bool special = flag_field(body, "add_special", false), parse = flag_field(body, "parse_special", true);
    const std::lock_guard lock(vocabulary_mutex_);
    send(res, {{"tokens", vocabulary_->tokenize(text, special, parse)}});
  }

  void detokenize(const httplib::Request& req, httplib::Response& res) {
    const Json body = parse_object(req.body);
    const Json* list = field(body, "tokens");
    const auto tokens = parse_tokens(list ? *list : Json(nullptr), "tokens", limits_.vocab);
    const std::lock_guard lock(vocabulary_mutex_);
    try {
      send(res, {{"content", vocabulary_->detokenize(tokens, true)}});
    } catch (const Error& e) {  // the embedding may have more rows than there are tokens
      throw bad_request(e.what(), "tokens");
    }
  }

  std::string chat_prompt(const std::string& messages) {
    const std::lock_guard lock(vocabulary_mutex_);
    try {
      return vocabulary_->apply_template(messages);
    } catch (const Error& e) {  // templates raise errors about messages they do not take
      throw bad_request(e.what(), "messages");
    }
  }

  std::vector<Token> prompt_of(const CompletionRequest& request) {
    const char* param = request.chat ? "messages" : "prompt";
    std::vector<Token> prompt = request.tokens;
    if (prompt.empty()) {
      const std::string text = request.chat ? chat_prompt(request.messages) : request.text;
      const std::lock_guard lock(vocabulary_mutex_);
      prompt = vocabulary_->tokenize(text, !request.chat, true);
    }
    if (prompt.empty()) throw bad_request(fmt::format("'{}' is empty", param), param);
    if (int64_t(prompt.size()) >= engine_.context())
      throw bad_request(fmt::format("the prompt has {} tokens, the context holds {}, answer included", prompt.size(),
                                    engine_.context()), param, "context_length_exceeded");
    return prompt;
  }

  void complete(const httplib::Request& req, httplib::Response& res, CompletionRequest request) {
    const auto job = std::make_shared<Job>();
    job->prompt = prompt_of(request);
    job->options = request.options;
    if (!request.seeded) job->options.sampling.seed = random_seed();
    const Answer answer(request.chat, options_.model_name, int(job->prompt.size()));
    const ClientSocket client(req.remote_addr, req.remote_port);
    scheduler_.submit(job);
    if (request.stream) return stream(res, job, answer, client, request.include_usage);
    while (!job->wait(kGlance).done)
      if (client.gone()) {
        job->gone = true;
        throw ApiError(499, "invalid_request_error", "the client left");  // seen by the counters only
      }
    res.set_content(answer.whole(job->result()), "application/json");
  }

  void stream(httplib::Response& res, const std::shared_ptr<Job>& job, const Answer& answer, const ClientSocket& client,
              bool usage) {
    res.set_header("Cache-Control", "no-cache");
    res.set_header("X-Accel-Buffering", "no");
    // Called again and again until the stream is done, on the connection's thread.
    const auto next = [job, answer, client, usage, begun = false, last = std::chrono::steady_clock::now()](
                          size_t, httplib::DataSink& sink) mutable {
      std::string events = begun ? std::string() : answer.first_event();
      begun = true;
      const Job::News news = job->wait(events.empty() ? kGlance : 0ms);
      if (client.gone()) return false;
      if (!news.text.empty()) events += answer.text_event(news.text);
      if (news.done) {
        try {
          const GenerateResult& result = job->result();
          events += answer.last_event(result);
          if (usage) events += answer.usage_event(result);
        } catch (const ApiError& error) {
          events += Answer::error_event(error);
        }
        events += Answer::kDone;
      }
      const auto now = std::chrono::steady_clock::now();
      if (events.empty() && now - last > kPingAfter) events = Answer::kPing;
      if (!events.empty()) last = now;
      if (!events.empty() && !sink.write(events.data(), events.size())) return false;
      if (news.done) sink.done();
      return true;
    };
    res.set_chunked_content_provider("text/event-stream", next, [job](bool) { job->gone = true; });
  }

  Engine& engine_;
  const ServerOptions options_;
  Limits limits_;
  Metrics metrics_;
  std::unique_ptr<Vocabulary> vocabulary_;  // of its own: the engine belongs to the worker
  std::mutex vocabulary_mutex_;
  Scheduler scheduler_;
  const int64_t started_ = int64_t(std::time(nullptr));
  std::map<std::string, std::string> paths_;
  socket_t listener_ = -1;
  std::atomic<bool> ended_{false};
  httplib::Server http_;
};

}  // namespace

std::unique_ptr<Server> Server::create(Engine& engine, const ServerOptions& options) {
  return std::make_unique<HttpServer>(engine, options);
}

}  // namespace sx::server
