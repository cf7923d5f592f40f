// Text from files, made safe to show.
#include "base/printable.h"

#include <fmt/format.h>

namespace sx {

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (out.size() >= limit && (byte & 0xc0) != 0x80) return out + "...";
    if (out.size() >= limit + 4) return out + "...";  // endless continuation bytes are no character
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace sx
