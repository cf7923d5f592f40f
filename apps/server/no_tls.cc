// Stands for tls.cc where the HTTP library came without OpenSSL.
#include <specextend/error.h>

#include "server/tls.h"

namespace sx::server {

std::unique_ptr<httplib::Server> make_http_server(const std::string& cert_file, const std::string& key_file) {
  if (!cert_file.empty() || !key_file.empty())
    throw Error("--ssl-cert-file: this program was built without TLS (Debian: libcpp-httplib-dev has it)");
  return std::make_unique<httplib::Server>();
}

}  // namespace sx::server
