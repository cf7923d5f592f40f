// Gives a link between devices up when a rank is lost, so that no device and no host waits for it: a thread that asks
// the communicator, whose own watch (comm/rank_monitor.h) knows who is lost.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "backend/device_link.h"
#include "comm/communicator.h"

namespace sx {

class LinkWatch {
 public:
  // patience_seconds: how long trouble of the link itself is left to the communicator, which can name the lost rank.
  // The ranks are given up then, and when the host has waited for the device for longer than the communicator's
  // deadline.
  LinkWatch(Communicator& comm, DeviceLink& link, double patience_seconds = 6);
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

 private:
  void watch();

  Communicator& comm_;
  DeviceLink& link_;
  const double patience_, deadline_;
  std::mutex lock_;
  std::condition_variable changed_;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace sx
