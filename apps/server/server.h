// The HTTP side: routes, keys, limits, errors. All connections live on a few threads (listener.h); what needs the model
// goes through the scheduler. It listens before there is a model, and says so until there is one.
#pragma once
#include <specextend/specextend.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/keys.h"

namespace sx::server {

class KvEvents;

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                                              // 0: any free one
  std::string cert_file{}, key_file{};                          // TLS; empty: without
  std::shared_ptr<KeyRing> keys = std::make_shared<KeyRing>();  // none in it: everybody may
  std::vector<std::string> origins{};      // of pages that may talk to it, beside those of this machine
  std::vector<std::string> hosts{};        // names it may be asked under, beside those of this machine
  int parallel = 4;                        // requests that run
  int queue = 32;                          // requests that wait
  int connections = 8192;                  // at a time
  int connections_per_address = 0;         // of them from one address; 0: all
  int timeout_s = 3600;                    // most time of a request; 0: no bound
  int header_timeout_s = 30;               // most time a client may take to send a request, or to read nothing
  int ping_s = 10;                         // silence of a stream after which a comment is sent; 0: never
  size_t body_bytes = size_t(16) << 20;    // of one request
  size_t cache_bytes = size_t(512) << 20;  // of states of sessions in memory
  size_t disk_bytes = 0;                   // of those on disk, beyond that
  std::string disk_folder = "/var/tmp";    // where
  bool share_prefix = false;               // texts in caches are shared by all keys
  int max_tokens = -1;                     // most one request may ask for
  std::optional<uint64_t> seed{};          // of requests without one; nothing: random
  std::optional<double> temperature{};     // of requests without one; nothing: the path's own
  std::optional<bool> thinks{};           // whether models think where requests do not say; nothing: the template's way
  bool splits_thoughts = true;            // where requests do not say
  bool verbose = false;                   // whole answers of chats have the text of their prompt
  bool slots = true;                      // /slots says what they hold
  bool page = true;                       // at /
  bool log_requests = false;              // a line of JSON on standard error for each
  std::shared_ptr<KvEvents> kv_events{};  // tell routers what the slots hold; null: none
  std::string slot_folder{};              // for states on disk; empty: none
  std::string model_name{};               // as clients see it
  std::string version{};
};

class Server {
 public:
  static std::unique_ptr<Server> create(const ServerOptions& options);
  virtual ~Server() = default;
  virtual int bind() = 0;                 // the port; throws when it cannot be had
  virtual void listen() = 0;              // until stop()
  virtual void loading(double done) = 0;  // progress 0..1
  // From now on it answers. The engine must outlive the server; nobody else may use the engine.
  virtual void attach(Engine& engine) = 0;
  // From another thread. drain() takes no more requests and waits, at most so long, until those it has are answered;
  // stop() ends what still runs, then listen().
  virtual void drain(std::chrono::seconds deadlines) = 0;
  virtual void stop() = 0;
};

}  // namespace sx::server
