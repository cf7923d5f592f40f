// TLS for the wires of connections, if a certificate is given.
#pragma once
#include <string>

#include "server/wire.h"

namespace sx::server {

// Both files empty: without TLS. Throws sx::Error naming what is wrong with them, or that TLS is not built in.
WireMaker make_wires(const std::string& cert_file, const std::string& key_file);

}  // namespace sx::server
