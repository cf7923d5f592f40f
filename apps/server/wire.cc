#include "server/wire.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <specextend/error.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <utility>

namespace sx::server {
namespace {

namespace asio = boost::asio;

class PlainWire final : public Wire {
 public:
  explicit PlainWire(Socket socket) : socket_(std::move(socket)) {}
  void begin(Done done) override { done({}); }
  void read(char* into, size_t size, Moved moved) override {
    socket_.async_read_some(asio::buffer(into, size), std::move(moved));
  }
  void write(const char* from, size_t size, Moved moved) override {
    socket_.async_write_some(asio::buffer(from, size), std::move(moved));
  }
  void say_goodbye(Done done) override { done({}); }
  Socket& socket() override { return socket_; }

 private:
  Socket socket_;
};

class TlsWire final : public Wire {
 public:
  TlsWire(Socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}
  void begin(Done done) override { stream_.async_handshake(asio::ssl::stream_base::server, std::move(done)); }
  void read(char* into, size_t size, Moved moved) override {
    stream_.async_read_some(asio::buffer(into, size), std::move(moved));
  }
  void write(const char* from, size_t size, Moved moved) override {
    stream_.async_write_some(asio::buffer(from, size), std::move(moved));
  }
  void say_goodbye(Done done) override {
    Error ignored;
    stream_.next_layer().cancel(ignored);  // a read that is under way
    stream_.async_shutdown(std::move(done));
  }
  Socket& socket() override { return stream_.next_layer(); }

 private:
  const std::shared_ptr<asio::ssl::context> context_;
  asio::ssl::stream<Socket> stream_;
};

void check(const Wire::Error& error, const char* what, const std::string& file) {
  if (error) throw Error(fmt::format("cannot take the {} '{}': {}", what, file, error.message()));
}

}  // namespace

WireMaker make_wires(const std::string& cert_file, const std::string& key_file) {
  if (cert_file.empty() && key_file.empty())
    return [](Wire::Socket socket) { return std::make_unique<PlainWire>(std::move(socket)); };
  if (cert_file.empty() || key_file.empty())
    throw Error("--ssl-cert-file and --ssl-key-file belong together: give both or none");
  const auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // idle connections hold none
  Wire::Error error;
  context->use_certificate_chain_file(cert_file, error);
  check(error, "certificate", cert_file);
  context->use_private_key_file(key_file, asio::ssl::context::pem, error);
  check(error, "key", key_file);
  if (SSL_CTX_check_private_key(native) != 1)
    throw Error(fmt::format("the key '{}' does not fit the certificate '{}'", key_file, cert_file));
  return [context](Wire::Socket socket) { return std::make_unique<TlsWire>(std::move(socket), context); };
}

}  // namespace sx::server
