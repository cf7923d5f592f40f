// Fuzzes JSON schemas: any bytes become a grammar that can be read again, or sx::Error.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string grammar;
  try {
    grammar = sx::gbnf_of_schema(std::string_view(reinterpret_cast<const char*>(data), size), "<", "\"\n");
  } catch (const sx::Error&) { return 0; }
  sx::parse_gbnf(grammar);  // an exception here leaves the target: a finding
  return 0;
}
