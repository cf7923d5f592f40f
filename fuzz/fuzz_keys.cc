// Fuzzes key files: any bytes are a list of keys, none of them empty and no two of one name, or sx::Error, which never
// repeats what the file says.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "base/error.h"
#include "server/keys.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    std::set<std::string> names;
    for (const sx::server::ApiKey& key : sx::server::parse_keys(text)) {
      if (key.key.empty() || !names.insert(key.name).second) __builtin_trap();
      if (!(key.limits.weight > 0) || key.limits.max_running < 0 || key.limits.tokens_per_minute < 0) __builtin_trap();
    }
  } catch (const sx::Error&) {}
  return 0;
}
