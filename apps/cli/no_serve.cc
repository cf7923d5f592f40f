// Stands for serve.cc where the HTTP library is missing: there is no such command then.
#include "cli/common.h"

namespace sx::cli {

std::vector<OptionalCommand> optional_commands() { return {}; }

}  // namespace sx::cli
