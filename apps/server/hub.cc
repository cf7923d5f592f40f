#include "server/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/hub_client.h"

#include <specextend/error.h>

namespace sx::server {
namespace {

using PlainJson = nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t kMostListing = size_t(16) << 20;  // bytes

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 96 && text.front() != '.' &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

// A name that stays in its folder.
bool is_path(const std::string& path) {
  size_t begin = 0;
  for (;;) {
    const size_t end = path.find('/', begin);
    if (!is_name(std::string_view(path).substr(begin, end - begin))) return false;
    if (end == std::string::npos) return true;
    begin = end + 1;
  }
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

// "model-Q4_K_M.gguf" has the tag q4_k_m, "model-IQ4_K_M.gguf" has not.
bool has_tag(const std::string& path, const std::string& tag) {
  const std::string file = lower(path);
  for (size_t at = file.find(tag); at != file.npos; at = file.find(tag, at + 1)) {
    const size_t end = at + tag.size();
    const auto ends = [&](size_t i) { return !std::isalnum(static_cast<unsigned char>(file[i])) && file[i] != '_'; };
    if ((at == 0 || ends(at - 1)) && (end == file.size() || ends(end))) return true;
  }
  return false;
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

std::vector<HubFile> read_listing(const std::string& text, const HubName& name) {
  std::vector<HubFile> files;
  try {
    const PlainJson list = PlainJson::parse(text);
    for (const PlainJson& one : list) {
      if (one.at("type") != "file") continue;
      HubFile file{one.at("path").get<std::string>(), one.at("size").get<int64_t>(), {}};
      if (const auto large = one.find("lfs"); large != one.end() && large->is_object()) file.sha256 = large->at("oid");
      files.push_back(std::move(file));
    }
  } catch (const PlainJson::exception& e) {
    throw Error(
        fmt::format("{}/{}: the hub's list of files cannot be read: {}", name.owner, name.repository, e.what()));
  }
  return files;
}

// Into a file of its own first: what has the name is whole.
void fetch(const HubOptions& options, const std::string& url, const HubFile& file, const fs::path& path) {
  const fs::path part = path.string() + fmt::format(".{}.part", ::getpid());
  Sha256 hash;
  int64_t bytes = 0;
  try {
    std::ofstream out(part, std::ios::binary);
    hub_get(url, [&](std::string_view more) {
      bytes += int64_t(more.size());
      if (bytes > file.bytes) throw Error(fmt::format("{}: is longer than the hub said", url));
      hash.add(more);
      out.write(more.data(), std::streamsize(more.size()));
      if (!out) throw Error(fmt::format("{}: cannot be written", part.string()));
      if (options.on_progress) options.on_progress(double(bytes) / double(std::max<int64_t>(1, file.bytes)));
    });
    out.close();
    if (!out) throw Error(fmt::format("{}: cannot be written", part.string()));
    if (bytes != file.bytes) throw Error(fmt::format("{}: {} of {} bytes came", url, bytes, file.bytes));
    if (!file.sha256.empty() && hash.hex() != file.sha256)
      throw Error(fmt::format("{}: has not the SHA-256 that the hub said", url));
    fs::rename(part, path);
  } catch (...) {
    std::error_code none;
    fs::remove(part, none);
    throw;
  }
}

}  // namespace

HubName parse_hub_name(std::string_view text) {
  const size_t slash = text.find('/'), colon = text.find(':');
  HubName name;
  if (slash != text.npos) {
    name.owner = text.substr(0, slash);
    name.repository = text.substr(slash + 1, colon == text.npos ? colon : colon - slash - 1);
    if (colon != text.npos) name.tag = text.substr(colon + 1);
  }
  if (!is_name(name.owner) || !is_name(name.repository) || (colon != text.npos && !is_name(name.tag)))
    throw Error(
        fmt::format("'{}' is no name of a model at a hub: expected OWNER/REPOSITORY or OWNER/REPOSITORY:TAG", text));
  return name;
}

HubFile choose_hub_file(const std::vector<HubFile>& files, const HubName& name) {
  std::vector<HubFile> models;
  for (const HubFile& file : files)
    if (file.path.ends_with(".gguf") && is_path(file.path) && file.path.find("mmproj") == file.path.npos &&
        file.path.find("-of-0") == file.path.npos)
      models.push_back(file);
  const auto with = [&](const std::string& tag) {
    return std::ranges::find_if(models, [&](const HubFile& file) { return has_tag(file.path, lower(tag)); });
  };
  auto found = with(name.tag.empty() ? "Q4_K_M" : name.tag);
  if (found == models.end() && name.tag.empty()) found = models.begin();
  if (found != models.end()) return *found;
  std::vector<std::string> there;
  for (const HubFile& file : models) there.push_back(file.path);
  throw Error(fmt::format("{}/{}: no GGUF file{} among [{}]; files in several parts are not taken", name.owner,
                          name.repository, name.tag.empty() ? "" : fmt::format(" with '{}'", name.tag),
                          fmt::join(there, ", ")));
}

std::string model_from_hub(const HubOptions& options, const HubName& name) {
  std::string hub = options.address;
  while (hub.ends_with('/')) hub.pop_back();
  const std::string repository = name.owner + "/" + name.repository;
  std::string listing;
  hub_get(hub + "/api/models/" + repository + "/tree/main?recursive=true", [&](std::string_view more) {
    listing += more;
    if (listing.size() > kMostListing) throw Error(fmt::format("{}: the hub's list of files is too long", repository));
  });
  const HubFile file = choose_hub_file(read_listing(listing, name), name);
  const fs::path path = fs::path(options.folder) / name.owner / name.repository / file.path;
  std::error_code none;
  if (fs::file_size(path, none) == uintmax_t(file.bytes) && !none) return path.string();
  fs::create_directories(path.parent_path());
  fetch(options, hub + "/" + repository + "/resolve/main/" + file.path, file, path);
  return path.string();
}

}  // namespace sx::server
