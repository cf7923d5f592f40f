// Position-keyed random numbers: a pure function of (seed, position, token), so that a token's noise is the same
// whether it was drafted, verified or decoded plainly, on any thread, in any order.
#pragma once
#include <cmath>
#include <cstdint>

namespace sx {

// A strong 64-bit mixer (two rounds of multiply-xorshift); every input bit reaches every output bit.
constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  return x;
}

constexpr uint64_t hash_key(uint64_t seed, uint64_t position, uint64_t token) {
  return mix64(mix64(mix64(seed + 0x9e3779b97f4a7c15ull) ^ position * 0xbf58476d1ce4e5b9ull) ^
               (token + 0x94d049bb133111ebull));
}

// Uniform in (0, 1): 52 bits and a half, so that neither 0 nor 1 can come out.
constexpr double uniform_from(uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

// Standard Gumbel noise for (seed, position, token).
inline double gumbel(uint64_t seed, uint64_t position, uint64_t token) {
  return -std::log(-std::log(uniform_from(hash_key(seed, position, token))));
}

}  // namespace sx
