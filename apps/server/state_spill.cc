#include "server/state_spill.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <specextend/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sx::server {
namespace {

constexpr size_t kSpillPiece = size_t(1) << 20;  // bytes read or written at once

// A file of the folder that has no name any more, or -1.
int open_nameless(const std::string& folder) {
  std::string name = folder + "/specextend-XXXXXX";
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file >= 0) ::unlink(name.c_str());
  return file;
}

}  // namespace

class StateSpill::File {
 public:
  explicit File(int file, Bytes all) : descriptor(file), size(all->size()), bytes(std::move(all)) {}
  ~File() { ::close(descriptor); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const int descriptor;
  const size_t size;
  Bytes bytes;  // until they are written
  bool failed = false;
};

StateSpill::StateSpill(std::string folder, size_t most_waiting)
    : folder_(std::move(folder)), most_waiting_(most_waiting) {
  const int file = open_nameless(folder_);
  if (file < 0) throw Error(fmt::format("no file can be made in '{}': {}", folder_, std::strerror(errno)));
  ::close(file);
  thread_ = std::thread([this] { work(); });
}

StateSpill::~StateSpill() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<StateSpill::File> StateSpill::write(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  if (waiting_ + bytes->size() > most_waiting_) return nullptr;
  const int file = open_nameless(folder_);
  if (file < 0) return nullptr;
  queue_.push_back(std::make_shared<File>(file, std::move(bytes)));
  waiting_ += queue_.back()->size;
  changed_.notify_all();
  return queue_.back();
}

void StateSpill::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (ending_) return;
    const std::shared_ptr<File> file = queue_.front();
    const Bytes bytes = file->bytes;
    bool whole = true;
    // A file that nobody wants any more is not worth the disk's time.
    const auto wanted = [&] { return file.use_count() > 2; };  // the queue has it, and this function
    for (size_t at = 0; at < bytes->size() && whole && !ending_ && wanted();) {
      lock.unlock();
      const ssize_t n =
          ::pwrite(file->descriptor, bytes->data() + at, std::min(kSpillPiece, bytes->size() - at), off_t(at));
      lock.lock();
      whole = n > 0;
      at += size_t(std::max<ssize_t>(n, 0));
    }
    file->failed = !whole;
    file->bytes = nullptr;
    waiting_ -= file->size;
    queue_.pop_front();
    changed_.notify_all();
  }
}

StateSpill::Bytes StateSpill::read(const std::shared_ptr<File>& file, Turns* turns) {
  {
    const std::lock_guard lock(mutex_);
    if (file->bytes) return file->bytes;
    if (file->failed) return nullptr;
  }
  ::posix_fadvise(file->descriptor, 0, off_t(file->size), POSIX_FADV_WILLNEED);
  std::string bytes(file->size, '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::pread(file->descriptor, bytes.data() + at, std::min(kSpillPiece, bytes.size() - at), off_t(at));
    if (n <= 0) return nullptr;
    at += size_t(n);
    if (turns) turns->pause();
  }
  return std::make_shared<const std::string>(std::move(bytes));
}

void StateSpill::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
}

}  // namespace sx::server
