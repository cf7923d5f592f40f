// The registry of draft-cache policies: one row per policy.
#include "speculative/cache/policy.h"

#include "base/error.h"
#include "base/printable.h"

namespace sx {

extern const CachePolicy kWindowCache, kStreamingCache, kRetrievalCache, kOnceCache, kQuestCache, kSnapCache,
    kPruneCache, kRandomCache, kVerifiedCache;

namespace {

std::vector<const CachePolicy*>& table() {
  static std::vector<const CachePolicy*> policies = {
      &kFullCache,  &kWindowCache, &kStreamingCache, &kRetrievalCache, &kOnceCache,
      &kQuestCache, &kSnapCache,   &kPruneCache,     &kRandomCache,    &kVerifiedCache,
  };
  return policies;
}

}  // namespace

std::span<const CachePolicy* const> cache_policies() { return table(); }

const CachePolicy* find_cache_policy(std::string_view name) {
  for (const CachePolicy* policy : table())
    if (name == policy->name) return policy;
  return nullptr;
}

const CachePolicy& cache_policy(std::string_view name) {
  if (const CachePolicy* policy = find_cache_policy(name)) return *policy;
  fail("there is no draft-cache policy '{}'; there are {}", printable(name, 60), cache_policy_names());
}

std::string cache_policy_names(bool (*wanted)(const CachePolicy&)) {
  std::vector<const char*> names;
  for (const CachePolicy* policy : table())
    if (!wanted || wanted(*policy)) names.push_back(policy->name);
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

void add_cache_policy(const CachePolicy& policy) {
  if (!policy.name || !*policy.name || (policy.chooses() && !policy.choose))
    fail("draft-cache policy '{}' needs a name and a function that chooses", policy.name ? policy.name : "");
  if (find_cache_policy(policy.name)) fail("a draft-cache policy '{}' exists already", policy.name);
  table().push_back(&policy);
}

}  // namespace sx
