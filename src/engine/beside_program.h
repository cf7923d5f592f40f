// Files that come with the program or the Python module: installed beside it, or in the source tree where it is run
// from its build folder.
#pragma once
#include <string>

namespace sx {

// `installed` is a path below share/specextend, `source` the same file's path in the source tree; empty where neither
// is there.
std::string file_beside_program(const std::string& installed, const std::string& source);

}  // namespace sx
