// Lookups by text, and the strict reading of byte tokens.
#include "text/vocabulary.h"

namespace sx {

void TokenTable::index() {
  ids.clear();
  ids.reserve(text.size());
  for (Token t = 0; t < size(); ++t) {
    if (!text[t].empty()) ids.insert_or_assign(text[t], t);
  }
}

int parse_byte_token(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  int value = 0;
  for (char c : text.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + (c - 'A' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

}  // namespace sx
