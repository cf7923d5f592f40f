// What needs the model: completions and the small questions about tokens, templates, slots and settings. Handlers
// never wait for the model: what comes later is a LaterReply. The engine belongs to the scheduler's worker.
#pragma once
#include <specextend/specextend.h>

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/metrics.h"
#include "server/request.h"
#include "server/response.h"
#include "server/response_store.h"
#include "server/scheduler.h"
#include "server/server.h"

namespace sx::server {

class Service {
 public:
  using Json = nlohmann::ordered_json;

  Service(Engine& engine, const ServerOptions& options, Metrics& metrics);
  Scheduler& scheduler() { return scheduler_; }

  void models(const HttpRequest& req, HttpReply& res) const;
  void one_model(const HttpRequest& req, HttpReply& res) const;
  void props(const HttpRequest& req, HttpReply& res) const;
  void slots(const HttpRequest& req, HttpReply& res) const;
  void server_info(const HttpRequest& req, HttpReply& res) const;  // for routers, as is loads
  void loads(const HttpRequest& req, HttpReply& res) const;
  void slot_action(const HttpRequest& req, HttpReply& res);
  void version(const HttpRequest& req, HttpReply& res) const;
  void load(const HttpRequest& req, HttpReply& res) const;
  void tokenize(const HttpRequest& req, HttpReply& res);
  void detokenize(const HttpRequest& req, HttpReply& res);
  void apply_template(const HttpRequest& req, HttpReply& res);
  void complete(const HttpRequest& req, HttpReply& res, CompletionRequest request);
  void count_chat_tokens(const HttpRequest& req, HttpReply& res);
  void count_tokens(const HttpRequest& req, HttpReply& res);
  void responses(const HttpRequest& req, HttpReply& res);
  void kept_response(const HttpRequest& req, HttpReply& res) const;
  void delete_response(const HttpRequest& req, HttpReply& res) const;
  void cancel_response(const HttpRequest& req, HttpReply& res) const;
  void ollama_chat(const HttpRequest& req, HttpReply& res);
  void ollama_generate(const HttpRequest& req, HttpReply& res);
  void ollama_tags(const HttpRequest& req, HttpReply& res) const;
  void ollama_show(const HttpRequest& req, HttpReply& res);
  void ollama_version(const HttpRequest& req, HttpReply& res) const;
  void no_embeddings(const HttpRequest& req, HttpReply& res);
  void openapi(const HttpRequest& req, HttpReply& res) const;
  Gauges gauges() const;
  const Limits& limits(const HttpRequest& req) const { return tenant(req).alone ? limits_ : share_limits_; }

 private:
  Json model() const;
  Json ollama_model() const;
  Tenant tenant(const HttpRequest& req) const;   // who asks
  uint64_t scope(const HttpRequest& req) const;  // whose texts a request may share
  std::vector<std::shared_ptr<Job>> make_jobs(CompletionRequest& request,
                                              const std::vector<std::vector<Token>>& prompts,
                                              const std::shared_ptr<Mailbox>& mailbox) const;

  std::shared_ptr<const void> compiled_grammar(const CompletionRequest& request) const;  // null: it has none

  Engine& engine_;
  const ServerOptions options_;
  Limits limits_, share_limits_;  // of a request; where there are several keys
  // Holds texts that take much memory to tokenise, so that there is one at a time. The tokenizer itself is shared by
  // all threads.
  std::unique_lock<std::mutex> turn_of(size_t bytes);

  PromptBound bound_;
  std::mutex large_mutex_, files_mutex_;
  const int64_t created_;
  const std::shared_ptr<ResponseStore> responses_;  // apart for each key
  Scheduler scheduler_;
};

}  // namespace sx::server
