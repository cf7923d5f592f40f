// Notices when a rank dies, hangs or cannot be reached. Each rank has a thread that sends a byte twice a second to rank
// 0, and rank 0 one to each, over TCP connections of their own: a process that is stopped, killed or cut off falls
// silent, whatever its other threads were doing. Rank 0 tells the others whom it has lost.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sx {

// Where rank 0 listens, in a form that can be sent as it is.
struct MonitorPlace {
  char host[64];
  int32_t process;
  uint16_t port;
  uint32_t addresses[8];  // IPv4, network order; 0: none
  uint64_t secret[2];     // who connects must know it
};

class RankMonitor {
 public:
  struct Options {
    double silence_seconds = 5;  // after so much of it a rank is lost
    double grace_seconds = 2;    // then until on_lost, so that requests can be told
    std::function<void(const std::string&)> on_lost;
  };
  // Rank 0 begins to listen in the constructor; connect() is given the places of all ranks.
  RankMonitor(int rank, int size, Options options);
  ~RankMonitor();  // says good-bye: the others do not miss this rank
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  const MonitorPlace& place() const { return place_; }
  void connect(const std::vector<MonitorPlace>& places);  // throws sx::Error

  bool lost() const { return lost_; }
  std::string reason() const;  // why, once lost() is true
  // This rank gives the job up; the others hear why.
  void give_up(const std::string& why) noexcept;
  std::string describe(int rank) const;  // "rank 2 (host, process 17)"

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int rank = -1, socket = -1;
    bool gone = false;  // it has said good-bye
    std::string unread;
    Clock::time_point heard;
  };
  void listen();
  void accept_all();
  void connect_to_first();
  void watch();
  void read(Peer& peer);
  void lose(const std::string& why);
  void send(Peer& peer, char kind, const std::string& text = {});

  const int rank_, size_;
  const Options options_;
  MonitorPlace place_{};
  std::vector<MonitorPlace> places_;
  int listener_ = -1;
  std::vector<Peer> peers_;
  mutable std::mutex lock_;  // of what is written to the sockets, and of the reason
  std::string reason_;
  std::atomic<bool> lost_{false}, quit_{false};
  std::thread thread_;
};

}  // namespace sx
