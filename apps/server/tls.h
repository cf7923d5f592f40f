// The HTTP server of the library, with TLS if a certificate is given.
#pragma once
#include <httplib.h>

#include <memory>
#include <string>

namespace sx::server {

// Both files empty: without TLS. Throws sx::Error naming what is wrong with them, or that TLS is not built in.
std::unique_ptr<httplib::Server> make_http_server(const std::string& cert_file, const std::string& key_file);

}  // namespace sx::server
