// One choice of an answer on its way: filled by a handler, run by the worker, and the channel on
// which text, tokens and rounds come back.
#pragma once
#include <specextend/specextend.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/error.h"
#include "server/keys.h"
#include "server/logprobs.h"
#include "server/response.h"

namespace sx::server {

using Clock = std::chrono::steady_clock;

// Where the jobs of one reply say that there is something new.
class Mailbox {
 public:
  void ring();
  void listen(std::function<void()> on_ring);

 private:
  std::mutex mutex_;
  std::function<void()> on_ring_;
};

class Job {
 public:
  Job(std::shared_ptr<Mailbox> mailbox, const CompletionRequest& request, std::vector<Token> given, int choice);

  const std::vector<Token> prompt;
  GenerateOptions options;
  const bool stream, progress, details, timed, reuse;  // reuse: of what caches hold
  const int logprobs;                                  // alternatives; -1: none
  const bool scores_prompt;                            // those of the prompt's tokens, too
  const std::string grammar_field;                     // of the request, which binds the text
  const int slot;                                      // that it must run on; -1: any
  const int choices;                                   // of its request, per prompt
  const Clock::time_point arrived = Clock::now();
  Clock::time_point deadline = Clock::time_point::max();
  uint64_t scope = 0;                     // whose texts it may share: those of its key
  Tenant tenant{};                        // who asks
  std::shared_ptr<const void> grammar{};  // compiled, so that the worker need not
  std::atomic<bool> gone{false};          // nobody reads any more: cancels in every phase
  bool cancelled(bool ending) const { return gone || ending || Clock::now() >= deadline; }

  // For the one who asked.
  ChoiceDelta take();                     // what has come since the last call
  bool accepted() const;                  // it runs, or has ended
  bool told() const;                      // something has come that take() would give
  bool done() const;                      // end() is there, and nothing follows
  std::optional<ApiError> error() const;  // it ended with
  ChoiceEnd end();                        // once, after done(); throws the error it ended with

  // For the worker: it runs on `session`. Sets the callbacks; on_round and on_prefill of the options are called before
  // ours.
  void begin(const Tokenizer& tokenizer, const Session& session, int slot);
  void accept();
  void finish(GenerateResult result);
  void fail(const ApiError& error);
  Clock::time_point started{}, first_token{};
  int tokens = 0;   // so far
  Timings counted;  // what the server's counters have of it

 private:
  void add(ChoiceDelta delta);

  const std::shared_ptr<Mailbox> mailbox_;
  std::optional<TokenCollector> collector_;  // of the worker, like the three that follow
  ChoiceDelta held_;                         // that waits for what belongs to it
  RoundCollector rounds_;
  int ran_on_ = 0;
  mutable std::mutex mutex_;  // of what follows
  ChoiceDelta deltas_;
  bool accepted_ = false, done_ = false;
  ChoiceEnd end_;
  std::optional<ApiError> error_;
};

}  // namespace sx::server
