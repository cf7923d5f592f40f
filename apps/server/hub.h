// Models by the name of their repository: asks a hub that speaks Hugging Face's paths, and keeps what it fetches.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sx::server {

struct HubName {
  std::string owner, repository;
  std::string tag;  // which of its files; empty: the usual one
};
// "OWNER/REPOSITORY[:TAG]"; throws sx::Error.
HubName parse_hub_name(std::string_view name);

struct HubFile {
  std::string path;
  int64_t bytes = 0;
  std::string sha256;  // empty: the hub does not say
};
// The file that a tag (Q4_K_M, q8_0) or no tag stands for, among those of a repository. Throws sx::Error naming those
// there are.
HubFile choose_hub_file(const std::vector<HubFile>& files, const HubName& name);

struct HubOptions {
  std::string address;                        // http:// or https://
  std::string folder;                         // for what is fetched
  std::function<void(double)> on_progress{};  // 0..1
};
// The path of the model; fetches it unless it is there. Throws sx::Error.
std::string model_from_hub(const HubOptions& options, const HubName& name);

}  // namespace sx::server
