#include "server/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <specextend/error.h>

namespace sx::server {
namespace {

std::string refusal(const char* what, const std::string& file) {
  char reason[256];
  ERR_error_string_n(ERR_get_error(), reason, sizeof(reason));
  return fmt::format("cannot take the {} '{}': {}", what, file, reason);
}

}  // namespace

std::unique_ptr<httplib::Server> make_http_server(const std::string& cert_file, const std::string& key_file) {
  if (cert_file.empty() && key_file.empty()) return std::make_unique<httplib::Server>();
  if (cert_file.empty() || key_file.empty()) throw Error("--ssl-cert-file and --ssl-key-file belong together: give both or none");
  // The library frees the context of a setup that says no, not of one that throws.
  std::string why = "TLS cannot be set up";
  const auto setup = [&](SSL_CTX& context) {
    SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION);
    SSL_CTX_set_options(&context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    if (SSL_CTX_use_certificate_chain_file(&context, cert_file.c_str()) != 1) return why = refusal("certificate", cert_file), false;
    if (SSL_CTX_use_PrivateKey_file(&context, key_file.c_str(), SSL_FILETYPE_PEM) != 1) return why = refusal("key", key_file), false;
    if (SSL_CTX_check_private_key(&context) != 1) return why = refusal("key, which does not fit the certificate,", key_file), false;
    return true;
  };
  auto server = std::make_unique<httplib::SSLServer>(setup);
  if (!server->is_valid()) throw Error(why);
  return server;
}

}  // namespace sx::server
