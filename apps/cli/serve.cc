// `specextend serve`: an HTTP server that speaks OpenAI's API (docs/server.md).
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <thread>

#include "cli/common.h"
#include "cli/spec_flags.h"
#include "server/server.h"

namespace sx::cli {
namespace {

struct Args {
  EngineOptions engine;
  SpecFlags spec;
  server::ServerOptions server;
  std::string chat_template_file;
  int parallel = 4, body_mib = 16;
  bool quiet = false;
};

volatile std::sig_atomic_t g_ending = 0;

void on_signal(int number) {
  if (g_ending && number == SIGINT) ::_exit(130);  // Ctrl-C again: at once. SIGTERM may well come twice, to us and our group
  g_ending = 1;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0; }

int run(Args& a) {
  for (const std::string& key : a.server.api_keys)
    if (key.empty()) throw Error("--api-key: a key must not be empty");
  a.engine.spec = resolve(a.spec);
  a.engine.max_sessions = a.parallel;
  a.server.body_bytes = size_t(a.body_mib) << 20;
  const auto engine = open_engine(a.engine, a.chat_template_file, a.quiet);
  if (a.server.model_name.empty()) {
    std::filesystem::path path(engine->options().model);
    if (!path.has_filename()) path = path.parent_path();  // a folder with a slash at its end
    a.server.model_name = path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
  }
  const auto server = server::Server::create(*engine, a.server);
  const int port = server->bind();
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  if (a.server.api_keys.empty() && !is_loopback(a.server.host))
    fmt::print(stderr, "warning: {} can be reached from other machines, and no --api-key is set\n", a.server.host);
  std::atomic<bool> ended{false};
  std::thread listener([&] {
    server->listen();
    ended = true;
  });
  const bool v6 = a.server.host.find(':') != std::string::npos;
  fmt::print(stderr, "listening on http://{}{}{}:{}\n", v6 ? "[" : "", a.server.host, v6 ? "]" : "", port);
  while (!g_ending && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const bool asked = g_ending;
  server->stop();
  listener.join();
  if (!asked) throw Error("the server stopped listening");
  if (!a.quiet) fmt::print(stderr, "ended\n");
  return 0;
}

Command add_serve(CLI::App& app) {
  auto args = std::make_shared<Args>();
  server::ServerOptions& s = args->server;
  app.add_option("--host", s.host, "address to listen on")->capture_default_str()->envname("LLAMA_ARG_HOST");
  app.add_option("--port", s.port, "port to listen on; 0 takes a free one and prints it")
      ->capture_default_str()->check(CLI::Range(0, 65535))->envname("LLAMA_ARG_PORT");
  app.add_option("--api-key", s.api_keys, "a key that clients must send, on every path but /health; may be repeated")
      ->allow_extra_args(false)->envname("LLAMA_API_KEY");
  app.add_option("--parallel,--np", args->parallel, "requests that run at a time; each has a context of its own (-c)")
      ->capture_default_str()->check(CLI::Range(1, 256))->envname("LLAMA_ARG_N_PARALLEL");
  app.add_option("--queue", s.queue, "requests that may wait; more are refused with status 429")
      ->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("--max-body", args->body_mib, "largest body of a request, MiB")->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("-n,--predict,--n-predict", s.max_tokens, "most tokens a request may ask for (-1: what the context holds)")
      ->capture_default_str()->check(CLI::Range(-1, 1 << 24));
  app.add_option("-a,--alias", s.model_name, "the model's name for clients (default: that of its file)")->envname("LLAMA_ARG_ALIAS");
  app.add_flag("-q,--quiet", args->quiet, "only the line that says where it listens");
  add_engine_flags(app, args->engine, args->chat_template_file);
  add_spec_flags(app, args->spec);
  return [args] { return run(*args); };
}

}  // namespace

std::vector<OptionalCommand> optional_commands() {
  return {{"serve", "an HTTP server that speaks OpenAI's API", add_serve}};
}

}  // namespace sx::cli
