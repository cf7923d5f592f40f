// The HTTP side: routes, keys, limits, errors. Connections have threads of their own; what needs the model goes through
// the scheduler.
#pragma once
#include <specextend/specextend.h>

#include <memory>
#include <string>
#include <vector>

namespace sx::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                      // 0: any free one
  std::vector<std::string> api_keys{};  // none: everybody may
  int queue = 32;                       // requests that wait
  size_t body_bytes = size_t(16) << 20; // of one request
  int max_tokens = -1;                  // most one request may ask for
  std::string model_name{};             // as clients see it
};

class Server {
 public:
  // The engine must outlive it; nobody else may use the engine.
  static std::unique_ptr<Server> create(Engine& engine, const ServerOptions& options);
  virtual ~Server() = default;
  virtual int bind() = 0;    // the port; throws when it cannot be had
  virtual void listen() = 0; // until stop()
  virtual void stop() = 0;   // from another thread, once: ends what runs, then listen()
};

}  // namespace sx::server
