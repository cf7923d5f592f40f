// Completions: a request becomes one job per choice; what comes of them is written as one body or as a stream of
// events.
#include <fmt/format.h>
#include <specextend/give_way.h>

#include <algorithm>
#include <random>

#include "server/replies.h"
#include "server/service.h"
#include "server/workers.h"

namespace sx::server {
namespace {

using namespace std::chrono_literals;
using Jobs = std::vector<std::shared_ptr<Job>>;

// Log-probabilities of the tokens of prompts in one answer, alternatives and repetitions included. Each takes some 300
// bytes while the answer is written.
constexpr size_t kMostPromptScores = size_t(1) << 18;
constexpr int kDeadline = 10;  // seconds for a stream's status: errors that come later are events

uint64_t random_seed() {
  std::random_device device;
  return uint64_t(device()) << 32 | device();
}

// The scope of requests with this 'cache_salt'.
uint64_t salted(uint64_t scope, const std::string& salt) {
  return salt.empty() ? scope : scope ^ (std::hash<std::string>()(salt) | 1);
}

void check_scores(const CompletionRequest& request, const std::vector<std::vector<Token>>& prompts) {
  if (!request.scores_prompt()) return;
  size_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size();
  const size_t copies = request.api == Api::kChat ? 1 : size_t(request.n);
  const auto each = [](int top) { return size_t(top + 1); };  // -1: none
  const size_t echoed = request.echoes_scores() ? each(request.logprobs) : 0;
  const size_t scores = tokens * copies * (echoed + each(request.prompt_logprobs));
  if (scores > kMostPromptScores)
    throw bad_request(
        fmt::format("the answer would have {} log-probabilities of the prompt, at most {} are told: tokens times "
                    "alternatives and one times choices",
                    scores, kMostPromptScores),
        request.prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs");
}

// The reply to a completion: the jobs of its choices and what is written of them.
class Completion final : public LaterReply {
 public:
  Completion(std::shared_ptr<Mailbox> mailbox, Jobs jobs, Answer answer, bool streamed, int ping_s)
      : mailbox_(std::move(mailbox)),
        jobs_(std::move(jobs)),
        answer_(std::move(answer)),
        streamed_(streamed),
        ping_(ping_s),
        begin_by_(Clock::now() + std::chrono::seconds(ping_s > 0 ? std::min(kDeadline, ping_s) : kDeadline)),
        ended_(jobs_.size()) {}

  void listen(std::function<void()> ring) override { mailbox_->listen(std::move(ring)); }
  TimePoint wake() const override { return streamed_ && !begun_ ? begin_by_ : TimePoint::max(); }
  std::string ping() const override { return std::string(answer_.ping()); }
  std::chrono::seconds ping_interval() const override { return ping_; }
  void leave() override {
    for (const auto& job : jobs_) job->gone = true;
  }

  State next(HttpReply& reply, std::string& piece) override {
    if (!begun_) {
      const auto far_enough = [&](const auto& job) { return streamed_ ? job->accepted() : job->done(); };
      const auto error = refusal();
      const bool late = streamed_ && Clock::now() >= begin_by_;
      if (!error && !late && !std::ranges::all_of(jobs_, far_enough)) return State::kWaiting;
      const bool told = streamed_ && std::ranges::any_of(jobs_, [](const auto& job) { return job->told(); });
      if (error && !told) throw *error;  // else it comes behind what was told
      if (!streamed_) {
        std::vector<ChoiceEnd> ends;
        for (const auto& job : jobs_) ends.push_back(job->end());
        reply.set_content(answer_.whole(ends), "application/json");
        return State::kDone;
      }
      reply.set_header("Content-Type", std::string(answer_.stream_type()));
      reply.set_header("Cache-Control", "no-cache");
      reply.set_header("X-Accel-Buffering", "no");
      begun_ = true;
    }
    return stream(piece);
  }

 private:
  std::optional<ApiError> refusal() const {
    const auto found = std::ranges::find_if(jobs_, [](const auto& job) { return job->error().has_value(); });
    return found == jobs_.end() ? std::nullopt : (*found)->error();
  }

  State stream(std::string& events) {
    bool done = false;
    try {
      for (size_t i = 0; i < jobs_.size(); ++i) look(i, events);
      done = std::ranges::find(ended_, false) == ended_.end();
      if (done) events += answer_.finish();
    } catch (const ApiError& error) {
      leave();
      events += answer_.error(error);
      done = true;
    }
    return done ? State::kDone : State::kStreaming;
  }

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
  const bool streamed_;
  const std::chrono::seconds ping_;
  const TimePoint begin_by_;
  std::vector<bool> ended_;
  bool begun_ = false;
};

}  // namespace

Jobs Service::make_jobs(CompletionRequest& request, const std::vector<std::vector<Token>>& prompts,
                        const std::shared_ptr<Mailbox>& mailbox) const {
  const char* param = request.api == Api::kChat ? "messages" : "prompt";
  if (!request.seeded) request.options.sampling.seed = random_seed();
  if (request.slot >= options_.parallel)
    throw bad_request(fmt::format("'id_slot' must be less than {}", options_.parallel), "id_slot");
  check_scores(request, prompts);
  Jobs jobs;
  for (const std::vector<Token>& prompt : prompts) {
    if (prompt.empty()) throw bad_request(fmt::format("'{}' is empty", param), param);
    if (int64_t(prompt.size()) >= engine_.context())
      throw too_long(
          fmt::format("the prompt has {} tokens, which exceeds the available context size of {}, answer included",
                      prompt.size(), engine_.context()),
          param, int(prompt.size()), engine_.context());
    for (int i = 0; i < request.n; ++i) {
      jobs.push_back(std::make_shared<Job>(mailbox, request, prompt, i));
      if (options_.timeout_s > 0)
        jobs.back()->deadline = jobs.back()->arrived + std::chrono::seconds(options_.timeout_s);
    }
  }
  return jobs;
}

// Here, where nobody else waits for it.
std::shared_ptr<const void> Service::compiled_grammar(const CompletionRequest& request) const {
  if (request.options.grammar.empty()) return nullptr;
  try {
    if (auto known = prepared_grammar(engine_, request.options.grammar)) return known;
    if (!gives_way()) throw TakesLong();
    return prepare_grammar(engine_, request.options.grammar);
  } catch (const Error& e) { throw bad_request(e.what(), request.grammar_field); }
}

void Service::complete(const HttpRequest& req, HttpReply& res, CompletionRequest request) {
  const Tenant who = tenant(req);
  scheduler_.check(who, request.choices());
  AnswerFacts facts{
      options_.model_name, fmt::format("specextend-{}", options_.version), {}, {}, res.get_header_value(kRequestId)};
  std::vector<std::vector<Token>> prompts;
  {
    const auto turn = turn_of(req.body.size());
    prompts = prompt_tokens(engine_.tokenizer(), request, bound_);
    if (request.echo || std::ranges::count(request.response_fields, "prompt") > 0)
      for (const Prompt& prompt : request.prompts) facts.echoes.push_back(echo_text(engine_.tokenizer(), prompt));
    if (request.verbose && request.api == Api::kChat) facts.prompt = chat_prompt(engine_.tokenizer(), request);
  }
  begin_reasoning(engine_.tokenizer(), prompts.front(), request);
  for (const auto& prompt : prompts) facts.prompt_tokens.push_back(int(prompt.size()));
  if (request.token_ids) facts.prompt_ids = prompts;
  const auto mailbox = std::make_shared<Mailbox>();
  const Jobs jobs = make_jobs(request, prompts, mailbox);
  const auto grammar = compiled_grammar(request);
  for (const auto& job : jobs) {
    job->scope = salted(scope(req), request.cache_salt);
    job->tenant = who;
    job->grammar = grammar;
  }
  const bool streamed = request.stream;
  const auto later =
      std::make_shared<Completion>(mailbox, jobs, Answer(request, std::move(facts)), streamed, options_.ping_s);
  scheduler_.submit(jobs);
  res.later = later;
}

}  // namespace sx::server
