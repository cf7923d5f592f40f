#include "engine/beside_program.h"

#include <filesystem>

namespace sx {

std::string file_beside_program(const std::string& installed, const std::string& source) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error) {
    const fs::path path = program.parent_path().parent_path() / "share" / "specextend" / installed;
    if (fs::exists(path, error)) return path.string();
  }
  const fs::path path = fs::path(SPECEXTEND_SOURCE) / source;
  return fs::exists(path, error) ? path.string() : "";
}

}  // namespace sx
