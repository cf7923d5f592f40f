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
  void slot_action(const HttpRequest& req, HttpReply& res);
  void tokenize(const HttpRequest& req, HttpReply& res);
  void detokenize(const HttpRequest& req, HttpReply& res);
  void apply_template(const HttpRequest& req, HttpReply& res);
  void complete(const HttpRequest& req, HttpReply& res, CompletionRequest request);
  void openapi(const HttpRequest& req, HttpReply& res) const;
  const Limits& limits() const { return limits_; }

 private:
  Json model() const;
  uint64_t scope(const HttpRequest& req) const;  // whose texts a request may share
  std::vector<std::shared_ptr<Job>> make_jobs(CompletionRequest& request,
                                              const std::vector<std::vector<Token>>& prompts,
                                              const std::shared_ptr<Mailbox>& mailbox) const;

  Engine& engine_;
  const ServerOptions options_;
  Limits limits_;
  // Holds texts that take much memory to tokenise, so that there is one at a time. The tokenizer itself is shared by
  // all threads.
  std::unique_lock<std::mutex> turn_of(size_t bytes);

  PromptBound bound_;
  std::mutex large_mutex_, files_mutex_;
  const int64_t created_;
  Scheduler scheduler_;
};

}  // namespace sx::server
