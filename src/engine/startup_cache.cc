#include "engine/startup_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "engine/sha256.h"
#include "specextend/engine.h"

namespace sx {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 64 << 10;  // of a file
constexpr size_t kMostFiles = 256;       // the oldest go first

std::string hash_of(std::string_view text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.hex();
}

std::string identity_of(const fs::path& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return {};
  return fmt::format("{} {} {} {}.{:09} {}.{:09}", s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec,
                     s.st_ctim.tv_sec, s.st_ctim.tv_nsec);
}

// Other processes may do the same at the same time.
void drop_oldest(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const auto time = it->last_write_time(gone);
    if (!gone) files.emplace_back(time, it->path());
  }
  if (files.size() <= kMostFiles) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() - kMostFiles; ++i) fs::remove(files[i].second, error);
}

// The mapped file that an address lies in.
fs::path file_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long first = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &first, &end) != 2) continue;
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (at < first || at >= end) continue;
    const size_t slash = line.find('/');
    return slash == line.npos ? fs::path() : fs::path(line.substr(slash));
  }
  return {};
}

}  // namespace

std::string startup_cache_folder() {
  if (const char* given = std::getenv("SPECEXTEND_CACHE"); given && *given)
    return std::string_view(given) == "off" ? "" : given;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache && *cache) return (fs::path(cache) / "specextend" / "startup").string();
  return home && *home ? (fs::path(home) / ".cache" / "specextend" / "startup").string() : "";
}

std::string StartupCache::path_of(std::string_view kind, const std::string& key) const {
  return (fs::path(folder_) / fmt::format("{}-{}.json", kind, hash_of(key).substr(0, 32))).string();
}

std::optional<Json> StartupCache::find(std::string_view kind, const std::string& key) const {
  if (folder_.empty() || key.empty()) return {};
  try {
    const std::string path = path_of(kind, key), text = read_text_file_if_any(path, kMostBytes);
    if (text.empty()) return {};
    const Json json = parse_json(text, path);
    if (!json.is_object() || !json.contains("key") || json["key"] != key || !json.contains("value")) return {};
    return json["value"];
  } catch (const std::exception&) { return {}; }
}

void StartupCache::keep(std::string_view kind, const std::string& key, const Json& value) const {
  static std::atomic<int> written{0};
  if (folder_.empty() || key.empty()) return;
  try {
    const std::string path = path_of(kind, key), unfinished = fmt::format("{}.{}.{}", path, ::getpid(), ++written);
    std::error_code error;
    fs::create_directories(folder_, error);
    std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
    out << Json{{"key", key}, {"value", value}}.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    out.close();
    if (out) fs::rename(unfinished, path, error);
    if (!out || error) fs::remove(unfinished, error);
    drop_oldest(folder_);
  } catch (const std::exception&) {}  // nothing is lost but time
}

std::string StartupCache::sha256(const std::string& path) {
  const std::string key = file_identity(path);
  if (const auto kept = find("sha256", key); kept && kept->is_string()) return kept->get<std::string>();
  ++work.hashed;
  const std::string sum = sha256_of_file(path);
  if (file_identity(path) == key) keep("sha256", key, sum);
  return sum;
}

std::string file_identity(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return {};
  std::string out = fmt::format("{} {}", real.string(), identity_of(real));
  const bool folder = fs::is_directory(real, error);
  const std::string name = real.filename().string(),
                    shards = folder ? "" : name.substr(std::min(name.size(), name.rfind("-of-")));
  if (!folder && shards.empty()) return out;
  std::vector<std::string> files;
  for (fs::directory_iterator it(folder ? real : real.parent_path(), error), end; !error && it != end;
       it.increment(error))
    if (const std::string other = it->path().filename().string(); folder || other.ends_with(shards))
      files.push_back(fmt::format("{} {}", other, identity_of(it->path())));
  if (error) return {};
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) out += "\n" + file;
  return out;
}

std::string build_identity() {
  static const std::string known = [] {
    static const char here = 0;
    const fs::path file = file_of(&here);
    return fmt::format("{} {}", SPECEXTEND_VERSION, file.empty() ? "" : file_identity(file.string()));
  }();
  return known;
}

std::string build_key(const std::string& path, const std::string& other) {
  const std::string first = file_identity(path), second = other.empty() ? "none" : file_identity(other);
  return first.empty() || second.empty() ? "" : fmt::format("{}\n{}\n{}", first, second, build_identity());
}

std::string machine_identity() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) name[0] = 0;
  return fmt::format("{}, {} cores", name, std::thread::hardware_concurrency());
}

Json costs_to_json(const CostModel& cost_model, int most, int far) {
  Json points = Json::array();
  for (const int rows : CostModel::kRows)
    if (rows <= most) points.push_back({cost_model.predict(rows, 0), far > 0 ? cost_model.predict(rows, far) : 0.0});
  return points;
}

bool costs_from_json(const Json& json, int most, int far, CostModel& cost_model) {
  const auto ms = [](const Json& x) { return x.is_number() && std::isfinite(x.get<double>()) && x.get<double>() > 0; };
  const auto wanted =
      std::count_if(CostModel::kRows.begin(), CostModel::kRows.end(), [&](int rows) { return rows <= most; });
  if (!json.is_array() || json.size() != size_t(wanted)) return false;
  for (const Json& point : json)
    if (!point.is_array() || point.size() != 2 || !ms(point[0]) || (far > 0 && !ms(point[1]))) return false;
  for (size_t i = 0; i < json.size(); ++i) {
    cost_model.set(CostModel::kRows[i], 0, json[i][0].get<double>());
    if (far > 0) cost_model.set(CostModel::kRows[i], far, json[i][1].get<double>());
  }
  return true;
}

std::optional<Json> corrected_costs(const Json& kept, const CostModel& now, int most, int far) {
  constexpr double kSame = 0.1, kSlower = 0.25;
  CostModel before;
  if (!costs_from_json(kept, most, far, before)) return {};
  Json points = costs_to_json(now, most, far);
  bool other = false;
  for (size_t i = 0; i < points.size(); ++i)
    for (const size_t side : {size_t(0), size_t(1)}) {
      const double old = kept[i][side].get<double>(), seen = points[i][side].get<double>();
      if (side == 1 && far == 0) continue;
      other = other || std::fabs(seen / old - 1) > kSame;
      if (seen > old) points[i][side] = old + kSlower * (seen - old);
    }
  return other ? std::optional(points) : std::nullopt;
}

}  // namespace sx
