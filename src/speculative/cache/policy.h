// The interface of draft-cache policies. A policy decides which cells (keys and values of single tokens) a drafter
// attends to. DraftCache keeps the cells of the whole text, scores them as the policy asks, lets the policy choose when
// a refresh is due, and gathers the chosen cells. A policy keeps no state of its own. docs/extending.md shows
// how to add one.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/ops.h"

namespace sx {

struct CacheConfig;

// What a policy wants to know about the text before it chooses.
struct CacheScores {
  enum class Query {
    kNone,    // Nothing: the choice follows from the length of the text.
    kTarget,  // The attention of the target's last committed token: the mean over CacheConfig::layers and all their
              // heads. One choice serves all layers and heads of the drafter.
    kDraft,   // The attention of the drafter's own last tokens, per layer and key/value head. Each of these chooses for
              // itself.
  };
  Query query = Query::kNone;
  ScoreKind kind = ScoreKind::kMass;
  bool single_cells = false;  // Scores belong to single cells; otherwise to chunks of CacheConfig::chunk cells.
  int queries = 1;            // kDraft: the scores of this many last queries are added up.
  // kTarget, where the target drafts for itself: each layer and key/value head chooses for itself, by the attention of
  // its own query heads. All layers count then, and the choice must be one that on_backend() describes.
  bool each_head = false;
};

// The text that a policy chooses from; it has more cells than CacheConfig::budget.
struct CacheText {
  int cells = 0;
  std::span<const int32_t> borders;  // [parts + 1]; part i, a chunk or one cell, is [borders[i], borders[i + 1])
  std::span<float> scores;           // [parts], to be overwritten at will; without a query their values mean nothing
};

// Working memory that DraftCache keeps between calls, so that a choice allocates nothing.
struct ChoiceScratch {
  std::vector<uint64_t> order;  // has room for choice_scratch(parts) entries
  std::vector<float> scores;    // [parts]
};

// A choice that Backend::kv_retrieve() makes without the host: the chunks the target attends to most, and always those
// with the first `sink` or the last `recent` cells. It must be the choice that choose() makes from the same scores.
struct BackendChoice {
  bool per_cell = false;  // A chunk's score is divided by its length.
  int budget = 0, sink = 0, recent = 0;
};

enum class CacheRefresh {
  kNever,     // Every cell stays; the policy does not choose.
  kInterval,  // The policy chooses again every CacheConfig::interval rounds.
  kOnce,      // The first choice from a text stays; later cells are appended to it.
};

struct CachePolicy {
  const char* name;  // the value of the setting `cache`
  CacheScores scores{};
  CacheRefresh refresh = CacheRefresh::kInterval;
  // Fills `cells` with at least one and at most CacheConfig::budget cells of the text, ascending and without repeats.
  // The same input must give the same cells. `cells` has enough capacity.
  void (*choose)(const CacheConfig& config, const CacheText& text, ChoiceScratch& scratch,
                 std::vector<int32_t>& cells) = nullptr;
  // Set if a backend can choose by itself (Query::kTarget by chunks only); nothing is returned where these numbers do
  // not allow it.
  std::optional<BackendChoice> (*on_backend)(const CacheConfig& config) = nullptr;

  bool chooses() const { return refresh != CacheRefresh::kNever; }
  bool reads_target() const { return scores.query == CacheScores::Query::kTarget; }
  bool reads_draft() const { return scores.query == CacheScores::Query::kDraft; }
};

extern const CachePolicy kFullCache;  // all cells

// The registry: the policies of this folder in the order of its table, then those added.
std::span<const CachePolicy* const> cache_policies();
const CachePolicy* find_cache_policy(std::string_view name);  // null: there is none
const CachePolicy& cache_policy(std::string_view name);       // throws sx::Error with the names there are
// "full, window or streaming"; with `wanted` only the policies for which it holds.
std::string cache_policy_names(bool (*wanted)(const CachePolicy&) = nullptr);
// Adds a policy, which must outlive its users. To be called before anything reads the registry in another thread.
// Throws sx::Error for a policy without a choice and for a name that is taken.
void add_cache_policy(const CachePolicy& policy);

}  // namespace sx
