// Fuzzes the bodies of requests: those of Anthropic's Messages, OpenAI's Responses, chats and texts, llama.cpp's
// /completion and Ollama's. The first byte says whose. Any bytes are a request or an ApiError with a 4xx status, and
// the same bytes are the same one.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <specextend/inspect.h>

#include "server/protocols.h"
#include "server/response_store.h"

namespace {

using sx::server::ApiError;
using sx::server::CompletionRequest;

sx::server::Limits limits() {
  sx::server::Limits limits;
  limits.vocab = 1000;
  limits.presets = {"suffix"};
  limits.tokenize = [](const std::string& text) { return std::vector<sx::Token>(text.size(), 7); };
  return limits;
}

CompletionRequest parse(uint8_t kind, std::string_view body) {
  static const sx::server::Limits kLimits = limits();
  switch (kind % 8) {
    case 0: return sx::server::parse_messages(body, kLimits);
    case 1: return sx::server::parse_messages(body, kLimits, true);
    case 2: return sx::server::parse_responses(body, kLimits, std::make_shared<sx::server::ResponseStore>(), 1);
    case 3: return sx::server::parse_ollama_chat(body, kLimits);
    case 4: return sx::server::parse_ollama_generate(body, kLimits);
    case 5: return sx::server::parse_chat(body, kLimits);
    case 6: return sx::server::parse_native(body, kLimits);
    default: return sx::server::parse_completion(body, kLimits);
  }
}

}  // namespace

// What the files of the protocols need to link: answers are not written here.
std::string sx::spec_metrics_json(const SpecStats&) { return "{}"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  int first = 0;
  std::string messages;
  try {
    const CompletionRequest request = parse(data[0], body);
    messages = request.messages;
    if (request.choices() == 0) __builtin_trap();
  } catch (const ApiError& error) {
    first = error.status;
    if (first < 400 || first > 499) __builtin_trap();
  }
  try {
    if (parse(data[0], body).messages != messages || first != 0) __builtin_trap();
  } catch (const ApiError& error) {
    if (error.status != first) __builtin_trap();
  }
  return 0;
}
