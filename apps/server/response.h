// Bodies and events as OpenAI's clients read them.
#pragma once
#include <specextend/specextend.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "server/error.h"

namespace sx::server {

std::string error_body(const ApiError& error);

// One answer, whole or as a stream of events; id, time and model are the same throughout.
class Answer {
 public:
  Answer(bool chat, std::string model, int prompt_tokens);
  std::string whole(const GenerateResult& result) const;
  std::string first_event() const;                             // chat: the role; else nothing
  std::string text_event(std::string_view text) const;
  std::string last_event(const GenerateResult& result) const;  // why it ended
  std::string usage_event(const GenerateResult& result) const;
  static std::string error_event(const ApiError& error);
  static constexpr std::string_view kDone = "data: [DONE]\n\n";
  static constexpr std::string_view kPing = ": keep-alive\n\n";

 private:
  bool chat_;
  std::string model_, id_;
  int64_t created_;
  int prompt_tokens_;
};

}  // namespace sx::server
