// GET of HTTP and HTTPS, for hub.h.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace sx::server {

struct Url {
  bool tls = false;
  std::string host, port, path;  // the path with its query
};
Url parse_url(std::string_view url);                            // http:// or https://; throws sx::Error
std::string next_url(const Url& from, std::string_view where);  // of a redirection; never from https to http

// Gives the body of a response 200 in pieces; follows a few redirections. Throws sx::Error that names the URL, also
// when nothing comes for a minute; passes on what `take` throws.
void hub_get(const std::string& url, const std::function<void(std::string_view)>& take);

}  // namespace sx::server
