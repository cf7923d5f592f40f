// The page of `specextend explain`: data in, one HTML file out, so that it can be tested without a model. Texts come
// from prompts and models and are trusted with nothing.
#pragma once
#include <string>
#include <string_view>

#include "cli/explain_data.h"

namespace sx::cli {

// Text as HTML: escaped, broken UTF-8 as U+FFFD, control characters as pictures.
std::string html_text(std::string_view text);
std::string explain_page(const Explanation& e);

}  // namespace sx::cli
