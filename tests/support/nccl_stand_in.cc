#include "support/nccl_stand_in.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 4, kRemoteError = 6, kFloat32 = 7;

std::atomic<int> g_silent{-1}, g_left{0}, g_lost{0}, g_received{0}, g_aborted{0}, g_error{kSuccess};
std::atomic<bool> g_hold_aborts{false};

// What the ranks of one communicator share.
struct Job {
  std::mutex lock;
  std::condition_variable changed;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> queues;  // by sender and receiver
};

struct Comm {
  std::shared_ptr<Job> job;
  int rank, size;
  bool aborted = false;  // under the job's lock
  void* stream = nullptr;
};

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    give([] {}, true);
    thread_.join();
  }
  void give(std::function<void()> task, bool last = false) {
    const std::lock_guard hold(lock_);
    tasks_.push_back(std::move(task)), last_ |= last;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock hold(lock_);
    changed_.wait(hold, [this] { return tasks_.empty(); });
  }

 private:
  void run() {
    std::unique_lock hold(lock_);
    for (;;) {
      changed_.wait(hold, [this] { return !tasks_.empty(); });
      const auto task = tasks_.front();
      hold.unlock();
      task();
      hold.lock();
      tasks_.pop_front();
      changed_.notify_all();
      if (tasks_.empty() && last_) return;
    }
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the first is running
  bool last_ = false;
  std::thread thread_;
};

std::mutex g_lock;
std::map<int, std::shared_ptr<Job>> g_jobs;
std::map<void*, std::unique_ptr<Stream>> g_streams;

Stream& stream_of(void* handle) {
  const std::lock_guard hold(g_lock);
  auto& stream = g_streams[handle];
  if (!stream) stream = std::make_unique<Stream>();
  return *stream;
}

struct Part {
  char* data;
  size_t bytes;
  int peer;
};
struct Group {
  int depth = 0;
  Comm* comm = nullptr;
  std::vector<Part> out, in;
};
thread_local Group g_group;

void do_group(Comm& comm, const Group& group) {
  Job& job = *comm.job;
  std::unique_lock hold(job.lock);
  const bool lost = comm.rank == g_silent && g_left-- <= 0;
  if (lost) ++g_lost;
  for (const Part& part : group.out)
    if (!lost || part.peer == comm.rank)
      job.queues[{comm.rank, part.peer}].emplace_back(part.data, part.data + part.bytes);
  job.changed.notify_all();
  for (const Part& part : group.in) {
    auto& queue = job.queues[{part.peer, comm.rank}];
    job.changed.wait(hold, [&] { return comm.aborted || !queue.empty(); });
    if (comm.aborted) return;
    std::memcpy(part.data, queue.front().data(), part.bytes);
    queue.pop_front();
  }
  ++g_received;
}

int add(std::vector<Part>& parts, void* data, size_t count, int type, int peer, Comm* comm, void* stream) {
  if (g_group.depth == 0 || type != kFloat32 || peer < 0 || peer >= comm->size) return kInvalidArgument;
  g_group.comm = comm, comm->stream = stream;
  parts.push_back({static_cast<char*>(data), count * sizeof(float), peer});
  return kSuccess;
}

void end(Comm* comm) {
  if (comm->stream) stream_of(comm->stream).wait();
  delete comm;
}

}  // namespace

extern "C" {

void nccl_stand_in_wait(void* stream) { stream_of(stream).wait(); }
void nccl_stand_in_silence(int rank, int after) { g_left = after, g_silent = rank; }
int nccl_stand_in_lost() { return g_lost; }
int nccl_stand_in_received() { return g_received; }
int nccl_stand_in_aborted() { return g_aborted; }
void nccl_stand_in_hold_aborts(bool hold) { g_hold_aborts = hold, g_hold_aborts.notify_all(); }
void nccl_stand_in_error(int code) { g_error = code; }

struct UniqueId {
  char bytes[128];
};

const char* ncclGetErrorString(int code) {
  return code == kRemoteError ? "remote process exited or there was a network error" : "an error of the stand-in";
}
int ncclGetVersion(int* version) { return *version = 22703, kSuccess; }

int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> next{1};
  const int number = next++;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, &number, sizeof number);
  return kSuccess;
}

int ncclCommInitRank(void** comm, int size, UniqueId id, int rank) {
  int number;
  std::memcpy(&number, id.bytes, sizeof number);
  std::shared_ptr<Job> job;
  {
    const std::lock_guard hold(g_lock);
    auto& known = g_jobs[number];
    if (!known) known = std::make_shared<Job>();
    job = known;
  }
  std::unique_lock hold(job->lock);
  ++job->joined;
  job->changed.notify_all();
  job->changed.wait(hold, [&] { return job->joined == size; });
  *comm = new Comm{job, rank, size};
  return kSuccess;
}

int ncclCommDestroy(void* comm) { return end(static_cast<Comm*>(comm)), kSuccess; }

int ncclCommAbort(void* handle) {
  auto* comm = static_cast<Comm*>(handle);
  {
    const std::lock_guard hold(comm->job->lock);
    comm->aborted = true;
  }
  comm->job->changed.notify_all();
  ++g_aborted;
  g_hold_aborts.wait(true);
  return end(comm), kSuccess;
}

int ncclCommGetAsyncError(void*, int* error) { return *error = g_error, kSuccess; }

int ncclGroupStart() { return ++g_group.depth, kSuccess; }
int ncclSend(const void* data, size_t count, int type, int to, void* comm, void* stream) {
  return add(g_group.out, const_cast<void*>(data), count, type, to, static_cast<Comm*>(comm), stream);
}
int ncclRecv(void* data, size_t count, int type, int from, void* comm, void* stream) {
  return add(g_group.in, data, count, type, from, static_cast<Comm*>(comm), stream);
}
int ncclGroupEnd() {
  if (--g_group.depth > 0 || !g_group.comm) return kSuccess;
  const Group group = std::exchange(g_group, {});
  stream_of(group.comm->stream).give([group] { do_group(*group.comm, group); });
  return kSuccess;
}
}
