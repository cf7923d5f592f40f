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

}  // namespace sx::server
