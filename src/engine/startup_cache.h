// What opening an engine found out, kept for the next start: SHA-256 sums of files, fingerprints of vocabularies,
// layers that retrieve, costs of passes; that a file's weights are numbers, that a draft has the target's vocabulary.
// One small JSON file for each, by a hash of everything it depends on. Files that cannot be read, parsed or written are
// as if they were not there.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_text.h"
#include "speculative/budget/cost_model.h"

namespace sx {

// A file, its other shards (NAME-00001-of-00002.gguf), or the files of a folder: real path, sizes, times and numbers on
// the disk. Empty: it cannot be looked at.
std::string file_identity(const std::string& path);

class StartupCache {
 public:
  explicit StartupCache(std::string folder) : folder_(std::move(folder)) {}  // empty: keeps nothing

  // The value kept under a key. `kind`: a few letters. Keys are whole texts: equal ones mean the same.
  std::optional<Json> find(std::string_view kind, const std::string& key) const;
  void keep(std::string_view kind, const std::string& key, const Json& value) const;

  // The sum of a file: kept, or computed. Throws sx::Error naming the file.
  std::string sha256(const std::string& path);

  // Whether something is known to be so; what is not so is not kept.
  bool known(std::string_view kind, const std::string& key) const { return find(kind, key) == Json(true); }

  // What was not found and had to be done.
  struct Work {
    int hashed = 0, compared = 0, probed = 0, measured = 0, scanned = 0;
  };
  Work work;

 private:
  std::string path_of(std::string_view kind, const std::string& key) const;

  std::string folder_;
};

// The program or library that this code is in, and its version.
std::string build_identity();
// Of what this build finds out about a file, or two. Empty: they cannot be looked at.
std::string build_key(const std::string& path, const std::string& other = {});
std::string machine_identity();

// Costs of passes with up to `most` rows, on an empty cache and behind `far` cells (0: only empty).
Json costs_to_json(const CostModel& cost_model, int most, int far);
// False, with nothing set: they are not such costs.
bool costs_from_json(const Json& json, int most, int far, CostModel& cost_model);
// The costs to keep instead of `kept` after a process whose passes took `now`: other work makes passes slower, never
// faster, so a faster cost is taken and a slower one only by a part. Nothing: they are nearly the same.
std::optional<Json> corrected_costs(const Json& kept, const CostModel& now, int most, int far);

}  // namespace sx
