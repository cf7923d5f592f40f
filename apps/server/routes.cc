#include "server/routes.h"

#include <utility>

namespace sx::server {

void Routes::add(Route route, const std::string& path) {
  route.path = path;
  (route.prefix ? prefixes_ : exact_).emplace(path, std::move(route));
}

std::vector<const Route*> Routes::all(const std::string& path) const {
  std::vector<const Route*> found;
  const auto [first, last] = exact_.equal_range(path);
  for (auto it = first; it != last; ++it) found.push_back(&it->second);
  for (const auto& [prefix, route] : prefixes_)
    if (path.size() > prefix.size() && path.starts_with(prefix)) found.push_back(&route);
  return found.empty() && !path.starts_with("/v1/") ? all("/v1" + path) : found;
}

const Route* Routes::find(const std::string& method, const std::string& path) const {
  for (const Route* route : all(path))
    if (route->method == method || (route->method == "GET" && method == "HEAD")) return route;
  return nullptr;
}

std::string Routes::methods(const std::string& path) const {
  std::string methods;
  for (const Route* route : all(path)) methods += (methods.empty() ? "" : ", ") + route->method;
  return methods;
}

void Routes::match(const Route& route, HttpRequest& request) {
  const std::string& path = request.path;
  request.matches = {path};
  if (!route.prefix) return;
  request.matches.push_back(path.substr(path.starts_with(route.path) ? route.path.size() : route.path.size() - 3));
}

}  // namespace sx::server
