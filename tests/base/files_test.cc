// Mapped files and large memory: contents, alignment, errors that say what was asked.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/memory.h"
#include "base/mmap.h"

namespace sx {
namespace {

TEST(MappedFile, ReadsBytesAndNamesWhatIsMissing) {
  const auto path = std::filesystem::temp_directory_path() / "sx_mapped_file_test";
  std::ofstream(path) << "hello";
  {
    const MappedFile file(path.string());
    ASSERT_EQ(file.bytes().size(), 5u);
    EXPECT_EQ(std::memcmp(file.bytes().data(), "hello", 5), 0);
    file.drop(file.bytes().data(), 5);
    EXPECT_EQ(std::memcmp(file.bytes().data(), "hello", 5), 0);
  }
  std::filesystem::remove(path);
  try {
    const MappedFile missing(path.string());
    FAIL() << "opened a file that is not there";
  } catch (const Error& e) { EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos); }
  EXPECT_THROW(MappedFile("/"), Error);
}

TEST(Pages, AreZeroAlignedAndLarge) {
  const Pages small(100, "a test"), large(size_t(5) << 20, "a test");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % (2u << 20), 0u);
  for (size_t i = 0; i < large.size(); i += 4096) ASSERT_EQ(int(large.data()[i]), 0);
  large.data()[large.size() - 1] = std::byte{1};
}

TEST(Pages, RefusalSaysWhatItWasFor) {
  try {
    const Pages absurd(SIZE_MAX / 4, "the impossible");
    FAIL();
  } catch (const Error& e) { EXPECT_NE(std::string(e.what()).find("the impossible"), std::string::npos); }
}

}  // namespace
}  // namespace sx
