// Stands for tls.cc where the HTTP library came without OpenSSL.
#include <specextend/error.h>

#include "server/tls.h"

namespace sx::server {

WireMaker make_wires(const std::string& cert_file, const std::string& key_file) {
  if (!cert_file.empty() || !key_file.empty())
    throw Error("--ssl-cert-file: this program was built without TLS (Debian: libcpp-httplib-dev has it)");
  return make_plain_wire;
}

}  // namespace sx::server
