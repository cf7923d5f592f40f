// How many threads this process can keep busy: the CPUs its affinity allows, the physical cores behind them (two
// hardware threads of a core share the units that matter here), and the quota of its control group (a container's CPU
// limit). And which memory those CPUs have: a machine of several sockets has several nodes.
#pragma once
#include <string>
#include <vector>

namespace sx {

struct CpuCount {
  int allowed = 1;   // logical CPUs the process may run on
  int cores = 1;     // distinct physical cores among them
  double quota = 0;  // CPUs' worth of time its control groups grant; 0: no limit
  // The memory nodes that have some of these CPUs and that the process may use, ascending; empty if the system does not
  // say, or has been told where the process's memory shall be (numactl).
  std::vector<int> nodes;

  // The default number of threads, at least 1: one per core, but no more than the quota, which is rounded to the
  // nearest: 1.5 CPUs give two threads (half as fast again as one, at the cost of being halted now and then), 1.4 give
  // one.
  int threads() const;
  // "2 cores", "4 cores (8 hardware threads)", "CPU quota 1.5 of 8 cores", "64 cores, 2 memory nodes".
  std::string why() const;
};

// The CPUs in the affinity mask of this process, ascending; empty if the system does not say.
std::vector<int> allowed_cpus();

// Reads ROOT/proc/self/{cgroup,mountinfo,status}, the control groups they name (versions 1 and 2, each with all its
// ancestors) and ROOT/sys/devices/system/{cpu,node}. What cannot be read does not limit.
CpuCount count_cpus(const std::vector<int>& allowed, const std::string& root = "");
// Of this process; read once.
const CpuCount& cpu_count();

}  // namespace sx
