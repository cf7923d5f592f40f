// Bytes that leave memory for the disk: files without a name, which nobody else can open and which end with the
// process. A thread of its own writes them, so that the worker never waits for the disk; until a file is written its
// bytes are read from memory.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "server/turns.h"

namespace sx::server {

class StateSpill {
 public:
  class File;
  using Bytes = std::shared_ptr<const std::string>;

  // most_waiting: bytes that may wait for the disk. Throws sx::Error if no file can be made in the folder.
  StateSpill(std::string folder, size_t most_waiting);
  ~StateSpill();  // what is not written yet is lost
  StateSpill(const StateSpill&) = delete;
  StateSpill& operator=(const StateSpill&) = delete;

  // Null: the disk is too far behind, or takes no more files.
  std::shared_ptr<File> write(Bytes bytes);
  // Null: the file could not be written or read. Pauses between pieces where there are turns.
  Bytes read(const std::shared_ptr<File>& file, Turns* turns);
  void wait();  // until all is written

 private:
  void work();

  const std::string folder_;
  const size_t most_waiting_;
  std::mutex mutex_;  // of what follows, and of each file's bytes
  std::condition_variable changed_;
  std::deque<std::shared_ptr<File>> queue_;  // the first one is being written
  size_t waiting_ = 0;                       // bytes
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace sx::server
