// What needs the model: completions and the small questions about tokens, templates, slots and settings. Handlers run
// on the threads of connections; the engine itself belongs to the scheduler's worker.
#pragma once
#include <httplib.h>
#include <specextend/specextend.h>

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

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

  void models(const httplib::Request& req, httplib::Response& res) const;
  void one_model(const httplib::Request& req, httplib::Response& res) const;
  void props(const httplib::Request& req, httplib::Response& res) const;
  void slots(const httplib::Request& req, httplib::Response& res) const;
  void slot_action(const httplib::Request& req, httplib::Response& res);
  void tokenize(const httplib::Request& req, httplib::Response& res);
  void detokenize(const httplib::Request& req, httplib::Response& res);
  void apply_template(const httplib::Request& req, httplib::Response& res);
  void complete(const httplib::Request& req, httplib::Response& res, CompletionRequest request);
  void count_tokens(const httplib::Request& req, httplib::Response& res);
  void responses(const httplib::Request& req, httplib::Response& res);
  void kept_response(const httplib::Request& req, httplib::Response& res) const;
  void delete_response(const httplib::Request& req, httplib::Response& res) const;
  void ollama_chat(const httplib::Request& req, httplib::Response& res);
  void ollama_generate(const httplib::Request& req, httplib::Response& res);
  void ollama_tags(const httplib::Request& req, httplib::Response& res) const;
  void ollama_show(const httplib::Request& req, httplib::Response& res);
  void ollama_version(const httplib::Request& req, httplib::Response& res) const;
  void no_embeddings(const httplib::Request& req, httplib::Response& res);
  void openapi(const httplib::Request& req, httplib::Response& res) const;
  const Limits& limits() const { return limits_; }

 private:
  Json model() const;
  uint64_t scope(const httplib::Request& req) const;  // whose texts a request may share
  uint64_t owner(const httplib::Request& req) const;  // whose answers it may ask for again
  Json ollama_model() const;
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
  const std::shared_ptr<ResponseStore> responses_;
  Scheduler scheduler_;
};

}  // namespace sx::server
