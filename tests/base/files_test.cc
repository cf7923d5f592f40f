// Mapped files and large memory: contents, alignment, errors that say what was asked.
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

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

// The system is asked which policy it keeps for an address in the middle.
TEST(Pages, ComeFromMemoryNodesAlternately) {
  const Pages near(size_t(5) << 20, "a test"), spread_out(size_t(5) << 20, "a test"), tiny(100, "a test");
  const auto policy = [](const Pages& pages) {
    int mode = -1;
    unsigned long nodes[16] = {};
    if (::syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, pages.data() + pages.size() / 2, MPOL_F_ADDR) !=
        0)
      return std::pair(-1, 0ul);
    return std::pair(mode, nodes[0]);
  };
  if (policy(near).first < 0) GTEST_SKIP() << "this system does not tell where memory will be";
  spread_out.interleave(std::vector<int>{0, 4000});  // a node that no machine has is left out
  tiny.interleave(std::vector<int>{0});
  EXPECT_EQ(policy(near).first, MPOL_DEFAULT);
  EXPECT_EQ(policy(tiny).first, MPOL_DEFAULT);  // less than a page: there is nothing to place
  EXPECT_EQ(policy(spread_out), std::pair(int{MPOL_INTERLEAVE}, 1ul));
  for (size_t i = 0; i < spread_out.size(); i += 4096) EXPECT_EQ(spread_out.data()[i], std::byte{0});
}

TEST(Pages, RefusalSaysWhatItWasFor) {
  try {
    const Pages absurd(SIZE_MAX / 4, "the impossible");
    FAIL();
  } catch (const Error& e) { EXPECT_NE(std::string(e.what()).find("the impossible"), std::string::npos); }
}

}  // namespace
}  // namespace sx
