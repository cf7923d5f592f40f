// For tools/check_unicode.py: reads JSON lines {"do": name, "text": s} and answers with the text that text/unicode.h
// makes of it, or with a string of 0 and 1, one per character, for a class of characters.
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "text/unicode.h"

namespace {

using Change = std::function<std::string(const std::string&)>;

template <class Each>
Change each_character(Each each) {
  return [each](const std::string& text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const sx::Utf8Step step = sx::utf8_step(text, at);
      each(out, step.code);
      at += step.length;
    }
    return out;
  };
}

Change form(sx::NormalForm to) {
  return [to](const std::string& text) { return sx::normalize(text, to); };
}

Change members(bool (*is)(char32_t)) {
  return each_character([is](std::string& out, char32_t code) { out += is(code) ? '1' : '0'; });
}

}  // namespace

int main() {
  const std::map<std::string, Change> changes = {{"NFC", form(sx::NormalForm::kNfc)},
                                                 {"NFD", form(sx::NormalForm::kNfd)},
                                                 {"NFKC", form(sx::NormalForm::kNfkc)},
                                                 {"NFKD", form(sx::NormalForm::kNfkd)},
                                                 {"lower", sx::lower_case},
                                                 {"upper", sx::upper_case},
                                                 {"title", each_character(sx::append_title)},
                                                 {"printable", members(sx::is_printable)},
                                                 {"white space", members(sx::is_white_space)},
                                                 {"alphanumeric", members(sx::is_alphanumeric)},
                                                 {"cased", members(sx::is_cased)}};
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    const nlohmann::json answer = changes.at(request.at("do"))(request.at("text"));
    std::cout << answer.dump() << std::endl;
  }
}
