// Whether a client is still there. The HTTP library does not say while a handler waits, so the connection's descriptor is
// looked up by the client's address.
#pragma once
#include <string>

namespace sx::server {

class ClientSocket {
 public:
  ClientSocket(const std::string& address, int port);
  bool gone() const;     // closed by the client; false when not known
  void hang_up() const;  // what was written still arrives; what was not read is dropped
 private:
  int descriptor_ = -1;
};

}  // namespace sx::server
