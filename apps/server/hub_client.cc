#include "server/hub_client.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <array>
#include <chrono>
#include <optional>

#include <specextend/error.h>

namespace sx::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr int kRedirections = 5;
constexpr std::chrono::seconds kSilence{60};
constexpr size_t kPiece = 65536;

// One exchange over a connection of its own. Timeouts of Beast's streams need asynchronous calls: each is run to its
// end.
class Exchange {
 public:
  explicit Exchange(const Url& url) : url_(url) {}

  // Where it leads to instead, or empty: the body was given.
  std::string run(const std::function<void(std::string_view)>& take) {
    tls_.set_default_verify_paths();
    tls_.set_verify_mode(asio::ssl::verify_peer);
    asio::ip::tcp::resolver resolver(io_);
    const auto places = resolver.resolve(url_.host, url_.port);
    if (!url_.tls) {
      beast::tcp_stream stream(io_);
      await(
          [&](auto done) {
            beast::get_lowest_layer(stream).async_connect(places, [=](error_code e, auto) { done(e); });
          },
          stream);
      return exchange(stream, take);
    }
    beast::ssl_stream<beast::tcp_stream> stream(io_, tls_);
    stream.set_verify_callback(asio::ssl::host_name_verification(url_.host));
    if (!SSL_set_tlsext_host_name(stream.native_handle(), url_.host.c_str())) throw Error("TLS cannot be used");
    await(
        [&](auto done) { beast::get_lowest_layer(stream).async_connect(places, [=](error_code e, auto) { done(e); }); },
        stream);
    await([&](auto done) { stream.async_handshake(asio::ssl::stream_base::client, [=](error_code e) { done(e); }); },
          stream);
    return exchange(stream, take);
  }

 private:
  // Starts something and waits for its end; throws what it ended with, but for `fine`.
  template <typename Start, typename Stream>
  void await(const Start& start, Stream& stream, error_code fine = {}) {
    beast::get_lowest_layer(stream).expires_after(kSilence);
    error_code ended = asio::error::would_block;
    start([&ended](error_code e) { ended = e; });
    io_.restart();
    io_.run();
    if (ended && ended != fine) throw boost::system::system_error(ended);
  }

  template <typename Stream>
  std::string exchange(Stream& stream, const std::function<void(std::string_view)>& take) {
    http::request<http::empty_body> request(http::verb::get, url_.path, 11);
    request.set(http::field::host, url_.host);
    request.set(http::field::user_agent, "specextend");
    await([&](auto done) { http::async_write(stream, request, [=](error_code e, size_t) { done(e); }); }, stream);
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    await([&](auto done) { http::async_read_header(stream, buffer, parser, [=](error_code e, size_t) { done(e); }); },
          stream);
    const int status = parser.get().result_int();
    if (status >= 300 && status < 400 && parser.get().count(http::field::location))
      return std::string(parser.get()[http::field::location]);
    if (status != 200) throw Error(fmt::format("status {}", status));
    std::array<char, kPiece> piece;
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = piece.data(), body.size = piece.size(), body.more = true;
      await([&](auto done) { http::async_read_some(stream, buffer, parser, [=](error_code e, size_t) { done(e); }); },
            stream, http::error::need_buffer);
      const size_t got = piece.size() - body.size;
      if (got > 0) take({piece.data(), got});
    }
    return {};
  }

  const Url url_;
  asio::io_context io_;
  asio::ssl::context tls_{asio::ssl::context::tls_client};
};

}  // namespace

Url parse_url(std::string_view text) {
  Url url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) url.tls = true, rest.remove_prefix(8);
  else if (rest.starts_with("http://")) rest.remove_prefix(7);
  else throw Error(fmt::format("'{}' is no address that begins with http:// or https://", text));
  const size_t slash = rest.find_first_of("/?");
  std::string_view place = rest.substr(0, slash);
  url.path = slash == rest.npos ? "/" : std::string(rest[slash] == '?' ? "/" : "") + std::string(rest.substr(slash));
  url.port = url.tls ? "443" : "80";
  const size_t colon = place.find(':', place.starts_with('[') ? place.find(']') : 0);
  if (colon != place.npos) url.port = place.substr(colon + 1), place = place.substr(0, colon);
  if (place.starts_with('[') && place.ends_with(']')) place = place.substr(1, place.size() - 2);
  url.host = place;
  const auto plain = [](const std::string& s) { return !s.empty() && s.find_first_of(" \t\r\n@\\") == s.npos; };
  if (!plain(url.host) || url.port.find_first_not_of("0123456789") != url.port.npos || url.port.empty() ||
      !plain(url.path))
    throw Error(fmt::format("'{}' is no address of a hub", text));
  return url;
}

std::string next_url(const Url& from, std::string_view where) {
  const bool relative = where.starts_with('/') && !where.starts_with("//");
  const std::string host = from.host.find(':') == std::string::npos ? from.host : "[" + from.host + "]";
  const std::string next =
      relative ? fmt::format("{}://{}:{}{}", from.tls ? "https" : "http", host, from.port, where) : std::string(where);
  if (from.tls && !parse_url(next).tls) throw Error(fmt::format("leads away from TLS, to {}", next));
  return next;
}

void hub_get(const std::string& url, const std::function<void(std::string_view)>& take) {
  std::string at = url;
  std::exception_ptr inside;  // what `take` threw
  try {
    for (int i = 0; i <= kRedirections; ++i) {
      const Url here = parse_url(at);
      const std::string next = Exchange(here).run([&](std::string_view more) {
        try {
          take(more);
        } catch (...) {
          inside = std::current_exception();
          throw;
        }
      });
      if (next.empty()) return;
      at = next_url(here, next);
    }
    throw Error("leads from one address to the next");
  } catch (const std::exception& e) {
    if (inside) std::rethrow_exception(inside);
    throw Error(fmt::format("{}: {}", at, e.what()));
  }
}

}  // namespace sx::server
