#include "backend/ranks/link_watch.h"

#include <fmt/format.h>

#include <chrono>

namespace sx {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(20);

}  // namespace

LinkWatch::LinkWatch(Communicator& comm, DeviceLink& link, double patience_seconds)
    : comm_(comm), link_(link), patience_(patience_seconds), deadline_(comm.deadline_seconds), thread_([this] {
        watch();
      }) {}

LinkWatch::~LinkWatch() {
  {
    const std::lock_guard hold(lock_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LinkWatch::watch() {
  Clock::time_point trouble_since{};
  std::unique_lock hold(lock_);
  for (;;) {
    changed_.wait_for(hold, kLook, [this] { return quit_; });
    if (const std::string why = comm_.lost(); !why.empty())
      return link_.give_up(fmt::format("the ranks have given up: {}", why));
    if (quit_) return;
    const std::string me = comm_.describe(comm_.rank());
    if (link_.waited_seconds() > deadline_)
      comm_.abort(fmt::format("{} has waited {} s for messages to its device", me, deadline_));
    const std::string trouble = link_.trouble();
    if (trouble.empty()) trouble_since = {};
    else if (trouble_since == Clock::time_point{}) trouble_since = Clock::now();
    else if (std::chrono::duration<double>(Clock::now() - trouble_since).count() > patience_)
      comm_.abort(fmt::format("{}: {}", me, trouble));
  }
}

}  // namespace sx
