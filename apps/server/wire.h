// The bytes of a connection, plain or through TLS. Nothing here waits: every call returns at once, and what it began
// is reported on the socket's strand.
#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

namespace sx::server {

class Wire {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Error = boost::system::error_code;
  using Done = std::function<void(const Error&)>;
  using Moved = std::function<void(const Error&, size_t)>;

  virtual ~Wire() = default;
  virtual void begin(Done done) = 0;                                   // TLS: the handshake
  virtual void read(char* into, size_t size, Moved moved) = 0;         // some; one at a time
  virtual void write(const char* from, size_t size, Moved moved) = 0;  // some; one at a time
  virtual void say_goodbye(Done done) = 0;                             // nothing is written after that
  virtual Socket& socket() = 0;
};

using WireMaker = std::function<std::unique_ptr<Wire>(Wire::Socket socket)>;

// Both files empty: without TLS. Throws sx::Error naming what is wrong with them.
WireMaker make_wires(const std::string& cert_file, const std::string& key_file);

}  // namespace sx::server
