// Completions: a request becomes one job per choice; what comes of them is written as one body or as a stream of
// events.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "server/connection.h"
#include "server/replies.h"
#include "server/service.h"

namespace sx::server {
namespace {

using namespace std::chrono_literals;
using Jobs = std::vector<std::shared_ptr<Job>>;

constexpr auto kPollInterval = 100ms;  // how often a waiting handler looks whether its client is still there
constexpr auto kHalfOpenPing =
    1s;                        // silence of a stream to a client that may have closed all: only writing finds that out
constexpr int kDeadline = 10;  // seconds for a stream's status: errors that come later are events

uint64_t random_seed() {
  std::random_device device;
  return uint64_t(device()) << 32 | device();
}

// The scope of requests with this 'cache_salt'.
uint64_t salted(uint64_t scope, const std::string& salt) {
  return salt.empty() ? scope : scope ^ (std::hash<std::string>()(salt) | 1);
}

void leave(const Jobs& jobs) {
  for (const auto& job : jobs) job->gone = true;
}

// Waits until `enough`, at most until `end`; false: the client left.
template <typename Condition>
bool wait_until(Mailbox& mailbox, Connection& client, Clock::time_point end, Condition enough) {
  while (!enough()) {
    mailbox.wait(kPollInterval);
    if (client.gone()) return false;
    if (Clock::now() >= end) return true;
  }
  return true;
}

// The events of one stream, written as they come.
class Stream {
 public:
  Stream(std::shared_ptr<Mailbox> mailbox, Jobs jobs, Answer answer, Connection& client, int ping_s)
      : mailbox_(std::move(mailbox)),
        jobs_(std::move(jobs)),
        answer_(std::move(answer)),
        client_(client),
        ping_(ping_s),
        ended_(jobs_.size()) {}

  // Called again and again until the stream is done, on the connection's thread. False: the client left.
  bool next(httplib::DataSink& sink) {
    if (std::exchange(begun_, true)) mailbox_->wait(kPollInterval);  // what is there already may have rung before
    if (client_.gone()) return false;
    std::string events;
    bool done = false;
    try {
      for (size_t i = 0; i < jobs_.size(); ++i) look(i, events);
      done = std::ranges::find(ended_, false) == ended_.end();
      if (done) events += answer_.finish();
    } catch (const ApiError& error) {
      leave(jobs_);
      events += answer_.error(error);
      done = true;
    }
    const auto now = Clock::now();
    const auto ping = client_.half_closed() ? kHalfOpenPing : ping_;
    if (events.empty() && ping > 0s && now - last_ >= ping) events = answer_.ping();
    if (!events.empty()) last_ = now;
    if (!events.empty() && !sink.write(events.data(), events.size())) return false;
    if (done) sink.done();
    return true;
  }
  void leave_all() const { leave(jobs_); }

 private:
  // Appends what is new of a choice; where the choice ended with an error, the text before it stays in `events`.
  void look(size_t i, std::string& events) {
    if (ended_[i]) return;
    const bool done = jobs_[i]->done();  // asked first: what comes until then is taken with the delta
    ChoiceDelta delta = jobs_[i]->take();
    if (delta.any()) events += answer_.delta(int(i), std::move(delta));
    if (done) events += answer_.end(int(i), jobs_[i]->end());
    ended_[i] = done;
  }

  const std::shared_ptr<Mailbox> mailbox_;
  const Jobs jobs_;
  Answer answer_;
  Connection& client_;  // outlives the response
  const std::chrono::seconds ping_;
  std::vector<bool> ended_;
  bool begun_ = false;
  Clock::time_point last_ = Clock::now();
};

}  // namespace

Jobs Service::make_jobs(CompletionRequest& request, const std::vector<std::vector<Token>>& prompts,
                        const std::shared_ptr<Mailbox>& mailbox) const {
  const char* param = request.api == Api::kChat ? "messages" : "prompt";
  if (!request.seeded) request.options.sampling.seed = random_seed();
  if (request.slot >= options_.parallel)
    throw bad_request(fmt::format("'id_slot' must be less than {}", options_.parallel), "id_slot");
  Jobs jobs;
  for (const std::vector<Token>& prompt : prompts) {
    if (prompt.empty()) throw bad_request(fmt::format("'{}' is empty", param), param);
    if (int64_t(prompt.size()) >= engine_.context())
      throw bad_request(
          fmt::format("the prompt has {} tokens, which exceeds the available context size of {}, answer included",
                      prompt.size(), engine_.context()),
          param, "context_length_exceeded");
    for (int i = 0; i < request.n; ++i) {
      jobs.push_back(std::make_shared<Job>(mailbox, request, prompt, i));
      if (options_.timeout_s > 0)
        jobs.back()->deadline = jobs.back()->arrived + std::chrono::seconds(options_.timeout_s);
    }
  }
  return jobs;
}

void Service::complete(const httplib::Request& req, httplib::Response& res, CompletionRequest request) {
  AnswerFacts facts{
      options_.model_name, fmt::format("specextend-{}", options_.version), {}, {}, res.get_header_value(kRequestId)};
  std::vector<std::vector<Token>> prompts;
  {
    const auto turn = turn_of(req.body.size());
    prompts = prompt_tokens(engine_.tokenizer(), request, bound_);
    if (request.echo)
      for (const Prompt& prompt : request.prompts) facts.echoes.push_back(echo_text(engine_.tokenizer(), prompt));
  }
  begin_reasoning(engine_.tokenizer(), prompts.front(), request);
  for (const auto& prompt : prompts) facts.prompt_tokens.push_back(int(prompt.size()));
  const auto mailbox = std::make_shared<Mailbox>();
  const Jobs jobs = make_jobs(request, prompts, mailbox);
  Answer answer(request, std::move(facts));
  Connection& client = Connection::current();
  for (const auto& job : jobs) job->scope = salted(scope(req), request.cache_salt);
  scheduler_.submit(jobs);

  const auto refusal = [&] {
    const auto found = std::ranges::find_if(jobs, [](const auto& job) { return job->error().has_value(); });
    return found == jobs.end() ? std::nullopt : (*found)->error();
  };
  const auto far_enough = [&](const auto& job) { return request.stream ? job->accepted() : job->done(); };
  const std::chrono::seconds timeout(options_.ping_s > 0 ? std::min(kDeadline, options_.ping_s) : kDeadline);
  const auto end = request.stream ? Clock::now() + timeout : Clock::time_point::max();
  const bool there =
      wait_until(*mailbox, client, end, [&] { return refusal() || std::ranges::all_of(jobs, far_enough); });
  const auto error =
      there ? refusal() : ApiError(499, "invalid_request_error", "the client left");  // seen by the counters only
  const bool begun = request.stream && std::ranges::any_of(jobs, [](const auto& job) {
                       return job->told();
                     });  // the error comes behind it
  if (error && !(there && begun)) {
    leave(jobs);
    throw *error;
  }
  if (!request.stream) {
    std::vector<ChoiceEnd> ends;
    for (const auto& job : jobs) ends.push_back(job->end());
    return res.set_content(answer.whole(ends), "application/json");
  }
  res.set_header("Cache-Control", "no-cache");
  res.set_header("X-Accel-Buffering", "no");
  const std::string type(answer.stream_type());
  const auto stream = std::make_shared<Stream>(mailbox, jobs, std::move(answer), client, options_.ping_s);
  res.set_chunked_content_provider(
      type.c_str(), [stream](size_t, httplib::DataSink& sink) { return stream->next(sink); },
      [stream](bool) { stream->leave_all(); });
}

}  // namespace sx::server
