#include "server/job.h"

#include <algorithm>
#include <utility>

namespace sx::server {

void Mailbox::ring() {
  const std::lock_guard lock(mutex_);
  if (on_ring_) on_ring_();
}

void Mailbox::listen(std::function<void()> on_ring) {
  const std::lock_guard lock(mutex_);
  on_ring_ = std::move(on_ring);
}

Job::Job(std::shared_ptr<Mailbox> mailbox, const CompletionRequest& request, std::vector<Token> given, int choice)
    : prompt(std::move(given)),
      options(request.options),
      stream(request.stream),
      progress(request.stream && request.return_progress),
      details(request.stream && request.spec_details),
      timed(request.stream && request.timings_per_token),
      reuse(request.cache_prompt && !request.scores_prompt(choice)),
      logprobs(request.scores_prompt(choice) ? std::max(request.logprobs, request.prompt_logprobs) : request.logprobs),
      scores_prompt(request.scores_prompt(choice)),
      grammar_field(request.grammar_field),
      slot(request.slot),
      choices(request.n),
      mailbox_(std::move(mailbox)) {
  options.sampling.seed += uint64_t(choice);
}

ChoiceDelta Job::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(deltas_, {});
}

bool Job::accepted() const {
  const std::lock_guard lock(mutex_);
  return accepted_;
}

bool Job::told() const {
  const std::lock_guard lock(mutex_);
  return deltas_.any();
}

bool Job::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

std::optional<ApiError> Job::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

ChoiceEnd Job::end() {
  const std::lock_guard lock(mutex_);
  if (error_) throw *error_;
  return std::move(end_);
}

void Job::add(ChoiceDelta delta) {
  // Rounds and their times come after their text, and go with it.
  const bool whole = !(details || timed) || delta.progress || delta.times || !delta.rounds.rounds.empty();
  held_.append(std::move(delta));
  if (!whole) return;
  {
    const std::lock_guard lock(mutex_);
    deltas_.append(std::exchange(held_, {}));
  }
  if (stream) mailbox_->ring();
}

void Job::begin(const Tokenizer& tokenizer, const Session& session, int number) {
  collector_.emplace(tokenizer, logprobs);
  ran_on_ = number;
  options.on_token = [this](const TokenInfo& info) {
    if (tokens++ == 0) first_token = Clock::now();
    collector_->on_token(info);
  };
  options.on_text = [this](std::string_view text) { add({.piece = collector_->on_text(text)}); };
  options.on_round = [this, &session, first = std::move(options.on_round)](const RoundInfo& round) {
    if (first) first(round);
    RoundInfo told = round;
    if (!details) told.cells = {};
    rounds_.on_round(told, session.length());
    RoundNotes notes = rounds_.take();
    ChoiceDelta delta;
    if (details) delta.rounds = std::move(notes);
    if (timed) delta.times = rounds_.times();
    if (details || timed) add(std::move(delta));
  };
  if (scores_prompt) {  // told with the first text
    held_.prompt.push_back(collector_->on_prompt({prompt.front(), 0, {}}));
    options.on_prompt_token = [this](const TokenInfo& info) { held_.prompt.push_back(collector_->on_prompt(info)); };
  }
  if (progress)
    options.on_prefill = [this, cached = -1, first = std::move(options.on_prefill)](int done, int total) mutable {
      if (first) first(done, total);
      if (cached < 0) cached = done;  // the first call comes before any pass
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - started).count();
      add({.progress = PromptProgress{total, cached, done, ms}});
    };
}

void Job::accept() {
  {
    const std::lock_guard lock(mutex_);
    accepted_ = true;
  }
  mailbox_->ring();
}

void Job::finish(GenerateResult result) {
  ChoiceEnd end;
  if (result.reason == FinishReason::kStop) end.stopping_word = stopping_word(options.stop, collector_->held());
  end.result = std::move(result);
  end.rest = collector_->finish();
  end.plain_per_second = rounds_.times().plain_per_second;
  end.slot = ran_on_;
  {
    const std::lock_guard lock(mutex_);
    deltas_.append(std::move(held_));
    if (!stream) {
      deltas_.piece.append(std::move(end.rest));
      end.rest = std::move(deltas_.piece);
      end.prompt = std::move(deltas_.prompt);
    }
    end_ = std::move(end);
    accepted_ = done_ = true;
  }
  mailbox_->ring();
}

void Job::fail(const ApiError& error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = error;
    accepted_ = done_ = true;
  }
  mailbox_->ring();
}

}  // namespace sx::server
