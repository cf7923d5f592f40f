// Bodies and events as clients of OpenAI's and llama.cpp's servers read them.
#pragma once
#include <specextend/specextend.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/error.h"
#include "server/logprobs.h"
#include "server/request.h"

namespace sx::server {

std::string error_body(const ApiError& error, const std::string& request_id = {});

// What the rounds of one answer did since it was last asked: "spec_details".
struct RoundNote {
  int drafted = 0, verified = 0, accepted = 0;
  double ms = 0, plain_ms = 0;
  // What preset auto decided (RoundDecision); empty with other presets.
  std::string_view decision{}, why{};
  int levels = 0;
  double expected_tokens = 0, expected_steps = 0;
};
struct RoundNotes {
  std::vector<RoundNote> rounds;
  int history = 0;  // tokens in the cache
  int refreshes = 0;
  bool cells_changed = false;
  std::vector<std::pair<int, int>> cells;  // ranges [first, end) of places the draft works on; when they changed
  void append(RoundNotes&& next);
};

// Where an answer stands.
struct AnswerTimes {
  Timings timings;
  int64_t drafted = 0, accepted = 0;  // tokens
  double plain_per_second = 0;        // estimated speed without drafts, tokens per second; 0: not known
};

// Follows on_round of one answer.
class RoundCollector {
 public:
  void on_round(const RoundInfo& round, int history);
  RoundNotes take();  // since the last call
  AnswerTimes times() const;

 private:
  RoundNotes notes_;
  std::vector<std::pair<int, int>> cells_;  // told last
  AnswerTimes times_;
  double plain_tokens_ = 0, plain_ms_ = 0;
};

struct PromptProgress {
  int total = 0, cached = 0, processed = 0;  // tokens; processed counts the cached ones
  double ms = 0;
};

// What has come of one choice since it was last asked.
struct ChoiceDelta {
  TextPiece piece{};
  RoundNotes rounds{};
  std::optional<PromptProgress> progress{};  // the latest
  std::optional<AnswerTimes> times{};        // the latest, if asked for
  std::vector<AnswerToken> prompt{};         // the next tokens of the prompt, where their log-probabilities are wanted
  bool any() const {
    return !piece.text.empty() || !piece.tokens.empty() || !rounds.rounds.empty() || progress || times ||
           !prompt.empty();
  }
  void append(ChoiceDelta&& next);
};

// How one choice ended.
struct ChoiceEnd {
  GenerateResult result;
  TextPiece rest;                   // TokenCollector::finish(), in a stream; of a whole answer all pieces, appended
  RoundNotes rounds;                // the last ones, in a stream
  std::vector<AnswerToken> prompt;  // of a whole answer: ChoiceDelta::prompt, all of them
  double plain_per_second = 0;      // AnswerTimes
  std::string stopping_word;        // that ended it, if one did
  int slot = 0;
};

struct AnswerFacts {
  std::string model, fingerprint;
  std::vector<int> prompt_tokens;                // of each prompt
  std::vector<std::string> echoes;               // echo_text of each prompt, if the request asks for it
  std::string request_id{};                      // for errors; may be empty
  std::string prompt{};                          // of a verbose chat
  std::vector<std::vector<Token>> prompt_ids{};  // of each prompt, if asked for
};

// How one protocol writes an answer; see Answer.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual std::string whole(const std::vector<ChoiceEnd>& ends) = 0;
  virtual std::string begin(int choice) = 0;
  virtual std::string delta(int choice, ChoiceDelta delta) = 0;
  virtual std::string end(int choice, const ChoiceEnd& end) = 0;
  virtual std::string finish() = 0;
  virtual std::string error(const ApiError& error) = 0;
  virtual std::string_view ping() const { return ": keep-alive\n\n"; }
  virtual std::string_view stream_type() const { return "text/event-stream"; }
};

// One answer, whole or as a stream of events; id, time and model are the same throughout. In a stream the calls are,
// for each choice in any interleaving: delta any number of times, end once; then finish once. Each gives the events to
// write, or nothing. The first event of a choice (its role, its echo) comes with its first token: clients take the time
// until then for that of the prompt. Not thread-safe.
class Answer {
 public:
  Answer(const CompletionRequest& request, AnswerFacts facts);
  Answer(Answer&&) noexcept;
  ~Answer();
  std::string whole(const std::vector<ChoiceEnd>& ends);

  std::string begin(int choice);  // that first event, unless it was there
  std::string delta(int choice, ChoiceDelta delta);
  std::string end(int choice, const ChoiceEnd& end);
  std::string finish();                      // usage, if asked for, and [DONE]
  std::string error(const ApiError& error);  // instead of everything that is still missing
  std::string_view ping() const;             // written into a silent stream
  std::string_view stream_type() const;      // Content-Type of a stream

 private:
  std::unique_ptr<AnswerWriter> writer_;  // of the request's protocol
};

}  // namespace sx::server
