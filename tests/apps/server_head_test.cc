// Heads of requests, read strictly, and the names a server may be asked under.
#include <gtest/gtest.h>

#include <string>

#include "server/error.h"
#include "server/hosts.h"
#include "server/request_head.h"

namespace sx::server {
namespace {

// The status a head is refused with; 0: it is complete, -1: more is needed.
int status_of(const std::string& text, size_t at_a_time = 1 << 20) {
  HeadReader reader;
  std::string buffer;
  try {
    for (size_t i = 0; i < text.size(); i += at_a_time) {
      buffer += text.substr(i, at_a_time);
      if (reader.take(buffer)) return 0;
    }
  } catch (const ApiError& error) { return error.status; }
  return -1;
}

std::string head(const std::string& line, const std::string& headers) {
  return line + "\r\nHost: x\r\n" + headers + "\r\n";
}

TEST(RequestHead, IsReadInPieces) {
  const std::string text =
      "\r\nPOST /a?b=c HTTP/1.1\r\nHost:x\r\nContent-LENGTH: \t12 \r\nX-Empty:\r\nConnection: a, CLOSE ,b\r\n\r\nbody";
  for (size_t piece : {size_t(1), size_t(2), size_t(7), text.size()}) {
    HeadReader reader;
    std::string buffer;
    size_t i = 0;
    EXPECT_FALSE(reader.begun());
    for (bool done = false; !done; i += piece) {
      ASSERT_LT(i, text.size());
      buffer += text.substr(i, piece);
      done = reader.take(buffer);
    }
    EXPECT_TRUE(reader.begun());
    EXPECT_EQ(reader.head.method + " " + reader.head.target, "POST /a?b=c");
    EXPECT_FALSE(reader.head.old);
    EXPECT_EQ(reader.head.length, 12u);
    EXPECT_TRUE(reader.head.measured && reader.head.has_end() && reader.head.has_body() && !reader.head.encoded);
    EXPECT_EQ(reader.head.header("host"), "x");
    EXPECT_EQ(reader.head.headers.size(), 4u);
    EXPECT_TRUE(reader.head.lists("connection", "close") && reader.head.lists("connection", "b"));
    EXPECT_FALSE(reader.head.lists("connection", "clos") || reader.head.lists("x-empty", "close"));
    EXPECT_EQ(buffer + text.substr(std::min(i, text.size())), "body");
  }
}

TEST(RequestHead, KnowsWhereAnotherCanBegin) {
  const auto has_end = [](std::string text) {
    HeadReader reader;
    EXPECT_TRUE(reader.take(text));
    return reader.head.has_end();
  };
  EXPECT_TRUE(has_end(head("GET / HTTP/1.1", "")));
  EXPECT_TRUE(has_end(head("GET / HTTP/1.1", "Content-Length: 5\r\n")));
  EXPECT_TRUE(has_end(head("POST / HTTP/1.1", "Content-Length: 0\r\n")));
  EXPECT_FALSE(has_end(head("POST / HTTP/1.1", "")));
  EXPECT_FALSE(has_end(head("GET / HTTP/1.1", "Transfer-Encoding: identity\r\n")));
}

TEST(RequestHead, RefusesWhatCanBeReadInTwoWays) {
  const std::string get = "GET / HTTP/1.1";
  for (const std::string& text : {head("GET  / HTTP/1.1", ""),
                                  head("GET / HTTP/1.1 ", ""),
                                  head("GET /", ""),
                                  head("GET /a b HTTP/1.1", ""),
                                  head(" GET / HTTP/1.1", ""),
                                  head("GET /\x80 HTTP/1.1", ""),
                                  head("GET x HTTP/1.1", ""),
                                  head("GET * HTTP/1.1", ""),
                                  head("GET http://x/ HTTP/1.1", ""),
                                  head("GET / HTTP/1.1\n", ""),
                                  head("GET / http/1.1", ""),
                                  std::string("\r\n\r\n"),
                                  std::string("\nGET / HTTP/1.1\r\n"),
                                  head(get, "A : b\r\n"),
                                  head(get, " A: b\r\n"),
                                  head(get, "\tA: b\r\n"),
                                  head(get, ": b\r\n"),
                                  head(get, "A\r\n"),
                                  head(get, "A(: b\r\n"),
                                  head(get, "A: b\rc\r\n"),
                                  head(get, "A: b\nc: d\r\n"),
                                  head(get, std::string("A: b\0c\r\n", 8)),
                                  head(get, "A: b\x7f\r\n"),
                                  head(get, "Content-Length: \r\n"),
                                  head(get, "Content-Length: -1\r\n"),
                                  head(get, "Content-Length: 1,1\r\n"),
                                  head(get, "Content-Length: 1\r\nContent-Length: 1\r\n"),
                                  head(get, "Content-Length: 9999999999999999999\r\n"),
                                  head(get, "Content-Length: 1\r\nTransfer-Encoding: x\r\n"),
                                  head(get, "Transfer-Encoding: a\r\nTransfer-Encoding: b\r\n"),
                                  head("POST / HTTP/1.0", "Transfer-Encoding: chunked\r\n"),
                                  head(get, "HOST: y\r\n"),
                                  head(get, "Origin: a\r\nOrigin: b\r\n"),
                                  std::string("GET / HTTP/1.1\r\n\r\n")}) {
    EXPECT_EQ(status_of(text), 400) << text;
    EXPECT_EQ(status_of(text, 1), 400) << text;
  }
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(status_of(head("OPTIONS * HTTP/1.1", "A: \x80\tb\r\nA: c\r\n")), 0);
  EXPECT_EQ(status_of(head("GET / HTTP/2.0", "")), 505);
  for (const char* method : {"FROB", "get", "TRACE", "CONNECT", "PRI"})
    EXPECT_EQ(status_of(head(std::string(method) + " / HTTP/1.1", "")), 405);
}

TEST(RequestHead, HasBounds) {
  const std::string fits(kLineBytes - 16, 'a');
  EXPECT_EQ(status_of(head("GET /" + fits + " HTTP/1.1", "")), 0);
  EXPECT_EQ(status_of(head("GET /" + fits + "a HTTP/1.1", "")), 414);
  EXPECT_EQ(status_of("GET /" + std::string(kLineBytes, 'a'), 1), 414);  // without an end
  EXPECT_EQ(status_of(std::string(kLineBytes + 1, 'a')), 414);
  EXPECT_EQ(status_of(head("GET / HTTP/1.1", "A: " + std::string(kLineBytes - 5, 'a') + "\r\n")), 0);
  EXPECT_EQ(status_of(head("GET / HTTP/1.1", "A: " + std::string(kLineBytes - 4, 'a') + "\r\n")), 431);
  std::string many, large;
  for (size_t i = 0; i + 1 < kHeaders; ++i) many += "A: b\r\n";
  EXPECT_EQ(status_of(head("GET / HTTP/1.1", many)), 0);
  EXPECT_EQ(status_of(head("GET / HTTP/1.1", many + "A: b\r\n")), 431);
  for (int i = 0; i < 9; ++i) large += "A: " + std::string(kHeadBytes / 9, 'a') + "\r\n";
  EXPECT_EQ(status_of(head("GET / HTTP/1.1", large)), 431);
}

TEST(Hosts, OfServersForThisMachineOnly) {
  const HostRules rules{.loopback = true, .keys = false, .names = {"Models.example", "192.0.2.1"}};
  for (const char* host : {"localhost", "Localhost:80", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:1",
                           "localhost:", "models.example:443", "MODELS.EXAMPLE", "192.0.2.1:80"})
    EXPECT_TRUE(host_allowed(host, rules)) << host;
  for (const char* host : {"", ":80", "evil.example", "localhost.evil.example", "127.evil.example",
                           "127.0.0.1.evil.example", "localhost.", "x", "192.0.2.2", "[::2]", "[::1", "[localhost]",
                           "::1", "localhost:a", "localhost:1:1", "[::1]x", "models.example.evil"})
    EXPECT_FALSE(host_allowed(host, rules)) << host;
}

TEST(Hosts, OfServersForOthers) {
  const HostRules rules{.loopback = false, .keys = false, .names = {}};
  for (const char* host : {"localhost", "192.0.2.2:8080", "[2001:db8::1]:8080", "models", "models:80", "models.local",
                           "a.svc.cluster.local:80"})
    EXPECT_TRUE(host_allowed(host, rules)) << host;
  for (const char* host :
       {"", "evil.example", "evil.example:8080", "192.0.2.evil.example", "local.evil", "models.", "1.2.3.4.5"})
    EXPECT_FALSE(host_allowed(host, rules)) << host;
  EXPECT_TRUE(host_allowed("evil.example", {.loopback = false, .keys = true, .names = {}}));
  EXPECT_TRUE(host_allowed("evil.example", {.loopback = true, .keys = false, .names = {"*"}}));
}

}  // namespace
}  // namespace sx::server
