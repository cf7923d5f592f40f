#include "base/cpu_count.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

namespace sx {
namespace {

constexpr int kMostCpus = 1 << 16;

// The first line of a file; empty if it cannot be read.
std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

bool has_word(std::string_view list, std::string_view word) {
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    if (list.substr(at, comma - at) == word) return true;
    at = comma + 1;
  }
  return false;
}

// Where the control groups of one version are, and which of them is this process's.
struct Hierarchy {
  std::string mount, mount_root, group;  // the folder, the group it shows, the process's group
};

// A line: "36 25 0:32 /shown /mount rw - cgroup cgroup rw,cpu". Between the options and the hyphen there may be more
// fields.
void find_mount(const std::string& mountinfo, bool version_2, Hierarchy& h) {
  std::ifstream in(mountinfo);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string skip, root, mount, word, type, device, options;
    fields >> skip >> skip >> skip >> root >> mount;
    while (fields >> word && word != "-") {}
    fields >> type >> device >> options;
    if (version_2 ? type != "cgroup2" : type != "cgroup" || !has_word(options, "cpu")) continue;
    h.mount = mount, h.mount_root = root;
    return;
  }
}

// A line: "4:cpu,cpuacct:/group", in version 2 "0::/group".
bool find_group(const std::string& file, bool version_2, Hierarchy& h) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view draft_budgets = std::string_view(line).substr(first + 1, second - first - 1);
    if (version_2 ? !draft_budgets.empty() : !has_word(draft_budgets, "cpu")) continue;
    h.group = line.substr(second + 1);
    return true;
  }
  return false;
}

double quota_of(const std::string& folder, bool version_2) {
  double quota = 0, period = 0;
  if (version_2) {
    std::istringstream(first_line(folder + "/cpu.max")) >> quota >> period;  // "max 100000" does not read as a number
  } else {
    std::istringstream(first_line(folder + "/cpu.cfs_quota_us")) >> quota;  // -1: no limit
    std::istringstream(first_line(folder + "/cpu.cfs_period_us")) >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The least of the group and those it is in. Inside a container the mount often shows only the process's own group.
double least_quota(const std::string& root, bool version_2) {
  Hierarchy h;
  if (!find_group(root + "/proc/self/cgroup", version_2, h)) return 0;
  find_mount(root + "/proc/self/mountinfo", version_2, h);
  if (h.mount.empty()) return 0;
  std::string group = h.group;
  if (h.mount_root != "/") {
    const bool inside =
        group.starts_with(h.mount_root) && (group.size() == h.mount_root.size() || group[h.mount_root.size()] == '/');
    group = inside ? group.substr(h.mount_root.size()) : "";
  }
  while (!group.empty() && group.back() == '/') group.pop_back();
  double least = 0;
  while (true) {
    if (const double quota = quota_of(root + h.mount + group, version_2); quota > 0)
      least = least > 0 ? std::min(least, quota) : quota;
    if (group.empty()) return least;
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
}

// "0-3,8": 0 1 2 3 8. What is no list of numbers is empty.
std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream in(list);
  for (std::string range; std::getline(in, range, ',');) {
    int first = -1, last = -1;
    char hyphen = 0;
    std::istringstream ends(range);
    if (!(ends >> first)) return {};
    if (!(ends >> hyphen >> last)) last = first;
    if (first < 0 || last >= kMostCpus) return {};
    for (int i = first; i <= last; ++i) numbers.push_back(i);
  }
  return numbers;
}

bool has_number(const std::vector<int>& numbers, int n) {
  return std::find(numbers.begin(), numbers.end(), n) != numbers.end();
}

// The nodes whose memory the process may use, by its control group; false: the system does not say.
bool granted_nodes(const std::string& root, std::vector<int>& granted) {
  constexpr std::string_view kKey = "Mems_allowed_list:";
  std::ifstream in(root + "/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(kKey)) {
      granted = numbers_of(line.substr(kKey.size()));
      return true;
    }
  return false;
}

std::vector<int> nodes_of(const std::vector<int>& allowed, const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node/";
  std::vector<int> granted, nodes;
  const bool limited = granted_nodes(root, granted);
  for (const int node : numbers_of(first_line(folder + "has_memory"))) {
    if (limited && !has_number(granted, node)) continue;
    const std::vector<int> cpus = numbers_of(first_line(fmt::format("{}node{}/cpulist", folder, node)));
    if (std::any_of(cpus.begin(), cpus.end(), [&](int cpu) { return has_number(allowed, cpu); })) nodes.push_back(node);
  }
  return nodes;
}

// Whether the user has said where this process's memory shall be (numactl): then that stands.
bool has_memory_policy() {
  int mode = 0;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode != 0;  // 0: MPOL_DEFAULT
}

}  // namespace

int CpuCount::threads() const {
  return quota > 0 ? std::max(1, std::min(cores, int(std::lround(std::min(quota, double(kMostCpus))))))
                   : std::max(1, cores);
}

std::string CpuCount::why() const {
  std::string text = fmt::format("{} core{}", cores, cores == 1 ? "" : "s");
  if (allowed > cores) text += fmt::format(" ({} hardware threads)", allowed);
  if (nodes.size() > 1) text += fmt::format(", {} memory nodes", nodes.size());
  return quota > 0 && std::lround(quota) < cores ? fmt::format("CPU quota {:.3g} of {}", quota, text) : text;
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  for (int most = 1024; most <= kMostCpus; most *= 4) {  // the call fails while the mask is smaller than the system's
    cpu_set_t* set = CPU_ALLOC(size_t(most));
    const size_t bytes = CPU_ALLOC_SIZE(size_t(most));
    CPU_ZERO_S(bytes, set);
    const bool known = ::sched_getaffinity(0, bytes, set) == 0;
    for (int i = 0; known && i < most; ++i)
      if (CPU_ISSET_S(size_t(i), bytes, set)) cpus.push_back(i);
    CPU_FREE(set);
    if (known) break;
  }
  return cpus;
}

CpuCount count_cpus(const std::vector<int>& allowed, const std::string& root) {
  CpuCount count;
  count.allowed = allowed.empty() ? std::max(1, int(std::thread::hardware_concurrency())) : int(allowed.size());
  std::set<std::string> cores;  // by the list of their hardware threads
  for (const int cpu : allowed) {
    const std::string topology = fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/", root, cpu);
    std::string siblings = first_line(topology + "core_cpus_list");
    if (siblings.empty()) siblings = first_line(topology + "thread_siblings_list");  // its name before Linux 5.7
    cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
  }
  count.cores = cores.empty() ? count.allowed : int(cores.size());
  const double v1 = least_quota(root, false), v2 = least_quota(root, true);
  count.quota = v1 > 0 && v2 > 0 ? std::min(v1, v2) : v1 + v2;
  count.nodes = nodes_of(allowed, root);
  return count;
}

const CpuCount& cpu_count() {
  static const CpuCount count = [] {
    CpuCount c = count_cpus(allowed_cpus());
    if (has_memory_policy()) c.nodes.clear();
    return c;
  }();
  return count;
}

}  // namespace sx
