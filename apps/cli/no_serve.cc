// Replaces serve.cc where the HTTP library is missing: the program has no such command then.
#include "cli/commands.h"

namespace sx::cli {

std::vector<OptionalCommand> optional_commands() { return {}; }

}  // namespace sx::cli
