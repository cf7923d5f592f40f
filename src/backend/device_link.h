// Messages between the devices of several ranks: memory of one device to memory of another, in the order of the ops,
// and part of recorded steps.
//
// A device that waits for a message of a rank that is lost would wait for ever, and the host with it. LinkWatch
// (ranks/link_watch.h) watches the ranks and gives the link up; the device's waits then come back, and fail.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sx {

class DeviceLink {
 public:
  // What a rank says before ranks are joined. device: names the device among those of all machines; two ranks on one
  // cannot be joined. why_not: the reason why this rank cannot be; empty: it can.
  struct Offer {
    std::string device, why_not;
  };
  struct Part {
    int rank;  // from whom, or to whom
    float* data;
    size_t count;
  };
  virtual ~DeviceLink() = default;
  virtual std::string name() const = 0;  // "NCCL 2.27.3"
  virtual Offer offer() = 0;
  virtual std::vector<std::byte> new_id() = 0;  // one rank makes it, all join with it
  // All ranks at the same time. Throws sx::Error. A rank that is lost meanwhile may leave the others in it: only the
  // communicator's on_lost ends that.
  virtual void join(std::span<const std::byte> id, int rank, int size) = 0;
  // Sends and receives all of these at the same time.
  virtual void exchange(std::span<const Part> out, std::span<const Part> in) = 0;

  // A rank is lost: messages under way end, whatever they have brought, and there are no others. May be called by any
  // thread; does not wait for anything.
  virtual void give_up(const std::string& why) noexcept = 0;
  // Throws sx::Error once the link has been given up: what messages were to bring may not have come.
  virtual void check() const = 0;
  // What the link itself has noticed; empty: nothing. May be called by any thread.
  virtual std::string trouble() { return {}; }

  // Around every wait of the host for the device. link: null where there is none.
  class Wait {
   public:
    explicit Wait(DeviceLink* link) : link_(link) {
      if (link_) link_->waits_since_ = std::chrono::steady_clock::now().time_since_epoch().count();
    }
    ~Wait() {
      if (link_) link_->waits_since_ = 0;
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    void check() const {  // before anything is done with what the device has left
      if (link_) link_->check();
    }

   private:
    DeviceLink* const link_;
  };
  // How long the host has been waiting. May be called by any thread.
  double waited_seconds() const {
    const int64_t since = waits_since_;
    if (since == 0) return 0;
    using std::chrono::steady_clock;
    return std::chrono::duration<double>(steady_clock::now().time_since_epoch() - steady_clock::duration(since))
        .count();
  }

 private:
  std::atomic<int64_t> waits_since_{0};  // 0: it does not wait
};

}  // namespace sx
