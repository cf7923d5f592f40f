// A request on its way: filled by the thread of its connection, run by the worker, and the channel the text comes back on.
#pragma once
#include <specextend/specextend.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/error.h"

namespace sx::server {

class Job {
 public:
  std::vector<Token> prompt;
  GenerateOptions options;            // the worker sets the callbacks
  std::atomic<bool> gone{false};      // nobody reads any more: cancels in every phase

  // What has come since the last call; waits for something up to `patience`.
  struct News {
    std::string text;
    bool done = false;                // result or error is set, and nothing follows
  };
  News wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return done_ || !text_.empty(); });
    News news{std::move(text_), done_};
    text_.clear();
    return news;
  }
  // After News::done.
  const GenerateResult& result() const {
    if (error_) throw *error_;
    return *result_;
  }

  void push(std::string_view text) {
    const std::lock_guard lock(mutex_);
    text_ += text;
    started_ = true;
    changed_.notify_all();
  }
  bool started() const {
    const std::lock_guard lock(mutex_);
    return started_;
  }
  void finish(GenerateResult result) {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result), done_ = true;
    changed_.notify_all();
  }
  void fail(const ApiError& error) {
    const std::lock_guard lock(mutex_);
    error_ = error, done_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  bool done_ = false, started_ = false;
  std::optional<GenerateResult> result_;
  std::optional<ApiError> error_;
};

}  // namespace sx::server
