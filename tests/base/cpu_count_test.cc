// How many threads a process can keep busy, from made-up /proc and /sys folders.
#include "base/cpu_count.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

namespace sx {
namespace {

class CpuCountTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void smt(int cores) {  // hardware threads i and i + cores are of core i
    for (int i = 0; i < 2 * cores; ++i)
      write("sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list",
            std::to_string(i % cores) + "," + std::to_string(i % cores + cores) + "\n");
  }
  void version_2(const std::string& group, const std::string& mount_root = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n30 22 0:26 " + mount_root +
                                     " /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  CpuCount count(int cpus) {
    std::vector<int> allowed(static_cast<size_t>(cpus));
    std::iota(allowed.begin(), allowed.end(), 0);
    return count_cpus(allowed, root_.string());
  }

  std::filesystem::path root_ =
      std::filesystem::temp_directory_path() /
      ("sx_cpu_count_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(CpuCountTest, WithoutAnyFilesItIsTheAffinity) {
  EXPECT_EQ(count(6).threads(), 6);
  EXPECT_EQ(count(6).quota, 0);
  EXPECT_EQ(count(1).why(), "1 core");
  EXPECT_GE(count_cpus({}, root_.string()).threads(), 1);
}

TEST_F(CpuCountTest, HardwareThreadsOfACoreCountOnce) {
  smt(4);
  EXPECT_EQ(count(8).threads(), 4);
  EXPECT_EQ(count(8).allowed, 8);
  EXPECT_EQ(count(8).why(), "4 cores (8 hardware threads)");
  EXPECT_EQ(count(3).threads(), 3);                                     // affinity: one hardware thread of each
  EXPECT_EQ(count_cpus({0, 4}, root_.string()).threads(), 1);           // both of one core
  write("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0\n");  // the newer name comes first
  EXPECT_EQ(count_cpus({0, 4}, root_.string()).threads(), 2);
}

TEST_F(CpuCountTest, QuotasOfVersion2AreThoseOfAllAncestors) {
  version_2("/kube/pod/box");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/kube/pod/box/cpu.max", "800000 100000\n");
  EXPECT_EQ(count(16).threads(), 8);
  write("sys/fs/cgroup/kube/pod/cpu.max", "150000 50000\n");
  EXPECT_EQ(count(16).threads(), 3);
  EXPECT_EQ(count(16).why(), "CPU quota 3 of 16 cores");
  EXPECT_EQ(count(2).threads(), 2);
  EXPECT_EQ(count(2).why(), "2 cores");
  write("sys/fs/cgroup/kube/pod/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/kube/cpu.max", "200000 100000\n");
  EXPECT_EQ(count(16).threads(), 2);
}

TEST_F(CpuCountTest, QuotasAreRoundedToTheNearestButOneThreadThereIs) {
  version_2("/");
  for (const auto& [quota, threads] :
       std::vector<std::pair<int, int>>{{10000, 1}, {50000, 1}, {140000, 1}, {150000, 2}, {240000, 2}, {290000, 3}}) {
    write("sys/fs/cgroup/cpu.max", std::to_string(quota) + " 100000\n");
    EXPECT_EQ(count(8).threads(), threads) << quota;
    EXPECT_DOUBLE_EQ(count(8).quota, quota / 1e5);
  }
}

// In a container the mount shows the container's own group, under a path that only the host knows.
TEST_F(CpuCountTest, AMountMayShowOnlyAPartOfTheTree) {
  version_2("/docker/abc/inner", "/docker/abc");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(count(16).threads(), 4);
  write("sys/fs/cgroup/inner/cpu.max", "200000 100000\n");
  EXPECT_EQ(count(16).threads(), 2);
  version_2("/docker/abcdef", "/docker/abc");  // not inside: what the mount shows is all there is
  EXPECT_EQ(count(16).threads(), 4);
}

TEST_F(CpuCountTest, QuotasOfVersion1) {
  write("proc/self/cgroup", "5:memory:/box\n4:cpuacct,cpu:/box/task\n3:cpuset:/box\n0::/\n");
  write("proc/self/mountinfo",
        "35 33 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "36 33 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "43 33 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/task/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/task/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(count(16).threads(), 16);
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "500000\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(count(16).threads(), 5);
  write("sys/fs/cgroup/unified/cpu.max", "300000 100000\n");  // both in use: the lesser
  EXPECT_EQ(count(16).threads(), 3);
}

TEST_F(CpuCountTest, NonsenseDoesNotLimit) {
  version_2("/");
  for (const char* text : {"", "max", "0 100000", "-1 100000", "100000 0", "words"}) {
    write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(count(4).threads(), 4) << text;
  }
  write("proc/self/cgroup", "nothing here\n::\n");
  EXPECT_EQ(count(4).threads(), 4);
}

TEST(CpuCount, OfThisProcess) {
  EXPECT_GE(cpu_count().threads(), 1);
  EXPECT_LE(cpu_count().threads(), cpu_count().allowed);
  EXPECT_EQ(size_t(cpu_count().allowed), allowed_cpus().size());
}

// Two sockets of four CPUs each, and a node of memory without CPUs.
TEST_F(CpuCountTest, MemoryNodesAreThoseOfTheAllowedCpus) {
  EXPECT_TRUE(count(8).nodes.empty());
  write("sys/devices/system/node/has_memory", "0-2\n");
  write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
  write("sys/devices/system/node/node1/cpulist", "2-3,6,7\n");
  write("sys/devices/system/node/node2/cpulist", "\n");
  EXPECT_EQ(count(8).nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(count(8).why(), "8 cores, 2 memory nodes");
  EXPECT_EQ(count(2).nodes, std::vector<int>{0});  // affinity: CPUs 0 and 1
  EXPECT_EQ(count(2).why(), "2 cores");
  EXPECT_EQ(count_cpus({3, 6}, root_.string()).nodes, std::vector<int>{1});
}

TEST_F(CpuCountTest, MemoryNodesAreThoseOfTheControlGroup) {
  write("sys/devices/system/node/has_memory", "0-1\n");
  write("sys/devices/system/node/node0/cpulist", "0-3\n");
  write("sys/devices/system/node/node1/cpulist", "4-7\n");
  write("proc/self/status", "Name:\tx\nMems_allowed:\t00000002\nMems_allowed_list:\t1\nThreads:\t1\n");
  EXPECT_EQ(count(8).nodes, std::vector<int>{1});
  write("proc/self/status", "Name:\tx\nMems_allowed_list:\t0-1\n");
  EXPECT_EQ(count(8).nodes, (std::vector<int>{0, 1}));
  write("sys/devices/system/node/has_memory", "not a list\n");
  EXPECT_TRUE(count(8).nodes.empty());
}

}  // namespace
}  // namespace sx
