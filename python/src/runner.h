// The engine behind an LLM object of Python: one thread owns it and runs all requests in one batch; any number of
// Python threads and event loops submit calls and wait for what comes back. The thread never takes the GIL: it leaves
// text in the call, wakes whoever waits, and goes on.
#pragma once
#include <specextend/specextend.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sx::python {

struct CallToken {
  Token token = 0;
  int depth = 0;
  double logprob = 0;                           // only if asked for, like those that follow
  std::vector<std::pair<Token, double>> top{};  // most likely first
};

// A piece of the answer, and the tokens that came since the piece before.
struct CallPiece {
  std::string text;
  std::vector<CallToken> tokens;
};

// A place of the engine: one session. Named ones belong to a Session object of Python, the others serve calls.
struct Place {
  std::unique_ptr<Session> session;
  bool busy = false;    // a call runs on it
  bool ending = false;  // it is closed when the call has ended
};

// What a call wants beside its text.
struct CallWants {
  int logprobs = -1;           // alternatives per token; -1: no log-probabilities
  bool pieces = false;         // somebody takes them
  bool scores_prompt = false;  // log-probabilities of the prompt's tokens
};

// Pieces that come within this time after others are handed over together: nobody sees a shorter delay.
constexpr std::chrono::milliseconds kPause{15};

// One request, between the thread that asks and the one that runs it.
class Call {
 public:
  Call() : Call({}, {}, {}, nullptr) {}
  Call(std::vector<Token> prompt, GenerateOptions options, const CallWants& wants, std::shared_ptr<Place> place);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // For those who wait.
  void cancel() { gone_ = true; }
  // True: there are pieces, or it is done. It looks for pieces when pause() is over, so that whoever reads a fast
  // answer is woken for a few tokens at a time: each time takes a core from the threads of the model.
  bool wait(std::chrono::milliseconds most);
  bool wait_done(std::chrono::milliseconds most);
  std::chrono::microseconds pause();  // until then pieces are left to gather; 0: there is no need to, or it is done
  // For event loops: becomes readable at the end, and with the next piece after arm(); kept by the call.
  int descriptor();
  void arm();                     // not before pause() is over
  void clear_descriptor();        // before take()
  std::vector<CallPiece> take();  // the pieces since the last call
  bool done();
  GenerateResult result();               // once, after done(); throws what the request failed with
  std::vector<CallToken> take_tokens();  // all tokens of the answer; once, after done()
  std::vector<double> take_scores();     // of the prompt's tokens but the first; once, after done()
  const CallWants& wants() const { return wants_; }

 private:
  friend class Runner;
  void listen();  // sets the callbacks
  void add(CallPiece piece);
  void finish(GenerateResult result);
  void fail(std::exception_ptr error);
  void wake();  // needs the lock

  std::vector<Token> prompt_;
  GenerateOptions options_;
  const CallWants wants_;
  std::shared_ptr<Place> place_;
  std::atomic<bool> gone_{false};
  CallPiece next_;  // of the engine's thread, like the two that follow until done
  std::vector<CallToken> tokens_;
  std::vector<double> scores_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<CallPiece> ready_;
  bool done_ = false;
  std::chrono::steady_clock::time_point next_look_{};  // when pieces may be looked for again
  int waiting_ = 0;                                    // threads that have waited so long
  bool armed_ = false;                                 // the descriptor announces the next piece
  int descriptor_ = -1;
  GenerateResult result_;
  std::exception_ptr error_;
};

class Runner {
 public:
  explicit Runner(const EngineOptions& options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const Engine& engine() const { return *engine_; }  // for its functions that any thread may call
  void submit(std::shared_ptr<Call> call);
  // Runs work on the engine's thread, between two steps, and waits for it; throws what it throws. `poll`, if any, is
  // called now and then by the thread that waits; it must not throw.
  void run(std::function<void(Engine& engine)> work, const std::function<void()>& poll = {});
  // The same while no call runs, with an empty session, so that the work may generate by itself.
  void run_alone(std::function<void(Engine& engine, Session& session)> work, const std::function<void()>& poll);
  std::shared_ptr<Place> start();                 // a named session
  void end(const std::shared_ptr<Place>& place);  // later, at a time that suits
  void close();                                   // ends what runs; safe to call twice, and from a child after fork()
  static void close_all();                        // at the end of the interpreter: afterwards no thread runs

 private:
  struct Task {
    std::function<void(Engine&)> work;
    bool alone;
    std::shared_ptr<Call> done;  // only to wait on; none: nobody waits
  };
  void check_process() const;  // throws after fork()
  void add_task(Task task, const std::function<void()>& poll);
  void end_session(Place& place);
  void work();
  void admit();
  std::shared_ptr<Place> place_for(const std::vector<Token>& prompt);  // none: all are taken
  std::string no_session() const;
  bool make_room();  // closes a session that serves calls and is idle; false: there is none
  void step();
  void run_tasks();

  std::unique_ptr<Engine> engine_;
  const int owner_;                           // process
  std::vector<std::shared_ptr<Place>> pool_;  // sessions that serve calls
  int open_ = 0;                              // sessions in all
  std::vector<std::weak_ptr<Place>> named_;
  std::vector<std::shared_ptr<Call>> running_;
  std::unique_ptr<Batch> batch_;
  std::mutex mutex_;  // of what follows
  std::unique_ptr<std::condition_variable> changed_;
  std::deque<std::shared_ptr<Call>> queue_;
  std::deque<Task> tasks_;
  bool ending_ = false, ended_ = false;  // asked to; the thread has closed all sessions
  std::thread thread_;
};

}  // namespace sx::python
