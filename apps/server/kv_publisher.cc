// The sockets of kv_events.h.
#include <fmt/format.h>
#include <zmq.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

#include "server/kv_events.h"

namespace sx::server {
namespace {

using Bytes = std::vector<uint8_t>;
using namespace std::chrono;

Bytes big_endian(int64_t number) {
  Bytes bytes(8);
  for (size_t i = 0; i < 8; ++i) bytes[i] = uint8_t(uint64_t(number) >> (56 - 8 * i));
  return bytes;
}

// ZeroMQ takes the lowest 16 bits of any number for a port.
void check_port(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with("tcp://") || colon == std::string::npos) return;
  const std::string port = endpoint.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (port == "*" || (digits && std::stoi(port) > 0 && std::stoi(port) <= UINT16_MAX)) return;
  throw Error(fmt::format("--kv-events: '{}' cannot be bound: there is no port {}", endpoint, port));
}

class Socket {
 public:
  Socket(void* context, int type, const std::string& endpoint) : socket_(nullptr) {
    check_port(endpoint);
    socket_ = zmq_socket(context, type);
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    if (zmq_bind(socket_, endpoint.c_str()) == 0) return;
    const std::string why = zmq_strerror(zmq_errno());
    zmq_close(socket_);
    throw Error(fmt::format("--kv-events: '{}' cannot be bound: {}", endpoint, why));
  }
  ~Socket() { zmq_close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void* get() const { return socket_; }
  void send(std::initializer_list<std::span<const uint8_t>> frames) const {
    size_t left = frames.size();
    for (const auto& frame : frames) zmq_send(socket_, frame.data(), frame.size(), --left > 0 ? ZMQ_SNDMORE : 0);
  }
  // All frames of the next message; it must be there.
  std::vector<Bytes> receive() const {
    std::vector<Bytes> frames;
    for (int more = 1; more;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        break;
      }
      const auto* data = static_cast<const uint8_t*>(zmq_msg_data(&message));
      frames.emplace_back(data, data + zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void* socket_;
};

struct Context {
  void* get = zmq_ctx_new();
  ~Context() { zmq_ctx_term(get); }
};

class ZmqPublisher final : public KvPublisher {
 public:
  explicit ZmqPublisher(const KvEventOptions& options)
      : topic_(options.topic.begin(), options.topic.end()), socket_(context_.get, ZMQ_PUB, options.endpoint) {
    if (!options.replay_endpoint.empty())
      replay_ = std::make_unique<Socket>(context_.get, ZMQ_ROUTER, options.replay_endpoint);
    // Whoever listened to an earlier process at this address must forget what that one held.
    publish(nlohmann::json::array({nlohmann::json::array({"AllBlocksCleared"})}));
    thread_ = std::thread([this] { work(); });
  }
  ~ZmqPublisher() override {
    ending_ = true;
    thread_.join();
  }

  void publish(const nlohmann::json& events) override {
    const double now = duration<double>(system_clock::now().time_since_epoch()).count();
    Bytes batch = nlohmann::json::to_msgpack(nlohmann::json::array({now, events, 0}));
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(batch));
    if (waiting_.size() > kKept) waiting_.pop_front(), ++next_;  // the gap in the numbers tells
  }

 private:
  void work() {
    constexpr int kPollMs = 20;
    while (!ending_) {
      std::deque<Bytes> batches;
      int64_t number = 0;
      {
        const std::lock_guard lock(mutex_);
        batches.swap(waiting_);
        number = next_;
        next_ += int64_t(batches.size());
      }
      for (Bytes& batch : batches) {
        socket_.send({topic_, big_endian(number), batch});
        kept_.emplace_back(number++, std::move(batch));
        if (kept_.size() > kKept) kept_.pop_front();
      }
      if (!replay_) {
        std::this_thread::sleep_for(milliseconds(kPollMs));
        continue;
      }
      zmq_pollitem_t item{.socket = replay_->get(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
      if (zmq_poll(&item, 1, kPollMs) > 0) answer(replay_->receive());
    }
  }

  // A request is [who, empty, first number]; others are not answered.
  void answer(const std::vector<Bytes>& request) const {
    if (request.size() != 3 || request[2].size() != 8) return;
    uint64_t first = 0;
    for (const uint8_t byte : request[2]) first = first << 8 | byte;
    for (const auto& [number, batch] : kept_)
      if (uint64_t(number) >= first) replay_->send({request[0], Bytes(), big_endian(number), batch});
    replay_->send({request[0], Bytes(), big_endian(-1), Bytes()});
  }

  Context context_;
  const Bytes topic_;
  Socket socket_;
  std::unique_ptr<Socket> replay_;
  std::deque<std::pair<int64_t, Bytes>> kept_;  // of the thread
  std::atomic<bool> ending_{false};
  std::mutex mutex_;  // of what follows
  std::deque<Bytes> waiting_;
  int64_t next_ = 0;  // the number of the first that waits
  std::thread thread_;
};

}  // namespace

std::unique_ptr<KvPublisher> KvPublisher::create(const KvEventOptions& options) {
  return std::make_unique<ZmqPublisher>(options);
}

}  // namespace sx::server
