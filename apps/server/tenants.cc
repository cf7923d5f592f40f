#include "server/tenants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/error.h"

namespace sx::server {
namespace {

ApiError too_many(const std::string& message, const char* code, int retry_after = 0) {
  ApiError error(429, "rate_limit_error", message, "", code);
  error.retry_after = retry_after;
  return error;
}

}  // namespace

// A bucket that holds a minute's tokens and is filled steadily.
Tenants::Account& Tenants::refilled(const Tenant& tenant, TimePoint now) {
  const auto [found, fresh] = accounts_.try_emplace(tenant.id);
  Account& account = found->second;
  const double most = double(tenant.limits.tokens_per_minute);
  if (fresh) account.left = most;
  else account.left += most / 60 * std::chrono::duration<double>(now - account.filled).count();
  account.left = std::min(account.left, most);
  account.filled = now;
  return account;
}

void Tenants::check(const Tenant& tenant, const Demand& demand, TimePoint now) {
  const KeyLimits& limits = tenant.limits;
  if (limits.max_waiting > 0 && demand.waiting + demand.jobs > size_t(limits.max_waiting))
    throw too_many(fmt::format("the key '{}' may have {} requests waiting, and has {}", tenant.name, limits.max_waiting,
                               demand.waiting),
                   "key_queue_full");
  const bool only_one = demand.waiting == 0 && demand.jobs == 1;
  if (!tenant.alone && !only_one && demand.waiting + 2 * demand.jobs > demand.free)
    throw too_many(fmt::format("the key '{}' has {} requests waiting and sends {}: the other places are for other keys",
                               tenant.name, demand.waiting, demand.jobs),
                   "key_queue_full");
  if (limits.tokens_per_minute <= 0) return;
  const double left = refilled(tenant, now).left;
  if (left > 0) return;
  const double wait = (1 - left) * 60 / double(limits.tokens_per_minute);
  throw too_many(fmt::format("the key '{}' has used its {} tokens per minute", tenant.name, limits.tokens_per_minute),
                 "tokens_per_minute", int(std::clamp(std::ceil(wait), 1.0, 3600.0)));
}

size_t Tenants::most_running(const Tenant& tenant, size_t slots) {
  if (tenant.limits.max_running > 0) return size_t(tenant.limits.max_running);
  return tenant.alone || slots == 1 ? slots : slots - 1;
}

void Tenants::arrive(const Tenant& tenant, double least_used) {
  Account& account = refilled(tenant, std::chrono::steady_clock::now());
  account.used = std::max(account.used, least_used);
}

double Tenants::used(uint64_t id) const {
  const auto found = accounts_.find(id);
  return found == accounts_.end() ? 0 : found->second.used;
}

void Tenants::charge(const Tenant& tenant, int64_t tokens, TimePoint now) {
  Account& account = refilled(tenant, now);
  account.used += double(tokens) / tenant.limits.weight;
  account.left -= double(tokens);
}

bool Tenants::before(const Share& a, const Share& b) const {
  const double first = double(a.running) / a.tenant.limits.weight, second = double(b.running) / b.tenant.limits.weight;
  return first != second ? first < second : used(a.tenant.id) < used(b.tenant.id);
}

}  // namespace sx::server
