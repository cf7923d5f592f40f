#include "server/http.h"

#include <algorithm>

namespace sx::server {
namespace {

const std::string* find(const Fields& fields, std::string_view name) {
  const auto found =
      std::ranges::find_if(fields, [&](const auto& f) { return std::ranges::equal(f.first, name, {}, lower, lower); });
  return found == fields.end() ? nullptr : &found->second;
}

std::string value(const Fields& fields, std::string_view name) {
  const std::string* found = find(fields, name);
  return found ? *found : std::string();
}

}  // namespace

bool HttpRequest::has_header(std::string_view name) const { return find(headers, name) != nullptr; }
std::string HttpRequest::get_header_value(std::string_view name) const { return value(headers, name); }
bool HttpRequest::has_param(std::string_view name) const { return find(params, name) != nullptr; }
std::string HttpRequest::get_param_value(std::string_view name) const { return value(params, name); }

bool HttpReply::has_header(std::string_view name) const { return find(headers, name) != nullptr; }
std::string HttpReply::get_header_value(std::string_view name) const { return value(headers, name); }

void HttpReply::set_header(std::string_view name, std::string text) {
  std::erase_if(headers, [&](const auto& f) { return std::ranges::equal(f.first, name, {}, lower, lower); });
  std::erase_if(text, [](char c) { return c == '\r' || c == '\n'; });  // a value never ends its line
  headers.emplace_back(name, std::move(text));
}

void HttpReply::set_content(std::string content, std::string_view type) {
  body = std::move(content);
  set_header("Content-Type", std::string(type));
}

}  // namespace sx::server
