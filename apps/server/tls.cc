#include "server/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <specextend/error.h>

#include <algorithm>
#include <climits>

namespace sx::server {
namespace {

using Context = std::shared_ptr<SSL_CTX>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

std::string refusal(const char* what, const std::string& file) {
  char reason[256];
  ERR_error_string_n(ERR_get_error(), reason, sizeof(reason));
  return fmt::format("cannot take the {} '{}': {}", what, file, reason);
}

// The handshake is part of the first read. OpenSSL writes without MSG_NOSIGNAL: the HTTP library ignores SIGPIPE for
// the process.
class TlsWire final : public Wire {
 public:
  TlsWire(Context context, Session session) : context_(std::move(context)), ssl_(std::move(session)) {
    SSL_set_accept_state(ssl_.get());
  }
  Moved read(char* into, size_t size) override {
    ERR_clear_error();
    return moved(SSL_read(ssl_.get(), into, length(size)));
  }
  Moved write(const char* from, size_t size) override {
    ERR_clear_error();
    return moved(SSL_write(ssl_.get(), from, length(size)));
  }
  void say_goodbye() override {
    ERR_clear_error();
    if (SSL_is_init_finished(ssl_.get()) && !broken_) SSL_shutdown(ssl_.get());
  }

 private:
  static int length(size_t size) { return int(std::min<size_t>(size, INT_MAX)); }
  Moved moved(int bytes) {
    if (bytes > 0) return {bytes, 0};
    const int error = SSL_get_error(ssl_.get(), bytes);
    if (error == SSL_ERROR_WANT_READ) return {-1, POLLIN};
    if (error == SSL_ERROR_WANT_WRITE) return {-1, POLLOUT};
    if (error == SSL_ERROR_ZERO_RETURN) return {0, 0};
    broken_ = true;  // nothing may be asked of it after that
    return {-1, 0};
  }

  const Context context_;
  const Session ssl_;
  bool broken_ = false;
};

}  // namespace

WireMaker make_wires(const std::string& cert_file, const std::string& key_file) {
  if (cert_file.empty() && key_file.empty()) return make_plain_wire;
  if (cert_file.empty() || key_file.empty())
    throw Error("--ssl-cert-file and --ssl-key-file belong together: give both or none");
  const Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!context) throw Error("TLS cannot be set up");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (SSL_CTX_use_certificate_chain_file(context.get(), cert_file.c_str()) != 1)
    throw Error(refusal("certificate", cert_file));
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    throw Error(refusal("key", key_file));
  if (SSL_CTX_check_private_key(context.get()) != 1)
    throw Error(refusal("key, which does not fit the certificate,", key_file));
  return [context](int socket) -> std::unique_ptr<Wire> {
    Session session(SSL_new(context.get()), SSL_free);
    if (!session || SSL_set_fd(session.get(), socket) != 1) return nullptr;
    return std::make_unique<TlsWire>(context, std::move(session));
  };
}

}  // namespace sx::server
