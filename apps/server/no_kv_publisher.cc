// The sockets of kv_events.h where ZeroMQ was not there at build time: they cannot be had, and say so.
#include "server/kv_events.h"

namespace sx::server {

std::unique_ptr<KvPublisher> KvPublisher::create(const KvEventOptions&) {
  throw Error("--kv-events: this program was built without ZeroMQ (Debian: libzmq3-dev)");
}

}  // namespace sx::server
