// An error a client is told about: an HTTP status and the fields of OpenAI's error body.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

namespace sx::server {

struct ApiError : std::runtime_error {
  int status;
  std::string type, param, code;  // param and code may be empty: null in the body
  ApiError(int status_, std::string type_, const std::string& message, std::string param_ = {}, std::string code_ = {})
      : std::runtime_error(message), status(status_), type(std::move(type_)), param(std::move(param_)), code(std::move(code_)) {}
};

inline ApiError bad_request(const std::string& message, const std::string& param = {}, const std::string& code = {}) {
  return {400, "invalid_request_error", message, param, code};
}

}  // namespace sx::server
