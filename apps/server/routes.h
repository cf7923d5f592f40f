// Which handler a request goes to, by its method and path.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "server/http.h"

namespace sx::server {

struct Route {
  using Handler = std::function<void(const HttpRequest&, HttpReply&)>;
  std::string method;
  Handler handler;
  bool prefix = false;  // it stands for all paths that begin with its own and go on; matches[1] is how
  bool slow = false;    // its handler waits for files, or for others
  std::string path{};
};

class Routes {
 public:
  using Handler = Route::Handler;
  void add(Route route, const std::string& path);
  // HEAD finds what GET does. A path that is not there is looked for under /v1. Null: there is none.
  const Route* find(const std::string& method, const std::string& path) const;
  std::string methods(const std::string& path) const;  // that the path has, separated by commas
  // Fills in what the route leaves open.
  static void match(const Route& route, HttpRequest& request);

 private:
  std::vector<const Route*> all(const std::string& path) const;
  std::multimap<std::string, Route> exact_, prefixes_;
};

}  // namespace sx::server
