// SHA-256 (FIPS 180-4): whether a file is the one that was shipped, and fingerprints of vocabularies.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sx {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  std::string hex();  // ends the message: 64 digits

 private:
  void take_block(const std::byte* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  uint64_t length_ = 0;  // bytes so far
};

std::string sha256_of_file(const std::string& path);  // throws sx::Error naming the file

}  // namespace sx
