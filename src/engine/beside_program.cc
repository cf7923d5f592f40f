#include "engine/beside_program.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

namespace sx {
namespace {

namespace fs = std::filesystem;

// Folders that may hold share/specextend: the parent of the program's folder, and that of the shared library which has
// this code, if it is in one, such as the module of the Python package.
std::vector<fs::path> prefixes() {
  std::vector<fs::path> out;
  std::error_code error;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error)
    out.push_back(program.parent_path().parent_path());
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(&file_beside_program), &library) && library.dli_fname)
    out.push_back(fs::absolute(library.dli_fname, error).parent_path());
  return out;
}

}  // namespace

std::string file_beside_program(const std::string& installed, const std::string& source) {
  std::error_code error;
  for (const fs::path& prefix : prefixes()) {
    const fs::path path = prefix / "share" / "specextend" / installed;
    if (fs::exists(path, error)) return path.string();
  }
  const fs::path path = fs::path(SPECEXTEND_SOURCE) / source;
  return fs::exists(path, error) ? path.string() : "";
}

}  // namespace sx
