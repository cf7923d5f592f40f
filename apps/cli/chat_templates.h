// Chat templates that are known by a name.
#pragma once
#include <string>
#include <vector>

namespace sx::cli {

std::vector<std::string> chat_template_names();
// The Jinja source that `given` names, or is. Throws sx::Error when it is neither.
std::string chat_template_of(const std::string& given);

}  // namespace sx::cli
