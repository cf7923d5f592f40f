#include "comm/mpi.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/message.h"
#include "comm/mpi_plugin.h"
#include "comm/rank_monitor.h"

namespace sx {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr const char* kLibrary = "libspecextend_mpi.so";

double seconds_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != 0 || !(value > 0 && value < 1e6)) fail("{} is '{}', expected a number of seconds", variable, text);
  return value;
}

const MpiPlugin& load_plugin() {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  if (const char* named = std::getenv("SPECEXTEND_MPI_LIBRARY")) names.emplace_back(named);
  std::error_code error;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error)
    for (const char* folder : {".", "../lib/specextend", "../src/comm"})
      if (const fs::path path = program.parent_path() / folder / kLibrary; fs::exists(path, error))
        names.push_back(path.string());
  names.emplace_back(kLibrary);
  std::string why;
  for (const std::string& name : names) {
    // Parts of Open MPI look for its symbols, so these are for all to see.
    void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
      if (why.empty()) why = ::dlerror();
      continue;
    }
    const auto entry = reinterpret_cast<MpiPluginEntry>(::dlsym(library, kMpiPluginEntry));
    const MpiPlugin* plugin = entry ? entry() : nullptr;
    if (!plugin || plugin->version != kMpiPluginVersion) fail("'{}' is not of this version of the program", name);
    return *plugin;
  }
  fail(
      "several ranks need {}, which was not built or does not load (build with Open MPI installed: libopenmpi-dev): {}",
      kLibrary, why);
}

// Until ranks watch each other: MPI itself may wait forever for one that does not come.
class Meeting {
 public:
  explicit Meeting(const std::function<void(const std::string&)>& on_lost) {
    if (!on_lost) return;
    thread_ = std::thread([this, on_lost, most = seconds_from("SPECEXTEND_RANK_MEETING", 60)] {
      std::unique_lock hold(lock_);
      if (!changed_.wait_for(hold, std::chrono::duration<double>(most), [this] { return met_; }))
        on_lost(fmt::format("the ranks have not met within {} s: one has not started, is stopped or cannot be reached",
                            most));
    });
  }
  ~Meeting() {
    {
      const std::lock_guard hold(lock_);
      met_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  bool met_ = false;
  std::thread thread_;
};

class MpiRank final : public Communicator {
 public:
  MpiRank(const std::string& hello, std::function<void(const std::string&)> on_lost) : plugin_(load_plugin()) {
    const Meeting meeting(on_lost);
    deadline_seconds = seconds_from("SPECEXTEND_RANK_DEADLINE", deadline_seconds);
    check(plugin_.start(&rank_, &size_));
    RankMonitor::Options options;
    options.silence_seconds = seconds_from("SPECEXTEND_RANK_SILENCE", options.silence_seconds);
    options.on_lost = std::move(on_lost);
    auto monitor = std::make_unique<RankMonitor>(rank_, size_, options);
    std::vector<MonitorPlace> places(static_cast<size_t>(size_));
    places[size_t(rank_)] = monitor->place();
    std::vector<std::span<std::byte>> all;
    for (MonitorPlace& place : places) all.push_back(std::as_writable_bytes(std::span(&place, 1)));
    all_gather(all);
    monitor->connect(places);
    monitor_ = std::move(monitor);
    compare(hello);
  }

  ~MpiRank() override {
    const bool whole = !monitor_->lost();
    monitor_.reset();
    if (whole) plugin_.finish();  // else it would wait for a rank that is not there
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string kind() const override { return plugin_.library; }
  std::string describe(int rank) const override {
    return monitor_ ? monitor_->describe(rank) : Communicator::describe(rank);
  }
  void abort(const std::string& reason) noexcept override {
    if (monitor_) monitor_->give_up(reason);
  }
  std::string lost() const override { return monitor_ && monitor_->lost() ? monitor_->reason() : std::string(); }

 protected:
  void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in, bool idle) override {
    for (const Incoming& message : in)
      check(plugin_.begin_receive(message.bytes.data(), message.bytes.size(), message.from));
    for (const Outgoing& message : out)
      check(plugin_.begin_send(message.bytes.data(), message.bytes.size(), message.to));
    const auto start = Clock::now();
    int done = 0;
    for (int turns = 0;; ++turns) {
      check(plugin_.poll(&done));
      if (done) return;
      if (monitor_ && monitor_->lost()) fail("the ranks have given up: {}", monitor_->reason());
      if (turns % 64 != 0) continue;
      const auto waited = Clock::now() - start;
      if (!idle && waited > std::chrono::duration<double>(deadline_seconds))
        fail("rank {} has waited {} s for {}", rank_, deadline_seconds,
             in.empty() ? describe(out.front().to) : describe(in.front().from));
      // Ranks come to a gather within microseconds of each other. Who waits longer lets others have the processor.
      if (waited < 200us) continue;
      if (waited < 5ms) ::sched_yield();
      else ::usleep(idle && waited > 1s ? 1000 : 50);
    }
  }

 private:
  static void check(const char* error) {
    if (error) fail("messages between ranks: {}", error);
  }

  // What ranks say of themselves must be the same.
  void compare(const std::string& hello) {
    MessageBuffer message;
    if (rank_ == 0) message.put_text(hello);
    for (int r = 1; r < size_; ++r) {
      const int from = 0;
      if (rank_ == 0) send_message(*this, std::span(&r, 1), message.bytes());
      else if (rank_ == r) receive_message(*this, from, message, false);
    }
    if (rank_ == 0) message.resize(message.bytes().size());
    const std::string first = message.get_text();
    std::vector<std::byte> same(static_cast<size_t>(size_), std::byte{1});
    same[size_t(rank_)] = std::byte(first == hello);
    std::vector<std::span<std::byte>> all;
    for (std::byte& one : same) all.emplace_back(&one, 1);
    all_gather(all);
    for (int r = 0; r < size_; ++r)
      if (same[size_t(r)] != std::byte{1})
        fail("{} is not what rank 0 is, and their bits could differ{}", describe(r),
             r == rank_ ? fmt::format(": '{}' here, '{}' there", hello, first) : "");
  }

  const MpiPlugin& plugin_;
  int rank_ = 0, size_ = 1;
  std::unique_ptr<RankMonitor> monitor_;
};

}  // namespace

bool started_as_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(variable)) return true;
  return false;
}

int rank_on_machine() {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const char* text = std::getenv(variable)) return std::max(0, std::atoi(text));
  return 0;
}

std::shared_ptr<Communicator> join_mpi(const std::string& hello, std::function<void(const std::string&)> on_lost) {
  if (!started_as_rank())
    fail("--split divides a model among ranks: start the program with mpirun -n RANKS, or name several devices");
  return std::make_shared<MpiRank>(hello, std::move(on_lost));
}

}  // namespace sx
