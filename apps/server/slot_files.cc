#include "server/slot_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "server/error.h"

namespace sx::server {

namespace fs = std::filesystem;

std::string slot_path(const std::string& folder, uint64_t scope, const std::string& name) {
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' ||
           c == '_';
  };
  if (name.empty() || name.size() > 200 || name[0] == '.' || !std::ranges::all_of(name, plain))
    throw bad_request("'filename' must be letters, digits, '-', '_' and '.', and not begin with a '.'", "filename");
  return (scope == 0 ? fs::path(folder) / name : fs::path(folder) / fmt::format("key-{:016x}", scope) / name).string();
}

void write_state(const std::string& path, const std::string& state) {
  std::error_code ignored;
  const fs::path folder = fs::path(path).parent_path();
  if (fs::create_directory(folder, ignored)) fs::permissions(folder, fs::perms::owner_all, ignored);
  const std::string unfinished = fmt::format("{}.part", path);
  std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
  out.write(state.data(), std::streamsize(state.size()));
  out.close();
  std::error_code failed;
  if (out) fs::rename(unfinished, path, failed);
  if (out && !failed) return;
  fs::remove(unfinished, ignored);
  throw ApiError(500, "server_error", "the state could not be written", "filename", "slot_save_failed");
}

std::string read_state(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::error_code failed;
  if (!in || !fs::is_regular_file(path, failed))
    throw ApiError(404, "invalid_request_error",
                   fmt::format("there is no state '{}'", fs::path(path).filename().string()), "filename",
                   "slot_not_found");
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

}  // namespace sx::server
