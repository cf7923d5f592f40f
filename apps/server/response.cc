#include "server/response.h"

#include <fmt/format.h>
#include <specextend/inspect.h>

#include <chrono>
#include <random>

#include "server/answer_parser.h"
#include "server/protocols.h"
#include "server/response_parts.h"

namespace sx::server {

namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";

// Shares of the first `size` bytes; a share across that place is divided.
std::vector<TextShare> take_shares(std::vector<TextShare>& shares, size_t size) {
  std::vector<TextShare> out;
  size_t used = 0;
  while (used < shares.size() && size > 0) {
    TextShare& share = shares[used];
    if (share.text.size() > size) {
      out.push_back({share.text.substr(0, size), share.depth});
      share.text.erase(0, size);
      break;
    }
    size -= share.text.size();
    out.push_back(std::move(share));
    ++used;
  }
  shares.erase(shares.begin(), shares.begin() + std::ptrdiff_t(used));
  return out;
}

}  // namespace

std::string error_body(const ApiError& error, const std::string& request_id) {
  return text_of(error_json(error, request_id));
}

void ChoiceDelta::append(ChoiceDelta&& next) {
  piece.append(std::move(next.piece));
  rounds.append(std::move(next.rounds));
  if (next.progress) progress = next.progress;
  if (next.times) times = next.times;
  prompt.insert(prompt.end(), std::make_move_iterator(next.prompt.begin()), std::make_move_iterator(next.prompt.end()));
}

void RoundNotes::append(RoundNotes&& next) {
  if (next.rounds.empty() && !next.cells_changed) return;
  rounds.insert(rounds.end(), next.rounds.begin(), next.rounds.end());
  history = next.history;
  refreshes = next.refreshes;
  if (next.cells_changed) cells_changed = true, cells = std::move(next.cells);
}

void RoundCollector::on_round(const RoundInfo& round, int history) {
  const PhaseTimes& t = round.times;
  const double ms = t.draft + t.verify + t.accept + t.commit + t.score + t.host;
  const RoundDecision& d = round.decision;
  notes_.rounds.push_back({.drafted = round.drafted,
                           .verified = round.verified,
                           .accepted = round.accepted,
                           .ms = ms,
                           .plain_ms = round.plain_ms,
                           .decision = d.kind,
                           .why = d.why,
                           .levels = d.levels,
                           .expected_tokens = d.tokens,
                           .expected_steps = d.steps});
  notes_.history = history;
  notes_.refreshes = round.refreshes;
  times_.timings = round.timings;
  times_.drafted += round.drafted, times_.accepted += round.accepted;
  if (round.plain_ms > 0) {
    plain_tokens_ += round.accepted + 1;
    plain_ms_ += (round.accepted + 1) * round.plain_ms;
  }
  std::vector<std::pair<int, int>> ranges;
  for (const int32_t cell : round.cells) {
    if (!ranges.empty() && ranges.back().second == cell) ++ranges.back().second;
    else ranges.emplace_back(cell, cell + 1);
  }
  if (ranges == cells_) return;
  cells_ = std::move(ranges);
  notes_.cells = cells_;
  notes_.cells_changed = true;
}

RoundNotes RoundCollector::take() {
  RoundNotes out = std::move(notes_);
  notes_ = {};
  notes_.history = out.history;
  notes_.refreshes = out.refreshes;
  return out;
}

AnswerTimes RoundCollector::times() const {
  AnswerTimes times = times_;
  times.plain_per_second = plain_ms_ > 0 ? 1000 * plain_tokens_ / plain_ms_ : 0;
  return times;
}

namespace {

// OpenAI's chats and texts, and llama.cpp's /completion.
class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(const CompletionRequest& request_, AnswerFacts facts_);
  std::string whole(const std::vector<ChoiceEnd>& ends) override;
  std::string begin(int choice) override;
  std::string delta(int choice, ChoiceDelta delta) override;
  std::string end(int choice, const ChoiceEnd& end) override;
  std::string finish() override;
  std::string error(const ApiError& error) override;

 private:
  CompletionRequest request;
  AnswerFacts facts;
  std::string id;
  int64_t created = 0;
  Totals totals;

  struct Choice {
    AnswerParser parser;
    TextPiece held{};  // tokens and shares that no event has told yet
    RoundNotes rounds{};
    ThoughtTokens thoughts{};
    size_t calls = 0;                    // told
    size_t taken = 0;                    // bytes of text the parser has decided, in all
    size_t shared = 0;                   // of them, told in shares
    size_t offset = 0;                   // characters before the next token of the answer
    std::vector<AnswerToken> prompt{};   // until all of it is there
    std::optional<AnswerTimes> times{};  // the latest
    int tokens = 0;                      // told
    bool begun = false;
  };
  std::vector<Choice> choices;

  bool chat() const { return request.api == Api::kChat; }
  bool native() const { return request.api == Api::kNative; }
  size_t prompt_of(int choice) const { return size_t(choice) / size_t(request.n); }

  Json head(const char* object) const {
    Json body{{"id", id}, {"object", object}, {"created", created}, {"model", facts.model}};
    body["system_fingerprint"] = facts.fingerprint;
    return body;
  }

  void count(int choice, const ChoiceEnd& end) {
    totals.add(end);
    if (choice % request.n == 0) totals.cached_tokens += end.result.timings.cached_tokens;
  }
  void add_numbers(Json& body) const {
    body["usage"] = usage_json(totals);
    body["metrics"] = Json::parse(spec_metrics_json(totals.spec));
    body["timings"] = timings_json(totals);
  }

  // vLLM's fields about a prompt, null where they were not asked for. Its first choice knows them.
  void add_prompt(Json& to, size_t prompt, const std::vector<ChoiceEnd>& ends) const {
    const int top = request.prompt_logprobs;
    to["prompt_logprobs"] = top >= 0 ? prompt_logprobs(ends.at(prompt * size_t(request.n)).prompt, top) : Json(nullptr);
    to["prompt_token_ids"] = request.token_ids ? Json(facts.prompt_ids.at(prompt)) : Json(nullptr);
  }

  const std::string& echo(int choice) const { return facts.echoes.at(prompt_of(choice)); }

  // Of the next tokens of a choice: some of the answer, before them all of the prompt or none of it.
  Json logprobs(int choice, std::vector<AnswerToken> prompt, const std::vector<AnswerToken>& tokens) {
    if (request.logprobs < 0) return nullptr;
    const LogprobForm form{request.logprobs, request.labels_are_ids};
    if (chat()) return chat_logprobs(tokens, form);
    Choice& c = choices[size_t(choice)];
    std::vector<size_t> offsets;
    if (!prompt.empty()) offsets = prompt_offsets(prompt, echo(choice));
    for (const AnswerToken& token : tokens) {
      offsets.push_back(c.offset);
      c.offset += characters(token.bytes);
    }
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
    return text_logprobs(prompt, form, offsets);
  }

  // An event of one choice: `content` is the delta of a chat, the text of the others.
  Json chunk(int choice, Json content, Json reason = nullptr) const {
    if (native())
      return {{"index", choice}, {"content", std::move(content)}, {"tokens", Json::array()}, {"stop", false}};
    Json body = head(chat() ? "chat.completion.chunk" : "text_completion");
    Json one{{"index", choice}};
    one[chat() ? "delta" : "text"] = std::move(content);
    one["logprobs"] = nullptr;
    one["finish_reason"] = std::move(reason);
    body["choices"] = Json::array({std::move(one)});
    if (request.include_usage) body["usage"] = nullptr;
    return body;
  }

  // What a choice has so far.
  Json usage_so_far(int choice) const {
    Totals so_far;
    so_far.prompt_tokens = facts.prompt_tokens.at(prompt_of(choice));
    so_far.timings.generated_tokens = choices[size_t(choice)].tokens;
    return usage_json(so_far);
  }

  Json native_body(int choice, const ChoiceEnd& end, const std::string& content) const {
    return native_json(request, {facts.model, choice, facts.prompt_tokens.at(size_t(choice))}, end, content);
  }

  Json nothing() const { return chat() ? Json::object() : Json(""); }

  std::string timed_event(int choice, Json&& body) const {
    if (const auto& times = choices[size_t(choice)].times; request.timings_per_token && times) {
      Totals so_far;
      so_far.add(*times);
      body["timings"] = timings_json(so_far);
    }
    if (request.usage_each && !native()) body["usage"] = usage_so_far(choice);
    return event(body);
  }

  void count_thoughts(Choice& c) {
    if (totals.reasoning_tokens) *totals.reasoning_tokens += c.thoughts.count(c.taken, c.parser.thoughts());
  }

  // Those whose text is decided, where some of them may not be told.
  std::vector<AnswerToken> take_tokens(Choice& c) const {
    const auto decided = [&](const AnswerToken& token) { return request.tells_thoughts || token.end <= c.taken; };
    const auto rest = std::ranges::find_if_not(c.held.tokens, decided);
    std::vector<AnswerToken> tokens(std::make_move_iterator(c.held.tokens.begin()), std::make_move_iterator(rest));
    c.held.tokens.erase(c.held.tokens.begin(), rest);
    return tokens;
  }

  // Puts what is held about tokens into an event.
  void add_tokens(Json& body, int choice) {
    Choice& c = choices[size_t(choice)];
    std::vector<AnswerToken> tokens = take_tokens(c);
    c.tokens += int(tokens.size());
    if (!request.tells_thoughts) drop_thoughts(tokens, c.parser.thoughts());
    if (native()) {
      for (const AnswerToken& token : tokens) body["tokens"].push_back(token.token);
      if (request.logprobs >= 0 && !tokens.empty()) body["completion_probabilities"] = native_logprobs(tokens);
      if (!body.at("stop").get<bool>()) body["tokens_predicted"] = c.tokens;
    } else if (!tokens.empty()) {
      Json& one = body["choices"][0];
      if (request.logprobs >= 0) one["logprobs"] = logprobs(choice, {}, tokens);
      if (request.token_ids) one["token_ids"] = token_ids(tokens);
    }
    if (!request.spec_details) {
      c.held.shares.clear();
      return;
    }
    std::vector<TextShare> shares = take_shares(c.held.shares, c.taken - c.shared);
    if (!request.tells_thoughts) drop_thoughts(shares, c.shared, c.parser.thoughts());
    c.shared = c.taken;
    if (!shares.empty() || !c.rounds.rounds.empty()) body["specextend"] = details_json(shares, c.rounds);
    c.rounds.rounds.clear();
    c.rounds.cells_changed = false;
  }

  std::string tell(int choice, Json content) {
    Json body = chunk(choice, std::move(content));
    add_tokens(body, choice);
    return timed_event(choice, std::move(body));
  }

  // The events of what has been decided; calls that came together are told together.
  std::string tell(int choice, const std::vector<AnswerPart>& parts) {
    Choice& c = choices[size_t(choice)];
    std::string events;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string& text = parts[i].text;
      switch (parts[i].kind) {
        case AnswerPart::Kind::kReasoning:
          if (request.tells_thoughts) events += tell(choice, {{"reasoning_content", text}});
          break;
        case AnswerPart::Kind::kContent: events += tell(choice, chat() ? Json{{"content", text}} : Json(text)); break;
        case AnswerPart::Kind::kArguments:
          events += tell(
              choice, {{"tool_calls", Json::array({{{"index", c.calls - 1}, {"function", {{"arguments", text}}}}})}});
          break;
        case AnswerPart::Kind::kCall: {
          std::vector<ToolCall> calls = {parts[i].call};
          while (i + 1 < parts.size() && parts[i + 1].kind == AnswerPart::Kind::kCall) calls.push_back(parts[++i].call);
          const size_t first = std::exchange(c.calls, c.calls + calls.size());
          events += tell(choice, {{"tool_calls", calls_json(calls, first, true)}});
        }
      }
    }
    return events;
  }

  std::string take(int choice, TextPiece&& piece, RoundNotes&& rounds, bool last) {
    Choice& c = choices[size_t(choice)];
    if (request.spec_details) c.rounds.append(std::move(rounds));
    const std::string text = std::move(piece.text);
    piece.text.clear();
    AnswerParser::Output out = c.parser.add(text);
    if (last) {
      AnswerParser::Output rest = c.parser.finish();
      append_parts(out.parts, std::move(rest.parts));
      out.taken = rest.taken;
    }
    c.taken = out.taken;
    c.thoughts.add(piece.tokens);
    count_thoughts(c);
    c.held.append(std::move(piece));
    return tell(choice, out.parts);
  }
};

OpenAiWriter::OpenAiWriter(const CompletionRequest& request_, AnswerFacts facts_)
    : request(request_), facts(std::move(facts_)), choices(request_.choices(), Choice{AnswerParser(request_)}) {
  request.prompts.clear();
  request.messages.clear();
  request.tools.clear();
  request.tool_list.clear();
  id = (chat() ? "chatcmpl-" : "cmpl-") + random_id();
  created = seconds_now();
  for (const int tokens : facts.prompt_tokens) totals.prompt_tokens += tokens;
  if (chat() && request.reasoning.any()) totals.reasoning_tokens = 0;
  for (size_t i = 0; request.echo && !chat() && i < choices.size(); ++i) choices[i].offset = characters(echo(int(i)));
}

std::string OpenAiWriter::whole(const std::vector<ChoiceEnd>& ends) {
  if (native()) {
    Json list = Json::array();
    for (size_t i = 0; i < ends.size(); ++i) {
      Json body = native_body(int(i), ends[i], ends[i].result.text);
      if (request.logprobs >= 0) body["completion_probabilities"] = native_logprobs(ends[i].rest.tokens);
      if (!facts.echoes.empty()) body["prompt"] = facts.echoes.at(i);
      list.push_back(chosen_fields(std::move(body), request.response_fields));
    }
    return text_of(request.in_list ? list : list.front());
  }
  Json body = head(chat() ? "chat.completion" : "text_completion"), list = Json::array();
  for (size_t i = 0; i < ends.size(); ++i) {
    const ChoiceEnd& end = ends[i];
    Choice& c = choices.at(i);
    std::string text, reasoning;
    std::vector<ToolCall> calls;
    std::vector<AnswerPart> parts = c.parser.all(end.result.text);
    c.taken = end.result.text.size();
    c.thoughts.add(end.rest.tokens);
    count_thoughts(c);
    for (AnswerPart& part : parts) {
      if (part.kind == AnswerPart::Kind::kReasoning) reasoning += part.text;
      else if (part.kind == AnswerPart::Kind::kContent) text += part.text;
      else calls.push_back(std::move(part.call));
    }
    std::vector<AnswerToken> answer;
    if (!request.tells_thoughts) drop_thoughts(answer = end.rest.tokens, c.parser.thoughts());
    const std::vector<AnswerToken>& tokens = request.tells_thoughts ? end.rest.tokens : answer;
    Json one{{"index", i}};
    if (chat() && request.echo) text = request.prefill + text;
    if (chat()) {
      one["message"] = {{"role", "assistant"},
                        {"content", text.empty() && !calls.empty() ? Json(nullptr) : Json(text)}};
      if (!reasoning.empty() && request.tells_thoughts) one["message"]["reasoning_content"] = reasoning;
      if (!calls.empty()) one["message"]["tool_calls"] = calls_json(calls, 0, false);
    } else {
      one["text"] = request.echo ? echo(int(i)) + text : text;
    }
    one["logprobs"] = logprobs(int(i), request.echoes_scores() ? end.prompt : std::vector<AnswerToken>(), tokens);
    one["finish_reason"] = finish_reason(end.result.reason, !calls.empty());
    one["stop_reason"] = end.stopping_word.empty() ? Json(nullptr) : Json(end.stopping_word);
    one["token_ids"] = nullptr;
    if (request.token_ids) one["token_ids"] = request.tells_thoughts ? Json(end.result.tokens) : token_ids(tokens);
    if (!chat()) add_prompt(one, prompt_of(int(i)), ends);
    list.push_back(std::move(one));
    count(int(i), end);
  }
  if (chat()) add_prompt(body, 0, ends);
  body["choices"] = std::move(list);
  add_numbers(body);
  if (!facts.prompt.empty()) body["__verbose"] = {{"prompt", facts.prompt}};
  return text_of(body);
}

std::string OpenAiWriter::begin(int choice) {
  if (std::exchange(choices.at(size_t(choice)).begun, true)) return {};
  const bool echoes = request.echo && !request.scores_prompt();
  Json body;
  if (chat()) body = chunk(choice, {{"role", "assistant"}, {"content", request.echo ? request.prefill : ""}});
  else if (echoes || (request.token_ids && !native())) body = chunk(choice, echoes ? echo(choice) : "");
  else return {};
  if (request.token_ids && !native())
    (chat() ? body : body["choices"][0])["prompt_token_ids"] = facts.prompt_ids.at(prompt_of(choice));
  if (request.usage_each && !native()) body["usage"] = usage_so_far(choice);
  return event(body);
}

std::string OpenAiWriter::delta(int choice, ChoiceDelta change) {
  Choice& c = choices.at(size_t(choice));
  std::string events;
  if (request.return_progress && change.progress) {
    const PromptProgress& p = *change.progress;
    c.times =
        AnswerTimes{{.prompt_tokens = p.processed - p.cached, .cached_tokens = p.cached, .prompt_ms = p.ms}, 0, 0, 0};
    Json body = chunk(choice, nothing());
    body["prompt_progress"] = progress_json(p);
    events += timed_event(choice, std::move(body));
  }
  if (change.times) c.times = change.times;
  if (!change.piece.text.empty() || !change.piece.tokens.empty() || !change.rounds.rounds.empty() ||
      !change.prompt.empty())
    events += begin(choice);
  c.prompt.insert(c.prompt.end(), std::make_move_iterator(change.prompt.begin()),
                  std::make_move_iterator(change.prompt.end()));
  if (!c.prompt.empty() && c.prompt.size() == size_t(facts.prompt_tokens.at(prompt_of(choice)))) {
    Json body = chunk(choice, echo(choice));
    body["choices"][0]["logprobs"] = logprobs(choice, std::exchange(c.prompt, {}), {});
    events += timed_event(choice, std::move(body));
  }
  return events + take(choice, std::move(change.piece), std::move(change.rounds), false);
}

std::string OpenAiWriter::end(int choice, const ChoiceEnd& end) {
  std::string events = begin(choice);
  events += take(choice, TextPiece(end.rest), RoundNotes(end.rounds), true);
  Choice& c = choices[size_t(choice)];
  Json body;
  if (native()) {
    body = native_body(choice, end, "");
  } else {
    Totals own;
    own.add(end);
    body = chunk(choice, nothing(), finish_reason(end.result.reason, c.calls > 0));
    body["timings"] = timings_json(own);
    body["metrics"] = Json::parse(spec_metrics_json(end.result.spec));
  }
  if (!native())
    body["choices"][0]["stop_reason"] = end.stopping_word.empty() ? Json(nullptr) : Json(end.stopping_word);
  add_tokens(body, choice);
  count(choice, end);
  if (request.usage_each && !native()) body["usage"] = usage_so_far(choice);
  return events + event(body);
}

std::string OpenAiWriter::finish() {
  if (native()) return {};
  std::string events;
  if (request.include_usage) {
    Json body = head(chat() ? "chat.completion.chunk" : "text_completion");
    body["choices"] = Json::array();
    add_numbers(body);
    events = event(body);
  }
  return events + std::string(kDone);
}

std::string OpenAiWriter::error(const ApiError& error) {
  return event(error_json(error, facts.request_id)) + (native() ? std::string() : std::string(kDone));
}

}  // namespace

Answer::Answer(const CompletionRequest& request, AnswerFacts facts) {
  writer_ = protocol_writer(request, facts);
  if (!writer_) writer_ = std::make_unique<OpenAiWriter>(request, std::move(facts));
}
Answer::Answer(Answer&&) noexcept = default;
Answer::~Answer() = default;
std::string Answer::whole(const std::vector<ChoiceEnd>& ends) { return writer_->whole(ends); }
std::string Answer::begin(int choice) { return writer_->begin(choice); }
std::string Answer::delta(int choice, ChoiceDelta delta) { return writer_->delta(choice, std::move(delta)); }
std::string Answer::end(int choice, const ChoiceEnd& end) { return writer_->end(choice, end); }
std::string Answer::finish() { return writer_->finish(); }
std::string Answer::error(const ApiError& error) { return writer_->error(error); }
std::string_view Answer::ping() const { return writer_->ping(); }
std::string_view Answer::stream_type() const { return writer_->stream_type(); }

}  // namespace sx::server
