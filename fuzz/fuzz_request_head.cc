// Fuzzes the heads of HTTP requests: any bytes are a head or an error, the same whether they come at once or one by
// one; what is left is what follows the head, and nothing of a head can be taken for the end of one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "server/error.h"
#include "server/request_head.h"

namespace {

struct Outcome {
  int status = -1;  // 0: a head
  sx::server::RequestHead head;
  std::string left;
};

Outcome read(const std::string& text, size_t piece) {
  Outcome outcome;
  sx::server::HeadReader reader;
  try {
    for (size_t i = 0; i < text.size(); i += piece) {
      outcome.left += text.substr(i, piece);
      if (!reader.take(outcome.left)) continue;
      outcome.status = 0;
      outcome.head = reader.head;
      outcome.left += text.substr(std::min(i + piece, text.size()));
      break;
    }
  } catch (const sx::server::ApiError& error) { outcome.status = error.status; }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Outcome whole = read(text, std::max<size_t>(size, 1)), bytes = read(text, 1);
  if (whole.status != bytes.status) __builtin_trap();
  if (whole.status != 0) return 0;
  if (whole.left != bytes.left || whole.head.headers != bytes.head.headers || !text.ends_with(whole.left))
    __builtin_trap();
  const std::string taken = text.substr(0, text.size() - whole.left.size());
  if (!taken.ends_with("\r\n\r\n") || taken.substr(2).find("\r\n\r\n") != taken.size() - 6) __builtin_trap();
  for (const auto& [name, value] : whole.head.headers)
    if ((name + value).find_first_of(std::string("\r\n\0", 3)) != std::string::npos) __builtin_trap();
  return 0;
}
