// A folder to write into: refused if something is in it (unless forced), and removed again if the work fails before
// anything was.
#pragma once
#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"

namespace sx {

struct NewFolder {
  explicit NewFolder(std::string where, bool force) : path(std::move(where)) {
    std::error_code error;
    if (std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error))
      fail("'{}' exists and is no folder", path);
    if (std::filesystem::is_directory(path, error) && !std::filesystem::is_empty(path, error) && !force) {
      fail("folder '{}' exists and is not empty; --force overwrites its files", path);
    }
    made = std::filesystem::create_directories(path, error);
    if (error) fail("cannot make the folder '{}': {}", path, error.message());
  }
  ~NewFolder() {
    std::error_code ignored;
    if (made && !kept) std::filesystem::remove(path, ignored);  // only if nothing is in it
  }
  std::string path;
  bool made = false, kept = false;
};

}  // namespace sx
