#include "server/listener.h"

#include <fmt/format.h>
#include <specextend/error.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "server/connection.h"

namespace sx::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;

constexpr int kThreads = 2;          // of input and output
constexpr int kWorkers = 2;          // of each lane
constexpr size_t kOtherFiles = 64;   // that the process has open beside its connections
constexpr auto kHeadDeadline = 10s;  // for the head of a request
constexpr auto kPause = 50ms;        // before another connection is looked for, where there is no room
constexpr auto kLastWords = 2s;      // for answers to be read, after the end

// Connections are files: as many as the process may have.
ConnectionBounds within_limits(ConnectionBounds bounds) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return bounds;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return bounds;
  const size_t most = std::max<size_t>(files.rlim_cur, 2 * kOtherFiles) - kOtherFiles;
  return {.all = std::min(bounds.all, most), .per_address = std::min(bounds.per_address, most)};
}

class AsioListener final : public Listener {
 public:
  AsioListener(const ListenerOptions& options, HttpSide& side)
      : options_(options),
        make_wire_(make_wires(options.cert_file, options.key_file)),
        all_(within_limits(options.connections)),
        bodies_(options.bodies_bytes),
        workers_(kWorkers, options.waiting),
        shared_{side, all_, workers_, bodies_},
        acceptor_(asio::make_strand(io_)),
        pause_(acceptor_.get_executor()) {
    shared_.deadlines.request = shared_.deadlines.write = options.request;
    shared_.deadlines.head = std::min<std::chrono::seconds>(options.request, kHeadDeadline);
  }
  ~AsioListener() override { stop(); }

  int bind() override {
    tcp::resolver resolver(io_);
    Wire::Error error;
    const auto found = resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, error);
    for (auto it = found.begin(); !error && it != found.end(); ++it)
      if (open(it->endpoint())) return acceptor_.local_endpoint().port();
    throw Error(fmt::format("cannot listen on {} port {}: in use, or not an address of this machine", options_.host,
                            options_.port));
  }

  void listen() override {
    asio::post(acceptor_.get_executor(), [this] { accept(); });
    {
      const std::lock_guard lock(mutex_);
      for (int i = 0; i < kThreads && !stopping_; ++i) threads_.emplace_back([this] { run(); });
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_; });
  }

  void drain(std::chrono::seconds most) override {
    stop_accepting();
    all_.begin_ending();
    all_.wait_until_none(Connections::Clock::now() + most);
  }

  void stop() override {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(stopping_, true)) return;
    }
    stop_accepting();
    all_.begin_ending();
    all_.wait_until_none(Connections::Clock::now() + kLastWords);
    workers_.stop();
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  size_t connections() const override { return all_.size(); }

 private:
  // A connection may run out of memory: the others go on.
  void run() {
    while (!io_.stopped()) try {
        io_.run();
      } catch (const std::exception& e) { fmt::print(stderr, "error: a connection failed: {}\n", e.what()); }
  }

  bool open(const tcp::endpoint& at) {
    Wire::Error error;
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) return true;
    acceptor_.close(error);
    return false;
  }

  // Connections are not taken any more when this returns.
  void stop_accepting() {
    {
      const std::lock_guard lock(mutex_);
      if (threads_.empty()) return;  // nobody listens yet
    }
    std::promise<void> closed;
    asio::post(acceptor_.get_executor(), [&] {
      Wire::Error ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      closed.set_value();
    });
    closed.get_future().wait();
  }

  void accept() {
    if (!acceptor_.is_open()) return;
    acceptor_.async_accept(asio::make_strand(io_), [this](const Wire::Error& error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error == asio::error::no_descriptors) all_.make_room();
      if (error) return later([this] { accept(); });  // there are no files left, or the client has left
      take(std::move(socket));
    });
  }

  void take(tcp::socket socket) {
    Wire::Error error;
    const tcp::endpoint from = socket.remote_endpoint(error);
    const std::string address = error ? std::string() : from.address().to_string();
    const Connections::Room room = error ? Connections::Room::kNever : all_.room(address);
    if (room == Connections::Room::kLater)
      return later([this, held = std::make_shared<tcp::socket>(std::move(socket))] { take(std::move(*held)); });
    if (room == Connections::Room::kYes)
      std::make_shared<Connection>(make_wire_(std::move(socket)), address, shared_)->start();
    accept();
  }

  template <typename Action>
  void later(Action action) {
    pause_.expires_after(kPause);
    pause_.async_wait([action = std::move(action)](const Wire::Error& error) mutable {
      if (!error) action();
    });
  }

  const ListenerOptions options_;
  const WireMaker make_wire_;
  Connections all_;
  BodyRoom bodies_;
  Workers workers_;
  ConnectionSurroundings shared_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false, stopped_ = false;
  std::vector<std::thread> threads_;
  asio::io_context io_{kThreads};  // after what connections need: it ends first, and they with it
  const asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
};

}  // namespace

std::unique_ptr<Listener> Listener::create(const ListenerOptions& options, HttpSide& side) {
  return std::make_unique<AsioListener>(options, side);
}

}  // namespace sx::server
