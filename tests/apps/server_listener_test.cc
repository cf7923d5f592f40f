// Connections without a model: a listener with handlers of our own, and clients that send, wait, leave and flood.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <specextend/give_way.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "server/connection.h"
#include "server/listener.h"

namespace sx::server {
namespace {

using namespace std::chrono_literals;

// Counts to ten, a number at each ring.
class Counter final : public LaterReply {
 public:
  explicit Counter(std::atomic<int>& left) : left_(left) {}
  ~Counter() override {
    if (thread_.joinable()) thread_.join();
  }
  void listen(std::function<void()> ring) override {
    thread_ = std::thread([this, ring = std::move(ring)] {
      for (int i = 0; i < 10 && !gone_; ++i) {
        ++made_;
        ring();
        std::this_thread::yield();
      }
    });
  }
  State next(HttpReply& reply, std::string& piece) override {
    reply.set_header("Content-Type", "text/plain");
    while (told_ < made_) piece += std::to_string(told_++);
    return told_ == 10 ? State::kDone : told_ == 0 ? State::kWaiting : State::kStreaming;
  }
  void leave() override {
    if (!gone_.exchange(true)) ++left_;
  }

 private:
  std::atomic<int>& left_;
  std::atomic<int> made_{0};
  std::atomic<bool> gone_{false};
  int told_ = 0;
  std::thread thread_;
};

// Never says anything.
class Silence final : public LaterReply {
 public:
  void listen(std::function<void()>) override {}
  State next(HttpReply&, std::string&) override { return State::kWaiting; }
  void leave() override {}
};

// "/count" streams, "/silence" waits for ever, "/long" wants a thread that gives way, "/gate" waits until the gate is
// open, all others give the body back, or the path. Requests are those of X-Owner.
class Side final : public HttpSide {
 public:
  Admission admit(const RequestHead& head, const HttpRequest& request, HttpReply&) override {
    if (!head.has_body()) return {};
    return {.lane = request.path == "/slow" ? Lane::kSlow : Lane::kQuick, .owner = request.get_header_value("X-Owner")};
  }
  void handle(HttpRequest& request, HttpReply& reply) override {
    if (request.path == "/gate") ++at_gate, gate_.wait(false);
    if (request.path == "/count") reply.later = std::make_shared<Counter>(left);
    else if (request.path == "/silence") ++silent, reply.later = std::make_shared<Silence>();
    else if (request.path == "/long" && !gives_way()) ++sent_on, reply.takes_long = true;
    else reply.set_content(request.body.empty() ? request.path : request.body, "text/plain");
  }
  void explain(const HttpRequest&, HttpReply& reply, const ApiError& error) override {
    reply.status = error.status;
    reply.set_content(error.message, "text/plain");
  }
  void count(int status) override {
    const std::lock_guard lock(mutex_);
    ++statuses_[status];
  }
  void log(const HttpRequest&, const HttpReply&, std::chrono::milliseconds) override {}
  void open_gate() { gate_ = true, gate_.notify_all(); }
  int counted(int status) {
    const std::lock_guard lock(mutex_);
    return statuses_[status];
  }
  std::atomic<int> left{0}, silent{0}, sent_on{0}, at_gate{0};

 private:
  std::mutex mutex_;
  std::map<int, int> statuses_;
  std::atomic<bool> gate_{false};
};

struct Listening {
  explicit Listening(ListenerOptions options = {}) {
    options.port = 0;
    listener = Listener::create(options, side);
    port = listener->bind();
    thread = std::thread([this] { listener->listen(); });
  }
  ~Listening() {
    side.open_gate();
    listener->stop();
    thread.join();
  }
  Side side;
  std::unique_ptr<Listener> listener;
  int port = 0;
  std::thread thread;
};

class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(uint16_t(port));
    ::inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    timeval patience{30, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    connected = ::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void send(std::string_view text) const { ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  // All that comes up to a word, or to the end.
  std::string read(std::string_view word = "\1") const {
    std::string text;
    char piece[4096];
    while (text.find(word) == text.npos) {
      const ssize_t got = ::recv(socket_, piece, sizeof(piece), 0);
      if (got <= 0) break;
      text.append(piece, size_t(got));
    }
    return text;
  }
  void reset() const {
    const linger now{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  void end_side() const { ::shutdown(socket_, SHUT_WR); }
  bool connected = false;

 private:
  const int socket_;
};

std::string get(const std::string& path, const std::string& more = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n";
}
std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more +
         "\r\n" + body;
}
const std::string kClose = "Connection: close\r\n";

std::string unchunked(const std::string& reply) {
  std::string text;
  size_t at = reply.find("\r\n\r\n") + 4;
  for (size_t size = 0; at < reply.size() && (size = std::stoul(reply.substr(at), nullptr, 16)) > 0;) {
    at = reply.find("\r\n", at) + 2;
    text += reply.substr(at, size);
    at += size + 2;
  }
  return text;
}

template <typename Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
  return condition();
}

// What turns out to take long begins where it does not take a core from others, and has its answer from there.
TEST(Listener, WhatTakesLongIsHandledElsewhere) {
  Listening server;
  Client client(server.port);
  client.send(post("/long", "much work") + post("/long", "more", kClose));
  const std::string text = client.read();
  EXPECT_NE(text.find("\r\n\r\nmuch work"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\r\n\r\nmore")) << text;
  EXPECT_EQ(server.side.sent_on, 2);
  EXPECT_EQ(server.side.counted(200), 2);
}

TEST(Listener, AnswersRequestsThatComeTogetherInTheirOrder) {
  Listening server;
  const Client client(server.port);
  std::string all;
  for (int i = 0; i < 20; ++i)
    all += i % 2 == 0 ? get("/" + std::to_string(i)) : post("/echo", std::string(size_t(i), 'x'));
  client.send(all + get("/count") + get("/last", kClose));
  const std::string replies = client.read();
  size_t at = 0;
  for (int i = 0; i < 20; ++i) {
    const std::string body = i % 2 == 0 ? "/" + std::to_string(i) : std::string(size_t(i), 'x');
    at = replies.find("\r\n\r\n" + body, at);
    ASSERT_NE(at, replies.npos) << i;
  }
  EXPECT_TRUE(replies.ends_with("\r\n\r\n/last"));
  EXPECT_EQ(server.side.counted(200), 22);
}

TEST(Listener, StreamsToHttp11And10) {
  Listening server;
  const Client client(server.port), old(server.port);
  client.send(get("/count", kClose));
  EXPECT_EQ(unchunked(client.read()), "0123456789");
  old.send("GET /count HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(old.read().ends_with("\r\n\r\n0123456789"));
  EXPECT_TRUE(soon([&] { return server.side.left == 2; }));
}

TEST(Listener, BodiesTogetherHaveABound) {
  ListenerOptions options;
  options.bodies_bytes = size_t(1) << 20;
  Listening server(options);
  std::vector<std::unique_ptr<Client>> clients;
  const std::string piece(size_t(300) << 10, 'x');
  for (int i = 0; i < 5; ++i) {  // what has been read into a request counts no more
    clients.push_back(std::make_unique<Client>(server.port));
    clients.back()->send(post("/silence", piece));
    EXPECT_TRUE(soon([&] { return server.side.silent == i + 1; }));
  }
  EXPECT_EQ(server.side.counted(503), 0);
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<Client>(server.port));
    clients.back()->send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + piece);
  }
  EXPECT_TRUE(soon([&] { return server.side.counted(503) > 0; }));
  const Client small(server.port);
  small.send(post("/echo", "small", kClose));
  EXPECT_TRUE(small.read().ends_with("small"));
}

// Half-sent bodies of one key take no other's room.
TEST(Listener, BodiesOfOneOwnerLeaveRoomForOthers) {
  ListenerOptions options;
  options.bodies_bytes = size_t(1) << 20;
  Listening server(options);
  const std::string piece(size_t(200) << 10, 'x');
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<Client>(server.port));
    clients.back()->send("POST /echo HTTP/1.1\r\nHost: x\r\nX-Owner: a\r\nContent-Length: 900000\r\n\r\n" + piece);
  }
  EXPECT_TRUE(soon([&] { return server.side.counted(503) > 0; }));
  for (const std::string owner : {"X-Owner: b\r\n", ""}) {  // or its address
    const Client other(server.port);
    other.send(post("/echo", piece, owner + kClose));
    EXPECT_TRUE(other.read().ends_with("\r\n\r\n" + piece)) << owner;
  }
  const Client more(server.port);
  more.send("POST /echo HTTP/1.1\r\nHost: x\r\nX-Owner: a\r\nContent-Length: 900000\r\n\r\n" + piece + piece + piece);
  EXPECT_NE(more.read("for all").find("the bodies of a take more than half"), std::string::npos);
}

TEST(BodyRoom, NoOwnerFillsIt) {
  BodyRoom bodies(100);
  using Room = BodyRoom::Room;
  EXPECT_EQ(bodies.add("a", 50), Room::kYes);
  EXPECT_EQ(bodies.add("a", 500), Room::kShareFull);  // as many small ones would be
  EXPECT_EQ(bodies.add("b", 50), Room::kYes);
  EXPECT_EQ(bodies.add("c", 1), Room::kFull);
  bodies.remove("a", 500), bodies.remove("a", 1);
  EXPECT_EQ(bodies.add("c", 0), Room::kYes);
  bodies.remove("a", 49), bodies.remove("b", 50), bodies.remove("c", 1);
  EXPECT_EQ(bodies.add("a", 50), Room::kYes);
  EXPECT_EQ(bodies.add("c", 50), Room::kYes);
}

// In a lane of one thread that is held up meanwhile.
TEST(Workers, OwnersTakePartInTurn) {
  using Added = Workers::Added;
  Workers workers(1, 8);
  std::atomic<bool> open{false}, held{false};
  std::atomic<int> done{0};
  ASSERT_EQ(workers.add(Lane::kLarge, "a", [&] { held = true, held.notify_all(), open.wait(false); }), Added::kYes);
  held.wait(false);
  std::string order;
  const auto add = [&](const std::string& owner) {
    return workers.add(Lane::kLarge, owner, [&, owner] { order += owner, ++done; });
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(add("a"), Added::kYes) << i;
  EXPECT_EQ(add("a"), Added::kShareFull);
  EXPECT_EQ(add("b"), Added::kYes);
  EXPECT_EQ(add("b"), Added::kYes);
  EXPECT_EQ(add("b"), Added::kShareFull);
  EXPECT_EQ(add("c"), Added::kYes);
  EXPECT_EQ(add("d"), Added::kYes);
  EXPECT_EQ(add("e"), Added::kFull);
  EXPECT_EQ(workers.add(Lane::kQuick, "a", [&] { ++done; }), Added::kYes);  // another lane
  EXPECT_TRUE(soon([&] { return done == 1; }));
  open = true, open.notify_all();
  EXPECT_TRUE(soon([&] { return done == 9; }));
  workers.stop();
  EXPECT_EQ(order, "abcdabaa");
}

TEST(Listener, OneOwnersRequestsLeavePlacesForAnothers) {
  ListenerOptions options;
  options.waiting = 64;
  Listening server(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<Client>(server.port));
    clients.back()->send(post("/gate", "work", "X-Owner: a\r\n" + kClose));
    if (i < 2) {
      ASSERT_TRUE(soon([&] { return server.side.at_gate == i + 1; }));
    }
  }
  EXPECT_TRUE(soon([&] { return server.side.counted(429) == 16; }));  // of 64 places a gets 32, and two are at work
  const Client other(server.port);
  other.send(post("/gate", "other", "X-Owner: b\r\n" + kClose));
  server.side.open_gate();
  EXPECT_TRUE(other.read().ends_with("\r\n\r\nother"));
  int worked = 0, refused = 0;
  for (const auto& client : clients) {
    const std::string text = client->read();
    worked += text.ends_with("\r\n\r\nwork"), refused += text.find("a has too many requests") != text.npos;
  }
  EXPECT_EQ(worked, 34);
  EXPECT_EQ(refused, 16);
}

TEST(Listener, AnAddressGivesUpItsOwn) {
  ListenerOptions options;
  options.connections = {.all = 100, .per_address = 4};
  Listening server(options);
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(std::make_unique<Client>(server.port));
  ASSERT_TRUE(soon([&] { return server.listener->connections() == 4; }));
  std::this_thread::sleep_for(250ms);
  const Client fifth(server.port);
  fifth.send(get("/", kClose));
  EXPECT_TRUE(fifth.read().ends_with("/"));
  EXPECT_EQ(idle[0]->read(), "");  // it has waited longest
}

// Many threads, every kind of end: nothing is lost, nothing is told twice, and all connections go.
TEST(Listener, SurvivesAllKindsOfClients) {
  Listening server;
  std::vector<std::thread> threads;
  std::atomic<int> whole{0};
  for (unsigned seed = 0; seed < 8; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 60; ++i) {
        const Client client(server.port);
        ASSERT_TRUE(client.connected);
        switch (random() % 7) {
          case 0: client.send(get("/count")); break;  // and leaves
          case 1: client.send(get("/count")), client.reset(); break;
          case 2:
            client.send(get("/count")), client.end_side();
            EXPECT_EQ(unchunked(client.read()), "0123456789");
            break;
          case 3: client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"); break;
          case 4: client.send(get("/count")), client.read("Content-Type"), client.reset(); break;
          case 5: client.send("GET / HT"), client.end_side(), client.read(); break;
          default:
            client.send(post("/slow", "body") + get("/count", kClose));
            const std::string text = client.read();
            EXPECT_NE(text.find("body"), text.npos);
            whole += text.find("\r\n0\r\n\r\n") != text.npos;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(whole, 0);
  EXPECT_TRUE(soon([&] { return server.listener->connections() == 0; }));
}

TEST(Listener, DrainsAndStops) {
  for (int i = 0; i < 5; ++i) {
    Listening server;
    const Client idle(server.port), asked(server.port);
    asked.send(get("/count"));
    EXPECT_EQ(unchunked(asked.read("\r\n0\r\n\r\n")), "0123456789");
    server.listener->drain(5s);
    EXPECT_EQ(server.listener->connections(), 0u);
    EXPECT_EQ(idle.read(), "");
    EXPECT_FALSE(Client(server.port).connected);
  }
  Listening never_asked;
}

}  // namespace
}  // namespace sx::server
