// An error a client is told about: an HTTP status and the fields of OpenAI's error body.
#pragma once
#include <exception>
#include <string>
#include <utility>

namespace sx::server {

// Owns its text: errors go from the worker to the threads of connections, and copies of standard exceptions share
// theirs.
struct ApiError : std::exception {
  int status;
  std::string message, type, param, code;  // param and code may be empty: null in the body
  int retry_after = 0;                     // seconds; 0: as the server thinks
  int prompt_tokens = 0, context = 0;      // of a prompt that is too long, where they are known
  ApiError(int status_, std::string type_, std::string message_, std::string param_ = {}, std::string code_ = {})
      : status(status_),
        message(std::move(message_)),
        type(std::move(type_)),
        param(std::move(param_)),
        code(std::move(code_)) {}
  const char* what() const noexcept override { return message.c_str(); }
};

inline ApiError bad_request(const std::string& message, const std::string& param = {}, const std::string& code = {}) {
  return {400, "invalid_request_error", message, param, code};
}

inline ApiError shutting_down() {
  return {503, "unavailable_error", "the server is shutting down", "", "shutting_down"};
}
inline ApiError timed_out() {
  return {503, "timeout_error", "the request took longer than this server allows", "", "timeout"};
}
inline ApiError broken_down(const std::string& why) { return {500, "server_error", why, "", "internal_error"}; }

// The prompt, of so many tokens or an unknown number of them (0), leaves no room in the context.
inline ApiError too_long(const std::string& message, const std::string& param, int prompt_tokens, int context) {
  ApiError error(400, "exceed_context_size_error", message, param, "context_length_exceeded");
  error.prompt_tokens = prompt_tokens, error.context = context;
  return error;
}

}  // namespace sx::server
