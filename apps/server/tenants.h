// How much each key has had of the server, so that one key's burst never starves another: whose request is next, and
// who must come back later. Not thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>

#include "server/keys.h"

namespace sx::server {

class Tenants {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // What the queue looks like to requests that want to wait in it.
  struct Demand {
    size_t jobs = 1;     // that come
    size_t waiting = 0;  // of the same key
    size_t free = 0;     // places, for all keys
  };
  // Throws an ApiError (429) that names the limit: one of the key's own, or that of its share of the queue. Where there
  // are other keys, one may hold as many places as it leaves free, so that there is always room for another, but at
  // least one.
  void check(const Tenant& tenant, const Demand& demand, TimePoint now);

  // How many requests of a key may run at a time in so many slots. Where there are other keys, one without a limit of
  // its own leaves a slot to them: they would wait for the whole of an answer else.
  static size_t most_running(const Tenant& tenant, size_t slots);

  // A key that did not wait or run has saved nothing up: it goes on with what the least served of the others has had.
  void arrive(const Tenant& tenant, double least_used);
  double used(uint64_t id) const;  // tokens by weight
  void charge(const Tenant& tenant, int64_t tokens, TimePoint now);

  // Whether a request of `a`, with so many running, goes before one of `b`: fewer run by weight, or it has had less.
  struct Share {
    const Tenant& tenant;
    size_t running = 0;
  };
  bool before(const Share& a, const Share& b) const;

 private:
  struct Account {
    double used = 0;
    double left = 0;     // of the tokens per minute; below 0: more than there were
    TimePoint filled{};  // when `left` was right
  };
  Account& refilled(const Tenant& tenant, TimePoint now);
  std::map<uint64_t, Account> accounts_;
};

}  // namespace sx::server
