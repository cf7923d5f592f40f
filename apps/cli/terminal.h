// What the commands do with the terminal: standard output, Ctrl-C, and the closing table on standard error.
#pragma once
#include <specextend/specextend.h>

#include <string_view>

namespace sx::cli {

// Writes to standard output at once; false when nobody reads any more (a closed pipe). Any other failure, such as a
// full disk, throws.
bool write_out(std::string_view text);
void print_timings(const GenerateResult& result);

// True after the user pressed Ctrl-C (installed by watch_interrupt; a second Ctrl-C ends the program).
void watch_interrupt();
bool interrupted();
void clear_interrupt();

}  // namespace sx::cli
